"""`dracaena topology`: read a link matrix, a recorded machine or this machine, and show it in several forms."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dracaena.api.errors import BadInputError
from dracaena.cli import record
from dracaena.cli.columns import aligned, print_lines
from dracaena.cli.commands import Commands, add_driver_name
from dracaena.cli.device_set import MARK, describe_set, read_devices
from dracaena.cli.this_machine import add_nvml, read_this_machine
from dracaena.process.settings import NODE_NAME

if TYPE_CHECKING:
    from dracaena.api.machine import Machine
    from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import TopoMatrix
    from dracaena.kubelet_plugin.node.live_machine import ReadingSource

_FORMS = ("tree", "matrix", "json", "resourceslices")
_STDIN = "-"
_DEFAULT_NODE = "node"
_MOST_BYTES = 16 << 20
"""Largest text that is read: the matrix of 64 GPUs and as many NICs has some 100 KB, logs around it a few MB."""
_DESCRIPTION = """\
Read how GPUs are linked and show it as

  tree            GPUs below the PCIe level that joins them, with NUMA nodes and NVLinks
  matrix          the matrix, with the link tokens as printed
  json            the matrix for programs
  resourceslices  the YAML that a node with these links would publish
"""
_EXAMPLES = """\
examples:
  How are the GPUs of this machine linked?
      nvidia-smi topo -m | dracaena topology import -

  What are GPUs 0 and 5 of a DGX-1 worth, compared with its best pair?
      dracaena topology show --machine dgx-1v --devices 0,5

  The links, for a script
      dracaena topology show --machine dgx-1v -o json | jq .matrix[0]
