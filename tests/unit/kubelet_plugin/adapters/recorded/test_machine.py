from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine_json import encode_machine
from dracaena.api.tree import build_tree
from dracaena.kubelet_plugin.adapters.recorded.machine import RecordedMachine, machine_names, read_machine

EXPECTED = {
    "7-gpu-box": (7, {"PIX", "PHB"}),
    "a100-pcie-pairs-cross-numa": (6, {"NV12", "NODE", "SYS"}),
    "a100-sxm4-x4": (4, {"NV4"}),
    "a30-x2": (2, {"NODE"}),
    "a5000-pix-pxb": (8, {"PIX", "PXB", "SYS"}),
    "dgx-1v": (8, {"NV1", "NV2", "SYS"}),
    "dgx-2": (16, {"NV6"}),
    "dgx-a100": (8, {"NV12"}),
    "gb200-tray": (4, {"NV18"}),
    "h100-pcie-bridged-numa-3-5": (8, {"NV12", "NODE", "SYS"}),
    "h100-x1": (1, set()),
    "h200-nic10": (8, {"NV18"}),
    "hgx-h100": (8, {"NV18"}),
    "l40s-x4": (4, {"PIX", "NODE"}),
    "rtx-pro-6000-x2": (2, {"NODE"}),
    "rtx4090-all-sys": (8, {"SYS"}),
}


def test_the_machines_of_the_package_are_these() -> None:
    assert machine_names() == tuple(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_machine_has_its_gpus_and_links(name: str) -> None:
    machine = read_machine(name)
    count, tokens = EXPECTED[name]
    assert (machine.name, len(machine.gpus)) == (name, count)
    assert {link.token for link in machine.topology.pairs} == tokens
    assert machine.source
    build_tree(machine.topology).check()


@pytest.mark.parametrize("name", EXPECTED)
def test_levels_that_nvlinks_hide_in_a_text_are_not_invented(name: str) -> None:
    topology = read_machine(name).topology
    assert [link for link in topology.pairs if link.nvlinks and link.level is not None] == []


@pytest.mark.parametrize("name", EXPECTED)
def test_link_counts_of_gpus_agree_with_their_pairs(name: str) -> None:
    """The count of a GPU is the sum of its pairs, or behind NVSwitches what every pair shows."""
    machine = read_machine(name)
    for ordinal, gpu in enumerate(machine.gpus):
        links = [machine.topology.link(ordinal, peer).nvlinks for peer in machine.topology.nvlink_peers(ordinal)]
        if gpu.nvlink_count is not None:
            assert gpu.nvlink_count in (sum(filter(None, links)), *links)


def test_an_endless_file_is_refused_and_not_read_into_memory() -> None:
    with pytest.raises(BadInputError, match="/dev/zero: is larger than 1 MiB, expected a recorded machine"):
        read_machine("/dev/zero")


def test_an_unknown_name_says_what_makes_a_path() -> None:
    with pytest.raises(
        BadInputError, match=r"'mine', expected a file \(its path with a / or .json at the end\) or one"
    ):
        read_machine("mine")


def test_the_three_plus_five_box_and_its_crossing_bridge() -> None:
    machine = read_machine("h100-pcie-bridged-numa-3-5")
    assert Counter(machine.topology.numa_nodes) == {0: 3, 1: 5}
    assert machine.topology.nvlink_peers(0) == (5,)


def test_nic_levels_are_recorded() -> None:
    assert len(read_machine("h200-nic10").topology.nics) == 10


@pytest.mark.parametrize("name", EXPECTED)
def test_gpus_that_can_be_divided_say_whether_they_are_in_mig_mode(name: str) -> None:
    """Or nothing would be divided: a GPU that does not say has no MIG."""
    assert all(gpu.mig_enabled is not None for gpu in read_machine(name).gpus if gpu.mig_profiles)


def test_no_two_machines_share_a_gpu() -> None:
    uuids = [gpu.uuid for name in EXPECTED for gpu in read_machine(name).gpus]
    assert len(set(uuids)) == len(uuids)


@pytest.mark.parametrize("name", EXPECTED)
def test_files_are_in_the_form_that_is_written(name: str) -> None:
    path = Path(__file__).parents[5] / "kubelet_plugin" / "machines" / f"{name}.json"
    assert path.read_bytes() == encode_machine(read_machine(name))


def test_a_path_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(encode_machine(read_machine("l40s-x4")))
    assert RecordedMachine(str(file)).read() == read_machine("l40s-x4")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInputError, match=r"'dgx-9'.*7-gpu-box, .*rtx4090-all-sys"):
        read_machine("dgx-9")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"gone\.json: cannot be read: No such file"):
        read_machine(str(tmp_path / "gone.json"))


def test_a_broken_file_is_named_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps({"version": 1, "name": "x"}), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"broken.json: not a recorded machine: .*gpus"):
        read_machine(str(file))
