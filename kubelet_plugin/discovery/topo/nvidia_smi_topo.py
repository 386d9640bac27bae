"""Reads the text of `nvidia-smi topo -m` as people share it. For files and examples; a node asks NVML itself.

The text hides the PCIe level of a pair behind its NVLinks (NV#): then the level stays unknown.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.topology import SELF, Nic, Topology
from dracaena.kubelet_plugin.discovery.topo.layouts import Affinity, Header, Row, TopoTextError, quote
from dracaena.kubelet_plugin.discovery.topo.table import EXPECTED_MATRIX, Table, is_header_line, read_table, split_lines

_NIC_LEGEND = re.compile(r"[^A-Za-z0-9]*(NIC[0-9]{1,6}):\s*(\S{1,253})\s*")
_NUMA_NODE = re.compile(r"([0-9]{1,6})(?:-\1)?")
_NUMBER_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_MAX_NUMA_NODES = 1024
"""Linux knows no more (CONFIG_NODES_SHIFT is at most 10), and resource.kubernetes.io/numaNode allows no more."""
_PLACEHOLDER_UUIDS = uuid.UUID("0d6b4b8e-6d0c-5a57-9c0f-6a6f1f4f8b5e")
"""Namespace of the UUIDs that replace the ones a matrix does not show. Picked once, at random."""


@dataclass(frozen=True, slots=True)
class TopoMatrix:
    """What a matrix says, as printed and as understood. Sequences are in the order of the printed columns."""

    topology: Topology
    """The links by position in the matrix; SOC is read as SYS, the level behind NV# is unknown."""
    gpus: tuple[int, ...]
    """GPU numbers as printed: 3 for `GPU3`."""
    matrix: tuple[tuple[str, ...], ...]
    """GPU×GPU tokens as printed, `X` on the diagonal."""
    nics: tuple[str, ...]
    """Labels of the NIC columns as printed."""
    nic_legend: tuple[tuple[str, str], ...]
    """Device names of NICs if the text has a legend: (`NIC0`, `mlx5_0`)."""
    gpu_nic: tuple[tuple[str, ...], ...]
    """GPU×NIC tokens as printed."""
    cpu_affinity: tuple[str | None, ...]
    numa_affinity: tuple[str | None, ...]
    """As printed: a number, a list such as `0,3-9`, `N/A`; None where the cell is empty or its column unclear."""
    gpu_numa_id: tuple[str | None, ...]


