"""Matrices as people print them, against what they say by a truth written beside them.

Our own set always runs. DRACAENA_TOPOLOGIES names a folder with more: topologies/ and topologies-truth.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.links import Link
from dracaena.api.resourceslice import decode_pool, encode_devices
from dracaena.api.tree import build_tree
from dracaena.kubelet_plugin.discovery.topo.layouts import TopoTextError
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import (
    TopoMatrix,
    decode_text,
    machine_from_matrix,
    parse_topo_matrix,
)
from dracaena.kubelet_plugin.discovery.topo.table import read_table, split_lines

OWN = Path(__file__).parents[4] / "fixtures"


@dataclass(frozen=True)
class Case:
    file: Path
    truth: dict[str, Any]

    @property
    def readable(self) -> bool:
        """A matrix must have all its rows, once, agree with itself and use known tokens."""
        return self.truth["complete"] and self.truth["symmetric"] and "refused_at_line" not in self.truth

    def text(self) -> str:
        return decode_text(self.file.read_bytes())

    def read(self) -> TopoMatrix:
        return parse_topo_matrix(self.text())


def cases() -> list[Case]:
    folders = [OWN]
    if "DRACAENA_TOPOLOGIES" in os.environ:
        folders.append(Path(os.environ["DRACAENA_TOPOLOGIES"]))
    found: list[Case] = []
    for folder in folders:
        truth = json.loads((folder / "topologies-truth.json").read_text(encoding="utf-8"))
        found.extend(Case(folder / "topologies" / name, facts) for name, facts in sorted(truth.items()))
    return found


READABLE = [pytest.param(case, id=case.file.name) for case in cases() if case.readable]
REFUSED = [pytest.param(case, id=case.file.name) for case in cases() if not case.readable]


def test_every_file_of_our_own_set_has_its_truth() -> None:
    assert {case.file for case in cases() if case.file.is_relative_to(OWN)} == set((OWN / "topologies").iterdir())


@pytest.mark.parametrize("case", READABLE)
def test_text_says_what_its_truth_says(case: Case) -> None:
    matrix, truth = case.read(), case.truth
    assert [list(row) for row in matrix.matrix] == truth["matrix"]
    assert [list(row) for row in matrix.gpu_nic] == truth["gpu_nic"]
    rows = read_table(split_lines(case.text())).gpu_rows
    assert {f"GPU{gpu}": list(row.cells) for gpu, row in zip(matrix.gpus, rows, strict=True)} == truth["affinity_cells"]
    assert list(matrix.topology.numa_nodes) == truth.get("numa_nodes", list(matrix.topology.numa_nodes))
    names = [nic.name for nic in matrix.topology.nics]
    assert names == truth.get("nic_names", names)


@pytest.mark.parametrize("case", READABLE)
def test_topology_holds_the_printed_tokens_with_soc_as_sys(case: Case) -> None:
    topology = case.read().topology
    topology.check()
    build_tree(topology).check()
    for a, row in enumerate(case.truth["matrix"]):
        for b, token in enumerate(row):
            if a != b:
                assert topology.link(a, b) == Link.from_token(token)
    for a, row in enumerate(case.truth["gpu_nic"]):
        levels = [nic.levels[a] for nic in topology.nics]
        told = [level.name if level is not None else None for level in levels]
        assert told == [token.replace("SOC", "SYS") for token in row]


@pytest.mark.parametrize("case", READABLE)
def test_links_survive_the_resource_slice(case: Case) -> None:
    topology = case.read().topology
    pool = decode_pool(encode_devices(machine_from_matrix(case.read(), "node")))
    assert pool.problems == ()
    assert pool.topology.pairs == topology.pairs
    assert pool.topology.numa_nodes == topology.numa_nodes
    assert [nic.levels for nic in pool.topology.nics] == [nic.levels for nic in topology.nics]


@pytest.mark.parametrize("case", REFUSED)
def test_broken_text_is_refused_with_its_line(case: Case) -> None:
    with pytest.raises(TopoTextError) as caught:
        case.read()
    assert caught.value.line == case.truth.get("refused_at_line", caught.value.line)
    assert str(caught.value).startswith(f"line {caught.value.line}: ")
    assert caught.value.seen
    assert caught.value.expected
