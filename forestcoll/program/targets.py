"""What the runtimes can hold: the limits that lowering obeys and linting checks.

Sources: Azure/msccl-executor-nccl c6f6b36 (msccl_struct.h, msccl_parser.cc, device.h, init.cc),
ROCm/rccl 0cbce2a (the same files), microsoft/mscclpp 1f5f065d (execution_common.hpp, executor.cc).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

from forestcoll.program import FUSED, Program, Protocol, RankProgram, Style
from forestcoll.program.program import Once

PlanFormat = Literal["msccl-xml", "mscclpp-json"]
"""The formats of plans; what each is stands in `plans.FORMATS`."""
TargetName = Literal["mscclpp", "msccl", "rccl", "any"]
"""A runtime, or all that read a format."""


class Messages(NamedTuple):
    """Bytes of data in a message of a fifo connection, by protocol.

    With default buffers: a step of the buffer, of which there are 8; in Simple half of all steps.
    LL spends half of its lines on flags, LL128 one word of a line (mscclSetupCount). A step holds
    8 lines of LL for each of a number of threads, and of LL128 as many words: here runtimes differ.
    `line`: words of a line of LL128, of which one is the flag.
    """

    simple: int
    ll: int
    ll128: int
    line: int

    def of(self, protocol: Protocol) -> int:
        """Of one protocol."""
        return {"Simple": self.simple, "LL": self.ll, "LL128": self.ll128}[protocol]

    def wire(self, protocol: Protocol) -> Fraction:
        """Bytes on a link for each byte of data: the rest is flags."""
        lines = {"Simple": Fraction(1), "LL": Fraction(2)}
        return lines.get(protocol, Fraction(self.line, self.line - 1))


# 512 threads with 8 lines of 16 bytes (half flags); 640 with 120 words (15 of 16 are data)
MSCCL_MESSAGES = Messages(2 << 20, 32 << 10, 576_000, 16)
# 256 threads with 8 lines of 16 bytes (half flags); 256 with 28 words (7 of 8 are data)
RCCL_MESSAGES = Messages(2 << 20, 16 << 10, 50_176, 8)


NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """Limits of one runtime."""

    name: str
    format: PlanFormat
    style: Style
    thread_blocks: int  # per rank
    steps: int  # per thread block (MSCCL++: pipeline and inner operations counted alike)
    channels: int  # fifo: channel numbers; onesided: channels of one kind in a thread block
    count: int  # largest count of chunks in one step
    dependency_blocks: int  # thread blocks that may be named in a dependency
    fused: bool  # rcs, rrs, rrc, rrcs run
    channel_blocks: int = NO_LIMIT  # fifo: thread blocks of a rank per channel and direction
    nodes: int = NO_LIMIT  # fifo: XML elements one rank loads: algo, every gpu, its tbs and steps
    chunks: int = NO_LIMIT  # chunks in one buffer (offsets are int16 in MSCCL's device structures)
    peers: int = NO_LIMIT  # onesided: channels, destinations, remote operands in one operation
    remote_buffers: int = NO_LIMIT  # onesided: remote buffers of one kind a thread block refers to
    semaphores: int = NO_LIMIT  # onesided: in one operation
    loader_blocks: int = NO_LIMIT  # thread blocks of a rank that the loader holds, on any GPU
    nics: int = 0  # of a node that it knows; its nodes are alike and in order then. 0: any group
    messages: Messages = MSCCL_MESSAGES

    def on(self, sms: int) -> Target:
        """The same on a GPU with that many multiprocessors: all thread blocks must run at once."""
        return replace(self, thread_blocks=min(sms, self.loader_blocks))


MSCCL = Target(
    name="msccl",
    format="msccl-xml",
    style="fifo",
    thread_blocks=108,
    steps=64,
    channels=32,
    count=71,
    dependency_blocks=128,
    fused=True,
    channel_blocks=31,  # of 32: the loader touches the entry behind the last for every block
    nodes=4096,
    chunks=2**15 - 1,
    loader_blocks=1024,
)
RCCL = replace(
    MSCCL,
    name="rccl",
    thread_blocks=64,
    dependency_blocks=64,
    fused=False,
    loader_blocks=64,
    messages=RCCL_MESSAGES,
)
MSCCLPP = Target(
    name="mscclpp",
    format="mscclpp-json",
    style="onesided",
    thread_blocks=108,
    steps=64,
    channels=16,
    count=NO_LIMIT,
    dependency_blocks=108,
    fused=False,
    peers=8,
    remote_buffers=16,
    semaphores=16,
    loader_blocks=4096,
    nics=8,
)
HALF_CHUNKS = 8
"""Chunks of scratch come in eights where scratch has two halves.

The runtime takes half of all bytes, whatever a chunk has: only so does the second half begin at a
multiple of 16 bytes, which a packet's one store needs.
"""
SMS = {
    "dgx1-v100": 80,
    "dgx2-v100": 80,
    "dgx-a100": 108,
    "dgx-h100": 132,
    "dgx-b200": 148,
    "gb200-nvl72": 148,
    "mi250": 104,
    "mi300x": 304,
    "gfx906": 60,
    "gfx908": 120,
    "gfx90a": 104,
    "gfx942": 80,
    "gfx950": 256,
    "fat-tree": 132,
    "rail": 132,
}
"""Multiprocessors of a GPU (MI250: of a die), by the catalogue's name of its machine, or by the
architecture that begins the name of a dump of RCCL.

