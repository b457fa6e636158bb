"""The commands of the runtimes' sections: their plans answer every size that they measure."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from artefacts import ROOT

from forestcoll.ui import cli

PAGE = ROOT / "docs" / "plans.md"
SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def commands(section: str) -> list[list[str]]:
    """The section's indented lines, as words."""
    _, _, text = PAGE.read_text().partition(f"\n## {section}\n")
    text, _, _ = text.partition("\n## ")
    lines = re.findall(r"^    (\S.*)$", text, flags=re.M)
    return [shlex.split(line, comments=True) for line in lines]


def sweep(section: str) -> list[int]:
    """Sizes of the section's `*_perf -b LOW -e HIGH -f FACTOR`; without one 1 MiB to 1 GiB."""
    for words in commands(section):
        if any(word.endswith("_perf") for word in words):
            low, high, factor = (words[words.index(o) + 1] for o in ("-b", "-e", "-f"))
            break
    else:
        low, high, factor = "1M", "1G", "2"
    first, last = (int(size[:-1]) * SIZES[size[-1]] for size in (low, high))
    found = [first]
    while found[-1] * int(factor) <= last:
        found.append(found[-1] * int(factor))
    return found


def takes(plan: Path, size: int) -> bool:
    """Whether the runtime takes a call of `size` bytes of float32, by its own rule."""
    if plan.suffix == ".xml":  # mscclCommon: elements % nchunksperloop, minBytes, maxBytes
        algo = ElementTree.parse(plan).getroot()
        low, high = int(algo.get("minBytes", "0")), int(algo.get("maxBytes", "0"))
        divides = size // 4 % int(algo.get("nchunksperloop", "0")) == 0
        return divides and low <= size and (size <= high or not high)
    document = json.loads(plan.read_text())  # executor.cc: chunks of 16 bytes
    rank = document["gpus"][0]
    chunks = max(rank["input_chunks"], rank["output_chunks"])
    low, high = document["min_message_size"], document["max_message_size"]
    return size % (16 * chunks) == 0 and low <= size <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    "section", ["Plans on MSCCL++", "Plans on msccl-executor-nccl", "Plans on RCCL"]
)
def test_the_plans_of_a_section_answer_every_size_that_it_measures(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = [words[1:] for words in commands(section) if words[0] == "forestcoll"]
    assert [words[0] for words in ran[:2]] == ["synthesize", "deploy"]
    sizes = sweep(section)
    assert len(sizes) == 11
    deployed = 0
    for words in ran:
        assert cli.main(words) == 0
        if words[0] == "deploy":
            folder = Path(words[words.index("-o") + 1])
            check(folder, sizes)
            deployed += 1
            folder.rename(f"deployed before {deployed}")
    assert deployed == sum(words[0] == "deploy" for words in ran)


def check(folder: Path, sizes: list[int]) -> None:
    """Every plan of a deployment takes every size."""
    entries = json.loads((folder / "deploy.json").read_text())["plans"]
    assert entries
    for entry in entries:
        for size in sizes:
            assert takes(folder / entry["file"], size), (entry["file"], size)
            assert size % entry["multiple"] == 0
            assert entry["min_bytes"] <= size
            assert not entry["max_bytes"] or size <= entry["max_bytes"]
