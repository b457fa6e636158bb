"""What the checks share; as a program: the proof, from a log, that the plans were used."""

import ctypes
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPLOYED = json.loads((HERE / "deploy.json").read_text())


def gpu_of(rank):
    """The GPU, within its node, that the plans mean by this rank."""
    return DEPLOYED["places"][rank]["gpu"]


def check_world(ranks):
    """Ends the program where the plans are for another number of ranks."""
    if ranks != DEPLOYED["ranks"]:
        sys.exit(f"{ranks} processes; the plans are for {DEPLOYED['ranks']}")


# Where a GPU's driver tells the allocation that an address lies in: library, function.
DRIVERS = (
    ("libcuda.so.1", "cuMemGetAddressRange_v2"),
    ("libamdhip64.so", "hipMemGetAddressRange"),
)


def allocation(address):
    """(begin, bytes) of the allocation that the address lies in."""
    for library, function in DRIVERS:
        try:
            ask = getattr(ctypes.CDLL(library), function)
        except (OSError, AttributeError):
            continue
        begin, size = ctypes.c_void_p(), ctypes.c_size_t()
        status = ask(ctypes.byref(begin), ctypes.byref(size), ctypes.c_void_p(address))
        if status:
            raise RuntimeError(
                f"{function} answers {status} for the address {address:#x}: is it a GPU's memory?"
            )
        return begin.value or 0, size.value
    names = " nor ".join(library for library, _ in DRIVERS)
    raise RuntimeError(f"neither {names} can be loaded, to look where buffers' allocations begin")


def check_whole(plan, given, result):
    """RuntimeError unless the buffers that ports read begin their allocations.

    `given`, `result`: addresses of input and output. A port knows a buffer by its allocation, and
    reads from where that begins: elsewhere the plan would send other memory, without a word.
    """
    for name, address in (("input", given), ("output", result)):
        if name not in plan["whole"]:
            continue
        begin, _ = allocation(address)
        if address != begin:
            raise RuntimeError(
                f"{plan['file']}: the {name} begins {address - begin} bytes after its allocation, "
                "and the plan's port channels would read from where that begins; pass whole "
                "allocations: mscclpp.RawGpuBuffer, or PYTORCH_NO_CUDA_MEMORY_CACHING=1"
            )


def modes(plan):
    """In place and out of place, those of them that the plan is offered for."""
    if plan["in_place"]:
        yield True
    if plan["out_of_place"]:
        yield False


def data(torch, plan, rank, ranks, element_bytes, device, dtype):
    """(input, expected output): small whole numbers, whose sums are exact in every type.

    Element e of rank r's part is (31 r + 7 e) mod 13.
    """
    total = plan["check_bytes"] // element_bytes
    dealt = "each" in (plan["inputs"], plan["outputs"])
    part = total // ranks if dealt else total
    own = rank if plan["inputs"] == "each" else 0  # the part of each input that is for this rank

    def input_of(of, first, count):
        steps = torch.arange(first, first + count, device=device, dtype=torch.int64)
        return (31 * of + 7 * steps) % 13

    if plan["outputs"] == "each":
        wanted = torch.cat([input_of(r, own * part, part) for r in range(ranks)])
    elif plan["reduces"]:
        wanted = sum(input_of(r, own * part, part) for r in range(ranks))
    else:
        wanted = input_of(plan["root"], own * part, part)
    mine = input_of(rank, 0, total if plan["inputs"] == "each" else part)
    return mine.to(dtype), wanted.to(dtype)


def buffers(plan, in_place, source, expected, rank, empty):
    """(input, output) with the input filled in, laid out as NCCL defines in place.

    `empty(n)`: memory for n elements.
    """
    count, out = source.numel(), expected.numel()
    if not in_place:
        given, result = empty(count), empty(out)
    elif count < out:
        result = empty(out)
        given = result[rank * count : (rank + 1) * count]
    elif count > out:
        given = empty(count)
        result = given[rank * out : (rank + 1) * out]
    else:
        given = result = empty(count)
    given.copy_(source)
    return given, result


def wrong(plan, rank, result, expected):
    """Elements that differ; where only the root has a result, only the root's count."""
    if plan["root_is"] == "target" and rank != plan["root"]:
        return 0
    return int((result != expected).sum())


def report(rank, plan, in_place, bad):
    """One line a rank and plan where something is wrong, one a plan where all is right."""
    place = "in place" if in_place else "out of place"
    what = f"{plan['file']}, {plan['check_bytes']} bytes, {place}"
    if bad:
        print(f"rank {rank}: {what}: {bad} elements wrong", flush=True)
    elif rank == 0:
        print(f"rank 0: {what}: right", flush=True)


def in_calls(plan):
    """The modes in which torch.distributed calls the plan's collective: some in place only."""
    return [in_place for in_place in modes(plan) if in_place or plan["apart"]]


def prove(log, *, checked):
    """Exit status 0 if every line that the runtime writes for a plan is in the log, else 3.

    `checked`: what ran was check_nccl.py. A runtime that says of each call that a plan answers it,
    but not which, must have said so of every call.
    """
    text = Path(log).read_text(errors="replace")
    if "channels" in DEPLOYED:  # of a stock library, which runs no plans
        return prove_stock(text.splitlines())
    plans = os.environ.get("PLANS", str(HERE / "plans"))
    wanted = [words.replace("$PLANS", plans) for words in DEPLOYED["proof"]]
    missing = [words for words in wanted if words not in text]
    for words in missing:
        print(f"NOT USED: the log has no '{words}'", file=sys.stderr)
    each, calls = DEPLOYED["each_call"], 0
    if checked and each and not missing:
        calls = sum(len(in_calls(plan)) for plan in DEPLOYED["plans"]) * DEPLOYED["ranks_per_node"]
    if text.count(each) < calls:
        print(
            f"NOT ALWAYS USED: the log has {text.count(each)} x '{each}', and the check made "
            f"{calls} calls here that plans serve",
            file=sys.stderr,
        )
        missing = [each]
    if not missing:
        for words in wanted:
            print(f"used: the log has {text.count(words)} x '{words}'")
        return 0
    print(
        "the command ran without (some of) the plans: is it this runtime that loads, are sizes, "
        "ranks and collectives those of the plans (deploy.json)?",
        file=sys.stderr,
    )
    return 3


def prove_stock(lines):
    """Exit status 0 if the log shows the trees or rings that the library was given, else 3."""
    from stock_log import compare

    least = max(1, DEPLOYED["ranks_per_node"])
    used, told = compare(lines, DEPLOYED["kind"], DEPLOYED["channels"], least)
    for line in told:
        print(f"{'used' if used else 'NOT USED'}: {line}", file=sys.stdout if used else sys.stderr)
    return 0 if used else 3


if __name__ == "__main__":
    sys.exit(prove(sys.argv[1], checked="--checked" in sys.argv[2:]))
