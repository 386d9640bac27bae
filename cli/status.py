"""`dracaena status`: the GPUs of a cluster, node by node, and who has them. Reads only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dracaena.api.errors import BadInputError
from dracaena.cli.columns import aligned, print_lines
from dracaena.cli.commands import Commands
from dracaena.cli.connection import add_connection_options, connect

if TYPE_CHECKING:
    from dracaena.api.node_status import PublishedNode
    from dracaena.api.objects import Namespace, Node
    from dracaena.kube.client import KubeClient

MOST_TREES: Final = 3
"""Nodes that are drawn as trees without being asked for: three of 8 GPUs fill a tall terminal."""

_DESCRIPTION: Final = """\
Show the GPUs of a cluster, how they are linked, and which claim and pod has each.

It reads Nodes, ResourceSlices, ResourceClaims, and Namespaces for their quotas; it writes nothing. Up to 3 nodes are
drawn as trees: GPUs below PIX share a PCIe switch, below PXB several switches, below PHB a host bridge, below NODE a
NUMA node, and SYS joins NUMA nodes. With more nodes there is one line for each; --node draws the trees of the nodes
that it names.
"""
_EXAMPLES: Final = """\
examples:
  Where is room?
      dracaena status

  Who has which GPU of two nodes?
      dracaena status --node worker-1 --node worker-2

  Nodes with 4 free GPUs or more, for a script
      dracaena status -o json | jq -r '.nodes[] | select(.counts.free >= 4) | .name'
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "status",
        help="show the nodes of a cluster as trees with who has which GPU",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--node", dest="nodes", metavar="NAME", action="append", default=[], help="show only this node; may be repeated"
    )
    form = "output format (default: %(default)s)"
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=form)
    add_connection_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.api.mig_layout import ConditionedNode
    from dracaena.api.node_status import node_document, node_statuses
    from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
    from dracaena.cli.device_taint_rules import taint_rules
    from dracaena.cli.namespace_quotas import quota_document, quota_lines, quota_states

    client, driver = connect(arguments), arguments.driver_name
    nodes = client.list(ConditionedNode).items
    slices = client.list(ResourceSlice, field_selector=f"spec.driver={driver}").items
    claims = client.list(ResourceClaim).items
    found = node_statuses(driver, nodes, slices, claims, taint_rules(client))
    shown = _named(found, arguments.nodes, nodes, driver)
    quotas = () if arguments.nodes else quota_states(driver, _namespaces(client), nodes, slices, claims)
    if arguments.output == "json":
        nodes_found, quotas_found = [node_document(node) for node in shown], [quota_document(state) for state in quotas]
        print(json.dumps({"nodes": nodes_found, "quotas": quotas_found, "summary": _summary(shown)}, indent=2))
    elif not shown:
        print(f"no node publishes devices of {driver}: does its kubelet plugin run there?")
    else:
        print_lines((*_lines(shown, trees=bool(arguments.nodes)), *quota_lines(quotas), _total(shown)))
    return 0


def _namespaces(client: KubeClient) -> Sequence[Namespace]:
    """Return all namespaces; none where they may not be read: then no quota is shown."""
    from dracaena.api.objects import Namespace
    from dracaena.kube.errors import ForbiddenError

    try:
        return client.list(Namespace).items
    except ForbiddenError:
        return ()


def _named(
    found: Sequence[PublishedNode], names: Sequence[str], nodes: Iterable[Node], driver: str
) -> tuple[PublishedNode, ...]:
    """Return the nodes that were asked for, in that order; all without a name. Raises BadInputError."""
    if not names:
        return tuple(found)
    by_name = {node.name: node for node in found}
    for name in names:
        if name not in by_name:
            there = any(node.metadata.name == name for node in nodes)
            what = f"publishes no devices of {driver}" if there else "does not exist"
            raise BadInputError(f"node {name} {what}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _lines(shown: Sequence[PublishedNode], *, trees: bool) -> Iterator[str]:
    from dracaena.api.gpu_states import gpu_sums
    from dracaena.api.node_status import tree_lines

    if trees or len(shown) <= MOST_TREES:
        for node in shown:
            yield from tree_lines(node)
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


def _summary(shown: Sequence[PublishedNode]) -> dict[str, int]:
    from dracaena.api.gpu_states import gpu_sums

    claims = {holder.claim for node in shown for holder in node.holders}
    sums = gpu_sums(state.sign for node in shown for state in node.states)
    return {"nodes": len(shown), **sums, "claims": len(claims)}
