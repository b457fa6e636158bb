"""`forestcoll topology detect`, with programs of the tools' names on the path."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from test_compose import DUMP, FABRIC
from test_readings import text_of

from forestcoll.topology import detect as detecting
from forestcoll.topology import load_topology
from forestcoll.ui import cli

TWO_SOCKETS = text_of("hwloc-xml", "pcie and sockets")
MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity
GPU0\t X \tNV18\tPIX\t0-7
GPU1\tNV18\t X \tSYS\t0-7
mlx5_0\tPIX\tSYS\t X \t
"""


COPY = 'while IFS= read -r l || [ -n "$l" ]; do printf "%s\\n" "$l"; done'
"""What `cat` does, where there is none on the path."""


class Box:
    """A folder that is the whole PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()

    def put(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def answer(self, name: str, text: str, when: str = "true") -> None:
        """A program that prints `text` where the shell's `when` holds, and fails elsewhere."""
        file = self.bin / f"{name}.out"
        file.write_text(text)
        self.put(
            name, f"if {when}; then {COPY} < {file}; else echo wrong words: $* >&2; exit 3; fi"
        )


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(detecting, "ADAPTERS", tmp_path / "infiniband")
    monkeypatch.setattr(detecting, "_has_torch", lambda: False)
    monkeypatch.setattr("socket.gethostname", lambda: "n2.cluster.example")
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["topology", "detect", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_without_any_tool_it_says_what_to_run_where(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "-o", "x.yaml")
    assert (code, out) == (1, "")
    assert "error: nothing on this machine tells of GPUs; on a machine that has them run one" in err
    for words in ("NCCL_TOPO_DUMP_FILE=nccl.xml", "nvidia-smi topo -m > topo.txt", "rocm-smi --sh",
                  "lstopo machine.xml", "ibnetdiscover > fabric.out"):  # fmt: skip
        assert words in err
    assert "nvidia-smi     not on the path" in err
    assert not Path("x.yaml").exists()


def test_a_matrix_and_the_systems_rates(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.answer("nvidia-smi", MATRIX, '[ "$*" = "topo -m" ]')
    rate = Path("infiniband/mlx5_0/ports/1/rate")
    rate.parent.mkdir(parents=True)
    rate.write_text("400 Gb/sec (4X NDR)\n")
    code, out, err = run(capsys, "-o", "this.yaml")
    assert (code, out) == (0, "this.yaml: this-machine: 2 GPUs, 0 switches, 18 links\n")
    assert "note: taken from nvidia-smi" in err
    assert "note: the rates of 1 network ports are the system's" in err
    found = detecting.detect({})
    assert found.topology is not None
    assert [a.bandwidth for a in found.topology.adapters] == [Fraction(50)]
    assert load_topology("this.yaml").rates()["gpu0", "gpu1"] == 18 * Fraction("20.6")


def test_nccls_dump_is_the_fullest(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.answer("nvidia-smi", "GPU 0: A\nGPU 1: B\n", '[ "$*" = "-L" ]')
    file = box.bin / "dump"
    file.write_text(DUMP)
    box.put(
        "all_reduce_perf",
        '[ "$*" = "-b 8 -e 8 -n 1 -w 0 -g 2" ] || exit 4\n'
        f'{COPY} < {file} > "$NCCL_TOPO_DUMP_FILE"',
    )
    box.answer("ibnetdiscover", FABRIC)
    code, _, err = run(capsys, "-o", "this.yaml", "--keep", "dumps", "--alone")
    assert code == 0
    assert load_topology("this.yaml").gpus == ("gpu0", "gpu1")
    assert "NCCL dump      2 GPUs, 2 links, 2 network ports" in err
    assert "nvidia-smi     fails: exit code 3, wrong words: topo -m" in err
    assert "ibnetdiscover  2 hosts, 1 switches, 4 cables" in err
    assert "note: taken from NCCL dump" in err
    assert Path("dumps/nccl.xml").read_text().strip() == DUMP
    assert Path("dumps/ibnetdiscover.out").read_text() == FABRIC
    code, _, err = run(capsys, "-o", "that.yaml", "--keep", "dumps")
    assert code == 1
    assert "dumps/nccl.xml: exists already" in err
    assert not Path("that.yaml").exists()


def cluster_box(box: Box, fabric: str = FABRIC) -> None:
    """A node of two GPUs and two ports, on a fabric."""
    file = box.bin / "dump"
    file.write_text(DUMP)
    box.put("all_reduce_perf", f'{COPY} < {file} > "$NCCL_TOPO_DUMP_FILE"')
    box.answer("ibnetdiscover", fabric)


LOGIN = '[5]\t"H-00c5"[1](c5) \t\t# "login mlx5_9" lid 15 4xHDR\n'
HALF = '[6]\t"H-00c6"[1](c6) \t\t# "store mlx5_0" lid 16 4xHDR\n'


def test_a_node_on_a_fabric_is_a_cluster(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    cluster_box(box, FABRIC + LOGIN + HALF)
    code, out, err = run(capsys, "-o", "all.yaml")
    assert (code, out) == (0, "all.yaml: this-cluster: 4 GPUs, 3 switches, 76 links\n")
    assert "note: taken from NCCL dump and ibnetdiscover" in err
    found = load_topology("all.yaml")
    assert found.gpus == ("n1/gpu0", "n1/gpu1", "n2/gpu0", "n2/gpu1")
    assert found.rates()["n1/gpu1", "leaf"] == 25
    assert "2 hosts have ports like this one (n2) and are taken for machines like it" in err
    assert "2 hosts have other ports: login, store are left out" in err
    code, out, err = run(capsys, "--set", "hosts=n2", "-o", "one.yaml")
    assert (code, out) == (0, "one.yaml: this-cluster: 2 GPUs, 2 switches, 38 links\n")


def test_what_to_run_where_the_network_is_not_told(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_box(box)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    code, out, err = run(capsys, "-o", "a.yaml")
    assert (code, out.split(": ")[1]) == (0, "this-machine")
    assert "ibnetdiscover sees no host called elsewhere, but n1, n2" in " ".join(err.split())
    monkeypatch.setattr("socket.gethostname", lambda: "N2")
    box.answer("ibnetdiscover", FABRIC.replace("mlx5_1", "rocep1"))
    code, out, err = run(capsys, "-o", "b.yaml")
    assert (code, out.split(": ")[1]) == (0, "this-machine")
    assert "machine and network do not fit together" in err
    assert "which port of this-machine is that?" in " ".join(err.split())
    box.put("ibnetdiscover", "echo 'must be root' >&2; exit 1")
    assert "the InfiniBand network is not known" not in run(capsys, "-o", "c.yaml")[2]
    Path("infiniband/mlx5_0").mkdir(parents=True)
    err = " ".join(run(capsys, "-o", "d.yaml")[2].split())
    assert "the InfiniBand network is not known: run 'ibnetdiscover > fabric.out' as root" in err


def test_more_gpus_and_a_matrix_beat_hwloc_without_nvlink(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    box.answer("lstopo-no-graphics", TWO_SOCKETS)  # three GPUs
    box.answer("nvidia-smi", MATRIX)  # two of them
    assert "taken from lstopo" in run(capsys, "-o", "a.yaml")[2]
    three = MATRIX.replace("mlx5_0\tCPU", "GPU2\tCPU").replace("mlx5_0", "GPU2")
    three = three.replace("PIX", "NV18").replace("SYS", "NV18")
    box.answer("nvidia-smi", three)
    assert "taken from nvidia-smi" in run(capsys, "-o", "b.yaml")[2]


def test_tools_that_fail(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detecting, "SECONDS", 0.3)
    box.put("rocm-smi", "read line < /dev/tty || while true; do :; done")
    box.put("nvidia-smi", "echo 'has failed: no driver'; exit 9")
    box.put("ibnetdiscover", "echo nonsense")
    (box.bin / "lstopo").write_text("no program")
    (box.bin / "lstopo").chmod(0o755)
    code, _, err = run(capsys)
    assert code == 1
    assert "rocm-smi       fails: no answer within 0.3 s" in err
    assert "nvidia-smi     fails: exit code 9, has failed: no driver" in err
    assert "ibnetdiscover  this machine (ibnetdiscover):1: 'nonsense' is no line of ibnet" in err
    assert "lstopo         fails: Exec format error" in err


def test_settings_go_to_the_reader_that_knows_them(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    box.answer("nvidia-smi", MATRIX)
    code, _, _ = run(capsys, "--set", "nvlink=25", "-o", "this.yaml")
    assert code == 0
    assert load_topology("this.yaml").rates()["gpu0", "gpu1"] == 450
    code, _, err = run(capsys, "--set", "nvlnk=25")
    assert code == 1
    assert "no tool's output has a setting 'nvlnk'; did you mean 'nvlink'?" in err
