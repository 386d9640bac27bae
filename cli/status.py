"""`dracaena status`: the GPUs of a cluster, node by node, and who has them. Reads only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.cli.columns import aligned, print_lines
from dracaena.cli.commands import Commands
from dracaena.cli.connection import add_connection_options, connect

if TYPE_CHECKING:
    from dracaena.api.node_status import PublishedNode
    from dracaena.api.objects import Namespace, Node
    from dracaena.api.resource_objects import DeviceTaintRule, ResourceClaim, ResourceSlice
    from dracaena.cli.node_events import NodeEvents
    from dracaena.kube.client import KubeClient

MOST_TREES: Final = 3
"""Nodes that are drawn as trees without being asked for: three of 8 GPUs fill a tall terminal."""

_DESCRIPTION: Final = """\
Show the GPUs of a cluster, how they are linked, what is wrong with them, and which claim and pod has each.

It reads Nodes, ResourceSlices, ResourceClaims, DeviceTaintRules, Namespaces for their quotas, and the Events of nodes
that are named; it writes nothing. Up to 3 nodes are drawn as trees: GPUs below PIX share a PCIe switch, below PXB
several switches, below PHB a host bridge, below NODE a NUMA node, and SYS joins NUMA nodes. With more nodes there is
one line for each; nodes that are named are always drawn.
"""
_EXAMPLES: Final = """\
examples:
  Where is room, and what is broken?
      dracaena status

  Who has which GPU of two nodes, and what happened there?
      dracaena status worker-1 worker-2

  Follow a node until Ctrl+C
      dracaena status --watch worker-1

  Nodes with 4 free GPUs or more, for a script
      dracaena status -o json | jq -r '.nodes[] | select(.counts.free >= 4) | .name'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "status",
        help="show the GPUs of a cluster, their health, and who has them",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("nodes", metavar="NODE", nargs="*", help="show only these nodes, with their Events")
    form = "output format (default: %(default)s)"
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=form)
    watch = "show it again after each change: a terminal is redrawn, elsewhere each is a block, or a line of JSON"
    parser.add_argument("-w", "--watch", action="store_true", help=watch)
    add_connection_options(parser)
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class StatusObjects:
    """What a cluster has at one moment."""

    nodes: Sequence[Node]
    slices: Sequence[ResourceSlice]
    claims: Sequence[ResourceClaim]
    rules: Sequence[DeviceTaintRule] | None
    """None: they may not be read."""
    namespaces: Sequence[Namespace]
    """None where they may not be read, or nodes are named: then no quota is shown."""


@dataclass(frozen=True)
class Wanted:
    """What of it is to be shown, and how."""

    driver: str
    nodes: Sequence[str]
    """Empty: all."""
    as_json: bool = False
    levels: TopologyLevels = DEFAULT_LEVELS
    """What nodes are in."""


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.cli.installation_reader import read_levels
    from dracaena.cli.node_events import node_events

    client = connect(arguments)
    driver = arguments.driver_name
    nodes = tuple(dict.fromkeys(arguments.nodes))
    wanted = Wanted(driver, nodes, arguments.output == "json", read_levels(client, driver))
    read = _read(client, wanted)
    if arguments.watch:
        from dracaena.cli.status_watch import follow

        return follow(client, wanted, read)
    lines = status_lines(wanted, read, partial(node_events, client))
    print("\n".join(lines)) if wanted.as_json else print_lines(lines)
    return 0


def _read(client: KubeClient, wanted: Wanted) -> StatusObjects:
    from dracaena.api.mig_layout import ConditionedNode
    from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
    from dracaena.cli.device_taint_rules import taint_rules

    return StatusObjects(
        client.list(ConditionedNode).items,
        client.list(ResourceSlice, field_selector=f"spec.driver={wanted.driver}").items,
        client.list(ResourceClaim).items,
        taint_rules(client),
        () if wanted.nodes else _namespaces(client),
    )


def _namespaces(client: KubeClient) -> Sequence[Namespace]:
    from dracaena.api.objects import Namespace
    from dracaena.kube.errors import ForbiddenError

    try:
        return client.list(Namespace).items
    except ForbiddenError:
        return ()