"""


def register(commands: Commands) -> None:
    """Add the command with its verbs."""
    parser = commands.add_parser(
        "topology",
        help="show how the GPUs of a machine are linked",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    importing = verbs.add_parser("import", help="read the text of `nvidia-smi topo -m`")
    importing.add_argument("file", metavar="FILE", help="file with the text, - for standard input")
    _add_form(importing, f"name of the node in resourceslices (default: {_DEFAULT_NODE})")
    importing.set_defaults(run=_run_import)
    showing = verbs.add_parser("show", help="read a recorded machine, or this machine's own GPUs")
    sources = showing.add_mutually_exclusive_group(required=True)
    sources.add_argument("--machine", metavar="NAME|FILE", help="see `dracaena topology machines`")
    add_nvml(sources, showing)
    showing.add_argument(
        "--devices",
        metavar="LIST",
        help="mark these GPUs in the tree and print the set's score: numbers, UUIDs or device names, such as 0,3",
    )
    showing.add_argument(
        "--sharing",
        metavar="LIST",
        help="in resourceslices: GPUs that the node shares, like its setting of the same name: all, or indices, UUIDs "
        "and product names (default: none)",
    )
    showing.add_argument(
        "--partitions",
        action="store_true",
        help="show an HGX H100 whose Fabric Manager is in shared NVSwitch mode: only whole partitions are linked",
    )
    _add_form(showing, "name of the node in resourceslices (default: the machine's name)")
    showing.set_defaults(run=_run_show)
    record.register(verbs)
    listing = verbs.add_parser("machines", help="list the recorded machines of this package")
    listing.set_defaults(run=_run_machines)


def _add_form(parser: argparse.ArgumentParser, node_help: str) -> None:
    parser.add_argument("-o", "--output", choices=_FORMS, default="tree", help="output format (default: tree)")
    parser.add_argument("--node", metavar="NAME", help=node_help)
    add_driver_name(parser, "DRA driver name in resourceslices")


@dataclass(frozen=True, slots=True)
class _Shown:
    """The input of all output formats. `texts` holds what only a printed matrix has."""

    machine: Machine
    texts: TopoMatrix | None
    node: str
    marked: tuple[int, ...] = ()
    """Ordinals of the GPUs that --devices names."""
    shared: frozenset[str] = frozenset()
    """UUIDs of the GPUs that --sharing names."""


def _run_import(arguments: argparse.Namespace) -> int:
    from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import (
        decode_text,
        machine_from_matrix,
        parse_topo_matrix,
    )

    node = arguments.node or _DEFAULT_NODE
    try:
        matrix = parse_topo_matrix(decode_text(_read(arguments.file)))
    except BadInputError as error:
        raise BadInputError(f"{_display(arguments.file)}: {error}") from error
    _print(_Shown(machine_from_matrix(matrix, node), matrix, node), arguments)
    return 0


def _run_show(arguments: argparse.Namespace, source: ReadingSource | None = None) -> int:
    from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine

    machine = read_this_machine(arguments, source).machine if arguments.nvml else read_machine(arguments.machine)
    if arguments.partitions:
        machine = _partitioned(machine)
    marked: tuple[int, ...] = ()
    if arguments.devices is not None:
        if arguments.output != "tree":
            raise BadInputError(f"--devices marks GPUs in the tree: it cannot be combined with -o {arguments.output}")
        marked = read_devices(arguments.devices, machine, "--devices")
    shared: frozenset[str] = frozenset()
    if arguments.sharing is not None:
        if arguments.output != "resourceslices":
            raise BadInputError(
                f"--sharing says what a node publishes: it can only be combined with -o resourceslices, not with "
                f"-o {arguments.output}"
            )
        shared = _shared(arguments.sharing, machine)
    _print(_Shown(machine, None, arguments.node or machine.name, marked, shared), arguments)
    return 0


def _partitioned(machine: Machine) -> Machine:
    from dracaena.api.fabric import HGX_FABRIC

    if len(machine.gpus) != 8 or machine.topology.gpu_count != 8:
        raise BadInputError(f"--partitions: only boards of 8 GPUs have them, {machine.name} has {len(machine.gpus)}")
    gpus = tuple(replace(gpu, module_id=place) for place, gpu in enumerate(machine.gpus, start=1))
    return replace(machine, gpus=gpus, fabric=HGX_FABRIC)


def _shared(setting: str, machine: Machine) -> frozenset[str]:
    """Return the UUIDs of the GPUs that a node's setting shares. Raises BadInputError for what it would not share."""
    from dracaena.kubelet_plugin.discovery.gpu_list import GpuEntry, GpuList, GpuRole
    from dracaena.kubelet_plugin.discovery.publish.sharing import shared_gpus

    words = tuple(word for part in setting.split(",") if (word := part.strip().lower()))
    shared = shared_gpus(GpuList((GpuEntry(words, GpuRole.SHARED),)), machine)
    if shared.problems:
        raise BadInputError(f"--sharing: {'; '.join(shared.problems.values())}")
    return shared.uuids


def _run_machines(_: argparse.Namespace) -> int:
    from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine

    rows = [("NAME", "GPUS", "NUMA NODES", "LINKS", "PRODUCT")]
    for name in machine_names():
        machine = read_machine(name)
        products = sorted({gpu.product_name or "-" for gpu in machine.gpus})
        numa_nodes = {node for node in machine.topology.numa_nodes if node is not None}
        links = sorted({link.token for link in machine.topology.pairs})
        rows.append((name, str(len(machine.gpus)), str(len(numa_nodes)), " ".join(links), ", ".join(products)))
    print_lines(aligned(rows))
    return 0


def _read(file: str) -> bytes:
    try:
        if not file:
            raise BadInputError("is not a path, expected a file with the output of `nvidia-smi topo -m`")
        if file != _STDIN:
            with Path(file).open("rb") as source:
                text = source.read(_MOST_BYTES + 1)
        elif sys.stdin is None:  # a shell closed it: <&-
            raise BadInputError("is closed, expected the output of `nvidia-smi topo -m`")
        else:
            text = sys.stdin.buffer.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInputError(
            f"cannot be read: {reason}, expected a file with the output of `nvidia-smi topo -m`"
        ) from error
    if len(text) > _MOST_BYTES:
        raise BadInputError(f"is larger than {_MOST_BYTES >> 20} MiB, expected the output of `nvidia-smi topo -m`")
    return text


