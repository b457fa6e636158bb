"""InfraGraph: devices, instances and edges; slices, schemes, devices in devices, bad files."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import yaml
from real_files import read_as

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Topology, check_connected

TEXT = """\
name: Two Hosts
devices:
- name: card
  components:
  - {name: slot, choice: custom, count: 1, custom: {type: pcie}}
  - {name: port, choice: port, count: 1}
  links:
  - {name: serdes}
  edges:
  - {ep1: {component: slot}, ep2: {component: port}, scheme: one2one, link: serdes}
- name: host
  components:
  - {name: cpu, choice: cpu, count: 1}
  - {name: dram, choice: memory, count: 2}
  - {name: xpu, choice: xpu, count: 2}
  - {name: nvsw, choice: switch, count: 1}
  - {name: card, choice: device, count: 2}
  links:
  - {name: pcie, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 48}}}
  - {name: nvlink}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: nvlink}
  - {ep1: {component: "xpu[0:2]"}, ep2: {component: "cpu[0]"}, scheme: many2many, link: pcie}
  - {ep1: {component: dram}, ep2: {component: cpu}, scheme: many2many, link: pcie}
  - {ep1: {device: "card[0:2]", component: "slot[0]"}, ep2: {component: xpu}, scheme: one2one,
     link: pcie}
- name: tor
  components:
  - {name: asic, choice: switch, count: 1}
  - {name: port, choice: port, count: 4}
  links:
  - {name: ic}
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
instances:
- {name: h, device: host, count: 2}
- {name: rack, device: tor, count: 1}
links:
- {name: eth, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}}}
edges:
- ep1: {instance: "h[0]", component: "card[0:2].port[0]"}
  ep2: {instance: "rack[0]", component: "port[0:2]"}
  scheme: one2one
  link: eth
- ep1: {instance: "h[-1]", component: "card.port"}
  ep2: {instance: rack, component: "port[2:]"}
  scheme: one2one
  link: eth