def status_lines(wanted: Wanted, read: StatusObjects, events_of: Callable[[str], NodeEvents]) -> Sequence[str]:
    """Return what is printed: text, or one document of JSON. `events_of` is asked for the Events of each node that is
    named, once all are known to be there. Raises BadInputError for a node that is not there or publishes nothing."""
    from dracaena.api.node_status import node_document, node_statuses
    from dracaena.cli.namespace_quotas import quota_document, quota_lines, quota_states

    found = node_statuses(wanted.driver, read.nodes, read.slices, read.claims, read.rules or ())
    shown = _named(found, read.nodes, wanted)
    levels = wanted.levels
    places = {one.metadata.name: tuple(levels.named(levels.domains(one.metadata.labels))) for one in read.nodes}
    events = [events_of(name) for name in wanted.nodes]
    quotas = quota_states(wanted.driver, read.namespaces, read.nodes, read.slices, read.claims)
    if wanted.as_json:
        documents = [node_document(node) for node in shown]
        for document, its in zip(documents, events, strict=False):
            document["events"] = its.document()
        for document in documents:
            document["levels"] = [{"level": level, "name": name} for level, name in places.get(document["name"], ())]
        whole = {"nodes": documents, "quotas": [quota_document(one) for one in quotas], "summary": _summary(shown)}
        return json.dumps(whole, indent=2).splitlines()
    if not shown:
        return (f"no node publishes devices of {wanted.driver}: does its kubelet plugin run there?",)
    told = {node.name: its.lines() for node, its in zip(shown, events, strict=False)}
    return (*_lines(shown, told, places), *quota_lines(quotas), _total(shown))


def _named(found: Sequence[PublishedNode], nodes: Sequence[Node], wanted: Wanted) -> Sequence[PublishedNode]:
    from dracaena.api.reasons import nearest

    if not wanted.nodes:
        return found
    by_name = {node.name: node for node in found}
    known = {node.metadata.name for node in nodes}
    for name in wanted.nodes:
        if name not in by_name and name in known:
            raise BadInputError(f"node {name} publishes no devices of {wanted.driver}")
        if name not in by_name:
            near = nearest(name, by_name or known)
            raise BadInputError(f"node {name} does not exist{f': did you mean {near}?' if near else ''}")
    return [by_name[name] for name in wanted.nodes]


def _lines(
    shown: Sequence[PublishedNode], told: dict[str, Sequence[str]], places: dict[str, tuple[tuple[str, str], ...]]
) -> Iterator[str]:
    from dracaena.api.gpu_states import gpu_sums
    from dracaena.api.node_status import tree_lines

    if told or len(shown) <= MOST_TREES:
        for node in shown:
            header, *tree = tree_lines(node)
            yield header
            if place := places.get(node.name):
                yield "  in " + ", ".join(f"{level} {name}" for level, name in place)
            yield from tree
            yield from told.get(node.name, ())
            yield ""
        return
    rows = [("NODE", "GPUS", "FREE", "PARTIAL", "FAILED", "CLAIMS", "REMARKS")]
    for node in shown:
        counts = gpu_sums(state.sign for state in node.states)
        claims = {holder.claim for holder in node.holders}
        free = f"{counts['free']} of {counts['gpus']}"
        remarks = (*node.remarks, *([] if node.layout is None else [str(node.layout)]))
        sums = (free, str(counts["partial"]), str(counts["failed"]), str(len(claims)))
        rows.append((node.name, node.product, *sums, "; ".join(remarks)))
    yield from aligned(rows)
    yield ""


def _total(shown: Sequence[PublishedNode]) -> str:
    from dracaena.api.gpu_states import sums_in_words
    from dracaena.api.node_status import counted

    states = [state for node in shown for state in node.states]
    claims = {holder.claim for node in shown for holder in node.holders}
    return f"{counted(len(shown), 'node')}, {sums_in_words(states)}; {counted(len(claims), 'claim')} with devices"


def _summary(shown: Sequence[PublishedNode]) -> dict[str, Any]:
    from dracaena.api.gpu_states import gpu_sums

    claims = {holder.claim for node in shown for holder in node.holders}
    sums = gpu_sums(state.sign for node in shown for state in node.states)
    return {"nodes": len(shown), **sums, "claims": len(claims)}