def _display(file: str) -> str:
    return "standard input" if file == _STDIN else file or repr(file)


def _print(shown: _Shown, arguments: argparse.Namespace) -> None:
    if arguments.output == "tree":
        from dracaena.api.tree import render_tree

        print_lines(render_tree(shown.machine, dict.fromkeys(shown.marked, MARK)))
        if shown.marked:
            print_lines(("", *describe_set(shown.machine, shown.marked)))
    elif arguments.output == "matrix":
        print_lines(aligned(_matrix_rows(_document(shown))))
    elif arguments.output == "json":
        print(_json_text(_document(shown)))
    else:
        if not re.fullmatch(NODE_NAME.pattern, shown.node):
            raise BadInputError(f"--node: {shown.node!r} is not {NODE_NAME.expected}")
        print(_resourceslices_text(shown, arguments.driver_name), end="")


def _document(shown: _Shown) -> dict[str, Any]:
    """Return the JSON form. Link tokens are as printed; a recorded machine has its own, `?` for unknown."""
    machine, texts = shown.machine, shown.texts
    topology = machine.topology
    unknown = [None] * topology.gpu_count
    levels = [["?" if level is None else level.name for level in nic.levels] for nic in topology.nics]
    return {
        "source": machine.source,
        "gpus": [f"GPU{gpu.index}" for gpu in machine.gpus],
        "matrix": texts.matrix if texts else topology.matrix(),
        "nics": texts.nics if texts else [nic.name for nic in topology.nics],
        "nic_names": dict(texts.nic_legend) if texts else {},
        "gpu_nic": texts.gpu_nic if texts else [[row[gpu] for row in levels] for gpu in range(topology.gpu_count)],
        "numa": topology.numa_nodes,
        "cpu_affinity": texts.cpu_affinity if texts else unknown,
        "numa_affinity": texts.numa_affinity if texts else unknown,
        "gpu_numa_id": texts.gpu_numa_id if texts else unknown,
    }


def _json_text(document: dict[str, Any]) -> str:
    """Write one matrix row per line, for people read it too."""
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_json_value(value)}" for key, value in document.items()) + "\n}"


def _json_value(value: Any) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
    return json.dumps(value)


def _matrix_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return header and rows as `nvidia-smi topo -m` has them; `import` reads them again."""
    affinity = {"CPU Affinity": document["cpu_affinity"], "NUMA Affinity": document["numa_affinity"]}
    if any(cell is not None for cell in document["gpu_numa_id"]):
        affinity["GPU NUMA ID"] = document["gpu_numa_id"]
    if all(cell is None for cells in affinity.values() for cell in cells):
        affinity = {"NUMA Affinity": document["numa"]} if any(n is not None for n in document["numa"]) else {}
    rows = [("", *document["gpus"], *document["nics"], *affinity)]
    for at, gpu in enumerate(document["gpus"]):
        cells = ("N/A" if column[at] is None else str(column[at]) for column in affinity.values())
        rows.append((gpu, *document["matrix"][at], *document["gpu_nic"][at], *cells))
    return rows


def _resourceslices_text(shown: _Shown, driver: str) -> str:
    import msgspec
    import yaml

    from dracaena.api.resource_objects import ResourceSlice
    from dracaena.kubelet_plugin.device_kinds.allocatable import slice_specs
    from dracaena.kubelet_plugin.device_kinds.device_kind import GpuRoles

    roles = GpuRoles(shared=shown.shared)
    specs = slice_specs(shown.machine, driver=driver, node_name=shown.node, tainted=True, roles=roles)
    documents = [
        {
            "apiVersion": ResourceSlice.API_VERSION,
            "kind": ResourceSlice.KIND,
            "metadata": {"name": f"{page:05x}-{driver}-{shown.node}"},
            "spec": msgspec.to_builtins(spec),
        }
        for page, spec in enumerate(specs)
    ]
    # libyaml, several times as fast, where PyYAML was built with it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump_all(documents, Dumper=dumper, sort_keys=False, explicit_start=True)
    return text