def decode_text(content: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with its mark as PowerShell's `>` writes it.

    Raises TopoTextError for anything else.
    """
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TopoTextError(
            line, f"bytes that are not {encoding.removesuffix('-sig').upper()} text", EXPECTED_MATRIX
        ) from error


def parse_topo_matrix(text: str) -> TopoMatrix:
    """Read the first link matrix of a text and its legend, if any.

    Raises TopoTextError, naming the line, if there is no matrix, it is cut off, a token or column is unknown, or the
    matrix contradicts itself. Never skips anything in the matrix. Cost: linear in the text.
    """
    lines = split_lines(text)
    table = read_table(lines)
    count = len(table.header.gpus)
    _check_diagonal(table.gpu_rows)
    pairs = tuple(_pair(table.gpu_rows, a, b) for a, b in combinations(range(count), 2))
    _check_nic_rows(table)
    legend = _nic_legend(lines, table)
    numa_affinity = _column(table.gpu_rows, Affinity.NUMA)
    gpu_numa_id = _column(table.gpu_rows, Affinity.GPU_NUMA_ID)
    topology = Topology(
        gpu_count=count,
        pairs=pairs,
        numa_nodes=_numa_nodes(numa_affinity, gpu_numa_id),
        nics=_nics(table.header, table.gpu_rows, legend),
    )
    topology.check()
    return TopoMatrix(
        topology=topology,
        gpus=table.header.gpus,
        matrix=tuple(row.links[:count] for row in table.gpu_rows),
        nics=table.header.nics,
        nic_legend=tuple((nic, legend[nic]) for nic in table.header.nics if nic in legend),
        gpu_nic=tuple(row.links[count:] for row in table.gpu_rows),
        cpu_affinity=_column(table.gpu_rows, Affinity.CPU),
        numa_affinity=numa_affinity,
        gpu_numa_id=gpu_numa_id,
    )


def machine_from_matrix(matrix: TopoMatrix, name: str) -> Machine:
    """Return a machine with these links. `index` is the GPU's number in the matrix.

    A matrix shows no UUIDs, so each GPU gets one made from `name` and its number: equal input, equal UUIDs.
    """
    gpus = tuple(
        Gpu(uuid=f"GPU-{uuid.uuid5(_PLACEHOLDER_UUIDS, f'{name}/GPU{number}')}", index=number) for number in matrix.gpus
    )
    return Machine(
        name, gpus, matrix.topology, source="imported from the text of nvidia-smi topo -m; UUIDs are made up"
    )


def _column(rows: Sequence[Row], column: Affinity) -> tuple[str | None, ...]:
    return tuple(row.affinity.get(column) for row in rows)


def _check_diagonal(rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        for other, token in enumerate(row.links[: len(rows)]):
            if (token == SELF) != (place == other):
                expected = f"{SELF!r} there and nowhere else" if place == other else f"a link: {SELF!r} is a GPU itself"
                raise TopoTextError(row.line, f"{token!r} from {row.label} to {rows[other].label}", expected)


def _pair(rows: Sequence[Row], a: int, b: int) -> Link:
    forth, back = _link(rows[a], rows[b].label, rows[a].links[b]), _link(rows[b], rows[a].label, rows[b].links[a])
    if forth != back:
        raise TopoTextError(
            rows[b].line,
            f"{rows[b].links[a]} from {rows[b].label} to {rows[a].label}",
            f"{rows[a].links[b]} as in line {rows[a].line}",
        )
    return forth


def _link(row: Row, peer: str, token: str) -> Link:
    try:
        return Link.from_token(token)
    except ValueError as error:
        raise TopoTextError(row.line, f"{quote(token)} from {row.label} to {peer}", f"a link ({error})") from error


def _level(row: Row, nic: str, token: str) -> LinkLevel:
    try:
        return LinkLevel.from_token(token)
    except ValueError as error:
        raise TopoTextError(row.line, f"{quote(token)} from {row.label} to {nic}", "a PCIe level") from error


def _check_nic_rows(table: Table) -> None:
    """A NIC's row must agree with the GPUs' rows."""
    count = len(table.header.gpus)
    for place, nic_row in enumerate(table.nic_rows):
        if nic_row.links[count + place] != SELF:
            seen = f"{nic_row.links[count + place]!r} from {nic_row.label} to itself"
            raise TopoTextError(nic_row.line, seen, repr(SELF))
        for gpu, gpu_row in enumerate(table.gpu_rows):
            forth = _level(nic_row, gpu_row.label, nic_row.links[gpu])
            if forth != _level(gpu_row, nic_row.label, gpu_row.links[count + place]):
                seen = f"{nic_row.links[gpu]} from {nic_row.label} to {gpu_row.label}"
                expected = f"{gpu_row.links[count + place]} as in line {gpu_row.line}"
                raise TopoTextError(nic_row.line, seen, expected)


def _nics(header: Header, rows: Sequence[Row], legend: Mapping[str, str]) -> tuple[Nic, ...]:
    names = [legend.get(label, label) for label in header.nics]
    if len(set(names)) != len(names):
        names = list(header.nics)
    first = len(header.gpus)
    return tuple(
        Nic(name, tuple(_level(row, label, row.links[first + place]) for row in rows))
        for place, (label, name) in enumerate(zip(header.nics, names, strict=True))
    )


def _nic_legend(lines: Sequence[str], table: Table) -> dict[str, str]:
    """Read `NIC0: mlx5_0` lines below the matrix, up to the next one; if there are none, those above it."""
    below: list[tuple[int, str]] = []
    for at in range(table.next_line, len(lines)):
        if is_header_line(lines[at]):
            break
        below.append((at, lines[at]))
    return _legend_lines(below) or _legend_lines(list(enumerate(lines[: table.header.line - 1])))


def _legend_lines(lines: Sequence[tuple[int, str]]) -> dict[str, str]:
    legend: dict[str, str] = {}
    for at, line in lines:
        match = _NIC_LEGEND.fullmatch(line)
        if match and legend.setdefault(match[1], match[2]) != match[2]:
            raise TopoTextError(at + 1, f"{match[1]} is {quote(match[2])}", f"{legend[match[1]]} as in a line before")
    return legend


def _numa_nodes(cells: Sequence[str | None], gpu_numa_ids: Sequence[str | None]) -> tuple[int | None, ...]:
    """Return the NUMA node of each GPU whose cell names exactly one.

    GPUs whose memory is in the kernel's map (GPU NUMA ID is a number: Grace systems) print a list: the node of their
    CPU, then the nodes reserved for GPU memory, which the firmware numbers after all CPUs. In such a list the lowest is
    the CPU's, provided that the lists of different CPUs do not overlap. Any other list leaves the node unknown.
    """
    coherent = all(cell is not None and cell.isascii() and cell.isdigit() for cell in gpu_numa_ids)
    lists = [_numbers(cell) for cell in cells]
    different = {numbers for numbers in lists if numbers}
    separate = len(different) > 1 and len(frozenset().union(*different)) == sum(map(len, different))
    return tuple(
        _numa_node(cell) if not (coherent and separate and numbers) else min(numbers)
        for cell, numbers in zip(cells, lists, strict=True)
    )


def _numa_node(cell: str | None) -> int | None:
    match = _NUMA_NODE.fullmatch(cell or "")
    return int(match[1]) if match and int(match[1]) < _MAX_NUMA_NODES else None


def _numbers(cell: str | None) -> frozenset[int]:
    """Return the numbers of a list such as `0,3-9`; nothing for anything else."""
    numbers: set[int] = set()
    for part in (cell or "").split(","):
        match = _NUMBER_RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) >= _MAX_NUMA_NODES:
            return frozenset()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)