Fabrics have the links of H100 GPUs by default. Sources: NVIDIA's whitepapers on Volta, Ampere and
Hopper; AMD's on CDNA to CDNA 4 and data sheets of Instinct MI50 and MI308X. For Blackwell, and by
architecture, the smallest number of all versions.
"""
DEFAULT_SMS = 108
HOPPER = frozenset({"dgx-h100", "dgx-b200", "gb200-nvl72", "fat-tree", "rail"})
"""Machines and fabrics whose GPUs are Hopper's or later."""
TREE_RATE, HOPPER_TREE_RATE = Fraction(24), Fraction("36.7")
"""GB/s that NCCL gives a thread block that does trees: on an Ampere in Simple, and from a Hopper on
in LL128 (NCCL src/graph/tuning.cc: perChMaxTreeBws, perChMaxTreeLL128Bws)."""
AMD = re.compile(r"\b(amd|gfx\w*|mi\d+x?)\b")
"""In the names of machines whose GPUs are AMD's: MSCCL XML runs on RCCL there, else on the executor
for NCCL."""
BEFORE_GFX90A = re.compile(r"\bgfx(8\d\d|90[0-9])\b")
"""The same of GPUs that MSCCL++ does not support: it asks for AMD's CDNA 2 (its Quick Start)."""


HOSTS = {"gb200-nvl72": 4}
"""GPUs of a host, by the catalogue's name of a machine whose boxes are of several hosts.

Source: NVIDIA, GB200 NVL72 data sheet: 18 compute trays of four GPUs.
"""


def _machine(topology: str) -> str:
    """The catalogue's name of the machine, or its architecture; "" where it is unknown."""
    machines = [name for name in SMS if topology == name or topology.startswith(f"{name}-")]
    return max(machines, key=len, default="")


def host_of(topology: str) -> int:
    """GPUs of a host of the machine of that name; 0: those of a box."""
    return HOSTS.get(_machine(topology), 0)


def sms_of(topology: str) -> int:
    """Multiprocessors of the GPUs of the machine of that name; an A100's where it is unknown."""
    return SMS.get(_machine(topology), DEFAULT_SMS)


def tree_rate_of(topology: str, protocol: Protocol) -> Fraction:
    """GB/s that a thread block moves on that machine; an Ampere's where no other is known."""
    hopper = protocol == "LL128" and _machine(topology) in HOPPER
    return HOPPER_TREE_RATE if hopper else TREE_RATE


def library_on(topology: str) -> Target:
    """The runtime of MSCCL XML on that machine's GPUs; NVIDIA's are meant where it is unknown."""
    return RCCL if AMD.search(topology) else MSCCL


SLOTS: dict[Protocol, int] = {"Simple": 2, "LL": 8, "LL128": 8}
"""Messages that a fifo connection holds: 8 steps of a buffer, of which a Simple one takes 4."""
ROUNDS = 2**16
"""Times that the interpreters of MSCCL XML go through a plan in one call: MSCCL_MAX_ITER.

They count on, but a dependency is then said to be done in the next call's numbers, and who waits
for it waits for ever (Azure/msccl-executor-nccl c6f6b36, ROCm/rccl 0cbce2a: COMPUTE_FLAG).
"""
NO_END = 2**35
"""Bytes beyond which nobody asks for: no buffer of a call is as large."""
TARGETS = {t.name: t for t in (MSCCL, RCCL, MSCCLPP)}
NARROWEST: dict[PlanFormat, Target] = {t.format: t for t in TARGETS.values()}
"""The runtime of each format whose plans all its others run too."""
WIDER: dict[PlanFormat, Target] = {
    t.format: t for t in TARGETS.values() if t is not NARROWEST[t.format]
}
"""The runtime of a format that holds more than its narrowest, where there is one."""


def runtimes(target: TargetName) -> dict[PlanFormat, Target]:
    """Per plan format that `target` reads, the runtime whose limits its plans keep."""
    return NARROWEST if target == "any" else {TARGETS[target].format: TARGETS[target]}


@Once
def runtime_of(program: Program) -> Target:
    """The runtime for which a fifo program is checked where nobody says which.

    RCCL if it runs there: what it runs, msccl-executor-nccl runs too, and its messages are longer.
    """
    fused = any(i.op in FUSED for *_, i in program.instructions())
    return MSCCL if fused else runtime_for(program.ranks)


def runtime_for(ranks: Sequence[RankProgram]) -> Target:
    """The same of what ranks do in operations that are not fused."""
    most = max((len(rank.thread_blocks) for rank in ranks), default=0)
    return RCCL if most <= RCCL.loader_blocks else MSCCL


def runtime_on(program: Program, topology: str) -> Target:
    """The runtime whose messages a fifo program has on a machine, which is what its time is for.

    RCCL is for AMD's GPUs alone; msccl-executor-nccl takes longer messages, and more programs.
    """
    return library_on(topology) if runtime_of(program) is RCCL else MSCCL


def message_slots(program: Program, target: Target | None = None) -> tuple[int, int]:
    """(bytes that a message of a fifo program holds, messages that a connection holds)."""
    # a file's protocol may be any word, which the runtimes' loaders refuse
    protocol = program.protocol if program.protocol in SLOTS else "Simple"
    return (target or runtime_of(program)).messages.of(protocol), SLOTS[protocol]


def most_bytes(target: Target, protocol: Protocol, chunks: int) -> int:
    """The largest size that a fifo plan of so many chunks is right for; 0: there is no end."""
    most = target.messages.of(protocol) * ROUNDS * chunks
    return most if most < NO_END else 0