"""
RATES = "nvlink=450,serdes=none,ic=none"


def load(text: str, rates: str = RATES) -> Topology:
    return read_as("infragraph", text, "infra.yaml", {"rates": rates} if rates else {})


def test_what_becomes_what() -> None:
    topology = load(TEXT)
    assert topology.name == "two-hosts"
    assert topology.gpus == ("h0/xpu0", "h0/xpu1", "h1/xpu0", "h1/xpu1")
    assert {frozenset(ends): rate for ends, rate in topology.directed().items()} == {
        **{frozenset((f"h{h}/xpu0", f"h{h}/xpu1")): 450 + 48 for h in range(2)},  # switch and CPU
        **{frozenset((f"h{h}/xpu{x}", "rack0-asic0")): 48 for h in range(2) for x in range(2)},
    }
    check_connected(topology)


def test_json_is_the_same() -> None:
    assert load(json.dumps(yaml.safe_load(TEXT))) == load(TEXT)
    wrapped = load(json.dumps({"infrastructure": yaml.safe_load(TEXT)}))
    assert wrapped == load(TEXT)


def test_links_without_a_bandwidth_are_asked_for() -> None:
    with pytest.raises(
        TopologyError, match=r"bytes a second: ic, nvlink, serdes; give them.*--set"
    ):
        load(TEXT, "")
    with pytest.raises(TopologyError, match=r"rates: no link is called 'nvlin'; did you mean 'nvl"):
        load(TEXT, RATES + ",nvlin=3")
    for bad in ("nvlink=0", "nvlink", "nvlink=fast"):
        with pytest.raises(TopologyError, match=r"infra\.yaml: rates: "):
            load(TEXT, bad)
    gigatransfers = TEXT.replace("gigabytes_per_second", "gigatransfers_per_second")
    with pytest.raises(TopologyError, match=r"bytes a second: pcie; give them"):
        load(gigatransfers)


def test_rings_and_the_older_flag() -> None:
    ring = TEXT.replace("count: 2, custom", "count: 2").replace(
        "{ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: nvlink}",
        "{ep1: {component: xpu}, ep2: {component: xpu}, scheme: ring, link: nvlink}",
    )
    directed = load(ring).directed()
    assert directed["h0/xpu0", "h0/xpu1"] == 450 + 48
    older = TEXT.replace("scheme: many2many", "many2many: true").replace(
        "  scheme: one2one\n", "  many2many: false\n"
    )
    assert load(older) == load(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device: host, count: 2", "device: hots, count: 2", "no device is called 'hots'; did you"),
        ("device: host, count: 2", "device: host, count: 0", "count '0' is not between 1 and"),
        ("count: 2}\n- {name: rack", "count: 99999}\n- {name: rack", "more than 200,000 comp"),
        ("h[0]", "g[0]", "no instance is called 'g[0]'"),
        ("h[0]", "h[2]", "'h[2]': [2] goes beyond the 2 there are"),
        ("h[0]", "h[a]", "'h[a]': [a] is not a slice such as [0:2]"),
        ("h[0]", "h[::0]", "has a step of 0"),
        ("port[0:2]", "port[0:3]", "one2one joins 2 ends with 3: as many are needed"),
        ("port[0:2]", "prt[0:2]", "no component 'prt[0:2]' in 'tor'; did you mean 'port'?"),
        ("port[0:2]", "port[3:9]", "goes beyond the 4 there are"),
        ("link: eth", "link: eht", "no link is called 'eht' here; did you mean 'eth'?"),
        ("scheme: one2one\n  link", "scheme: tree\n  link", "scheme 'tree' is none of one2one"),
        ("card[0:2].port[0]", "card[0:2]", "is a device, not a component"),
        ("gigabits_per_second: 400", "gigabits_per_second: 400, gigabytes_per_second: 50",
         "one bandwidth in 2 figures, gigabits_per_second, gigabytes_per_second: leave the one"),
        ("choice: gigabits_per_second", "choice: gigabytes_per_second",
         "the bandwidth's choice is 'gigabytes_per_second', and it has gigabits_per_second"),
        ("- {name: eth, ", "- {name: eth}\n- {name: eth, ", "a second link 'eth': which of"),
        ("{name: dram, choice", "{name: cpu, choice", "a second component 'cpu' in 'host'"),
        ("- name: tor", "- name: host", "a second device 'host'"),
        ("choice: xpu", "choice: npu", "no component of choice xpu in an instance"),
        ("- {name: slot,", "- {name: card, choice: device, count: 1}\n  - {name: slot,",
         "device 'card' holds itself, or too deep"),
        ("gigabits_per_second: 400", "gigabits_per_second: 0", "gigabits_per_second: 0 must"),
        ("devices:", "devices: 3\nothers:", "devices must be a list, not '3'"),
        ('ep1: {instance: "h[0]", component: "card[0:2].port[0]"}', "ep1: 3", "ep1 must be"),
    ],
)  # fmt: skip
def test_bad_files(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(TopologyError) as caught:
        load(TEXT.replace(old, new, 1))
    assert message in str(caught.value)
    assert str(caught.value).startswith("infra.yaml")


def test_a_link_that_never_limits_joins_no_two_gpus() -> None:
    with pytest.raises(TopologyError, match=r"h\.0\.xpu\.0 and h\.0\.xpu\.1 are one node"):
        load(TEXT, "nvlink=none,serdes=none,ic=none")


def test_bandwidth_of_bits() -> None:
    slower = TEXT.replace("gigabits_per_second: 400", "gigabits_per_second: 100")
    assert load(slower).directed()["h0/xpu0", "rack0-asic0"] == Fraction(25, 2)


def test_two_edges_of_different_rates_are_named() -> None:
    edge = "  - {ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: nvlink}\n"
    assert edge in TEXT
    slower = load(TEXT.replace(edge, edge + edge.replace("link: nvlink", "link: pcie")))
    assert slower == load(TEXT)
    assert "h.0.xpu.0 - h.0.nvsw.0 (line 23)" in slower.notes[0]


def test_units_of_rates() -> None:
    assert load(TEXT, RATES.replace("450", "3600Gb/s")) == load(TEXT)
