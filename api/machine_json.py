"""The JSON form of a recorded machine: small, versioned, strict, readable by people.

    {
      "version": 1,
      "name": "two-gpus",
      "source": "where the facts come from, in words",
      "gpus": [
        {"uuid": "GPU-…", "index": 0, "product_name": "…"},
        {"uuid": "GPU-…", "index": 1, "product_name": "…"}
      ],
      "levels": ["X PIX", "PIX X"],
      "nvlinks": ["X 2", "2 X"],
      "numa_nodes": [0, null],
      "nics": [{"name": "mlx5_0", "levels": "PIX NODE", "numa_node": 0}],
      "mig_devices": [{"parent_uuid": "GPU-…", "uuid": "MIG-…", "profile": "1g.10gb", …}],
      "mig_profiles": {"0-1": [{"name": "1g.10gb", "placements": "0-6:1", …}]}
    }

`?` stands for unknown. A GPU has the fields of dracaena.api.machine.Gpu, a MIG device those of
dracaena.api.mig.MigDevice; what is unknown is left out. `nics`, `mig_devices` and `mig_profiles` may be missing.
`mig_profiles` says how GPUs can be divided, by ordinals (`0-3,6`): each profile has the fields of
dracaena.api.mig_geometry.MigProfile, its placements as `starts:size`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from itertools import combinations
from typing import Any, TypeVar

import msgspec

from dracaena.api.confidential import CC_MODES
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice
from dracaena.api.mig_profile_json import MachineJsonError, profile_documents, with_profiles
from dracaena.api.names import DNS_LABEL
from dracaena.api.topology import SELF, Nic, Topology, TopologyError

VERSION = 1
"""Version of the form that is written. A reader refuses any other by number."""

D = TypeVar("D", Gpu, MigDevice)

__all__ = ["VERSION", "MachineJsonError", "decode_machine", "encode_machine"]

_UNKNOWN = "?"
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MIG_UUID = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class _NicDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    levels: str
    numa_node: int | None = None


class _MachineDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    name: str
    gpus: list[dict[str, Any]]
    levels: list[str]
    nvlinks: list[str]
    numa_nodes: list[int | None]
    source: str = ""
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    nics: list[_NicDocument] = []
    mig_devices: list[dict[str, Any]] = []
    mig_profiles: dict[str, list[dict[str, Any]]] = {}


class _VersionOnly(msgspec.Struct, frozen=True):
    version: int


def decode_machine(content: bytes) -> Machine:
    """Read a recorded machine. Raises MachineJsonError with the place (`$.gpus[2].index`) of the first thing wrong."""
    try:
        version = msgspec.json.decode(content, type=_VersionOnly).version
        if version != VERSION:
            raise MachineJsonError(f"a recorded machine of version {version}, expected {VERSION} - at `$.version`")
        document = msgspec.json.decode(content, type=_MachineDocument)
        machine = Machine(
            name=document.name,
            gpus=with_profiles(
                tuple(_gpu(gpu, f"$.gpus[{at}]") for at, gpu in enumerate(document.gpus)), document.mig_profiles
            ),
            topology=_topology(document),
            driver_version=document.driver_version,
            cuda_driver_version=document.cuda_driver_version,
            source=document.source,
            mig_devices=tuple(_mig(mig, f"$.mig_devices[{at}]") for at, mig in enumerate(document.mig_devices)),
        )
        machine.check()
    except msgspec.MsgspecError as error:
        raise MachineJsonError(f"not a recorded machine: {error}") from error
    except (TopologyError, UnicodeDecodeError, RecursionError) as error:
        raise MachineJsonError(f"not a recorded machine: {error}") from error
    return machine


def encode_machine(machine: Machine) -> bytes:
    """Return the JSON form, one GPU and one matrix row per line. decode_machine returns the same machine."""
    topology = machine.topology
    document: dict[str, Any] = {"version": VERSION, "name": machine.name, "source": machine.source}
    document["driver_version"] = machine.driver_version
    document["cuda_driver_version"] = machine.cuda_driver_version
    document["gpus"] = [_known(gpu) for gpu in machine.gpus]
    document["levels"] = _rows(topology, lambda link: _UNKNOWN if link.level is None else link.level.name)
    document["nvlinks"] = _rows(topology, lambda link: _UNKNOWN if link.nvlinks is None else str(link.nvlinks))
    document["numa_nodes"] = list(topology.numa_nodes)
    document["nics"] = [_nic_document(nic) for nic in topology.nics]
    document["mig_devices"] = [_known(mig) for mig in machine.mig_devices] or None
    document["mig_profiles"] = profile_documents(machine.gpus) or None
    lines = [f"  {json.dumps(key)}: {_value_text(value)}" for key, value in document.items() if value not in (None, "")]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _known(device: Gpu | MigDevice) -> dict[str, Any]:
    return {key: value for key, value in asdict(device).items() if value is not None and key != "mig_profiles"}


def _device(document: dict[str, Any], type_: type[D], path: str) -> D:
    unknown = sorted(set(document) - {field.name for field in fields(type_) if field.name != "mig_profiles"})
    if unknown:
        raise MachineJsonError(f"not a recorded machine: unknown key {unknown[0]!r} - at `{path}`")
    try:
        return msgspec.convert(document, type=type_)
    except msgspec.ValidationError as error:
        raise MachineJsonError(f"not a recorded machine: {error} - at `{path}`") from error


def _mig(document: dict[str, Any], path: str) -> MigDevice:
    mig = _device(document, MigDevice, path)
    if not _MIG_UUID.fullmatch(mig.uuid):
        raise MachineJsonError(
            f"not a recorded machine: {mig.uuid!r} is not the UUID of a MIG device - at `{path}.uuid`"
        )
    if not DNS_LABEL.fullmatch(mig.device_name):
        raise MachineJsonError(f"not a recorded machine: {mig.profile!r} is not a profile - at `{path}.profile`")
    numbers = (mig.gpu_instance_id, mig.compute_instance_id, mig.start, mig.size, *(mig.access_minors or ()))
    counts = () if mig.attributes is None else asdict(mig.attributes).values()
    if min(*numbers, *counts, mig.memory_bytes or 0, mig.multiprocessors or 0) < 0:
        raise MachineJsonError(f"not a recorded machine: a number is negative - at `{path}`")
    return mig


def _gpu(document: dict[str, Any], path: str) -> Gpu:
    gpu = _device(document, Gpu, path)
    if not _UUID.fullmatch(gpu.uuid):
        raise MachineJsonError(f"not a recorded machine: {gpu.uuid!r} is not the UUID of a GPU - at `{path}.uuid`")
    if gpu.pci_bus_id is not None and not _PCI_BUS_ID.fullmatch(gpu.pci_bus_id):
        raise MachineJsonError(
            f"not a recorded machine: {gpu.pci_bus_id!r} is not a PCI address - at `{path}.pci_bus_id`"
        )
    if gpu.cc_mode is not None and gpu.cc_mode not in CC_MODES:
        raise MachineJsonError(
            f"not a recorded machine: {gpu.cc_mode!r} is none of {', '.join(CC_MODES)} - at `{path}.cc_mode`"
        )
    for key in ("index", "minor", "memory_bytes", "pcie_generation", "pcie_width", "nvlink_count", "nvlink_generation"):
        if (getattr(gpu, key) or 0) < 0:
            raise MachineJsonError(f"not a recorded machine: {getattr(gpu, key)} is negative - at `{path}.{key}`")
    return gpu


def _topology(document: _MachineDocument) -> Topology:
    count = len(document.gpus)
    levels = _matrix(document.levels, count, "$.levels")
    nvlinks = _matrix(document.nvlinks, count, "$.nvlinks")
    return Topology(
        gpu_count=count,
        pairs=tuple(
            Link(
                _level(levels[a][b], f"$.levels[{a}]"),
                None if nvlinks[a][b] == _UNKNOWN else _count(nvlinks[a][b], f"$.nvlinks[{a}]"),
            )
            for a, b in combinations(range(count), 2)
        ),
        numa_nodes=tuple(document.numa_nodes),
        nics=tuple(_nic(nic, count, f"$.nics[{at}]") for at, nic in enumerate(document.nics)),
    )


def _matrix(rows: list[str], count: int, path: str) -> list[list[str]]:
    """Split rows of tokens; square, `X` on the diagonal and nowhere else, both halves equal."""
    matrix = [row.split() for row in rows]
    if len(matrix) != count:
        raise MachineJsonError(f"{len(matrix)} rows, expected one for each of {count} GPUs - at `{path}`")
    for a, cells in enumerate(matrix):
        if len(cells) != count:
            raise MachineJsonError(f"{len(cells)} cells, expected one for each of {count} GPUs - at `{path}[{a}]`")
        for b, cell in enumerate(cells):
            if (cell == SELF) != (a == b):
                raise MachineJsonError(f"{cell!r} in place {b}, expected {SELF!r} on the diagonal - at `{path}[{a}]`")
    for a, b in combinations(range(count), 2):
        if matrix[a][b] != matrix[b][a]:
            seen = f"{matrix[b][a]!r} from {b} to {a}, expected {matrix[a][b]!r} as from {a} to {b}"
            raise MachineJsonError(f"{seen} - at `{path}[{b}]`")
    return matrix


def _level(token: str, path: str) -> LinkLevel | None:
    if token == _UNKNOWN:
        return None
    try:
        return LinkLevel.from_token(token)
    except ValueError as error:
        raise MachineJsonError(f"{error} - at `{path}`") from error


def _count(token: str, path: str) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 3):
        raise MachineJsonError(f"{token!r} is not a number of NVLinks - at `{path}`")
    return int(token)


def _nic(document: _NicDocument, count: int, path: str) -> Nic:
    tokens = document.levels.split()
    if len(tokens) != count:
        raise MachineJsonError(f"{len(tokens)} levels, expected one for each of {count} GPUs - at `{path}.levels`")
    levels = tuple(_level(token, f"{path}.levels") for token in tokens)
    return Nic(document.name, levels, document.numa_node)


def _nic_document(nic: Nic) -> dict[str, Any]:
    levels = " ".join(_UNKNOWN if level is None else level.name for level in nic.levels)
    document: dict[str, Any] = {"name": nic.name, "levels": levels}
    return document if nic.numa_node is None else document | {"numa_node": nic.numa_node}


def _rows(topology: Topology, token: Callable[[Link], str]) -> list[str]:
    """Draw one of the two matrices with its columns under each other."""
    ordinals = range(topology.gpu_count)
    matrix = [[SELF if a == b else token(topology.link(a, b)) for b in ordinals] for a in ordinals]
    width = max((len(cell) for row in matrix for cell in row), default=0)
    return [" ".join(cell.ljust(width) for cell in row).rstrip() for row in matrix]


def _value_text(value: Any, indent: str = "  ") -> str:
    """Write a list of rows or objects one per line, even within an object; anything else on one line."""
    if isinstance(value, dict):
        inner = (f"{indent}  {json.dumps(key)}: {_value_text(each, f'{indent}  ')}" for key, each in value.items())
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    if not isinstance(value, list) or not value or not isinstance(value[0], str | dict):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"{indent}  {json.dumps(item, ensure_ascii=False)}" for item in value) + f"\n{indent}]"
