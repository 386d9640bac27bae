"""Whether a device that no claim has is free: one rule for `dracaena status` and its JSON, the page, metrics and
reasons.

A device is free if no claim has it and a claim that tolerates no taint could get it. One that only claims with
tolerations can get is not free, although such a claim, of an admin who examines a GPU for example, gets it: people and
scripts that look for free GPUs have other claims in mind. A taint that only informs (effect None) keeps no pod off.
The controller gives only devices with its own taint, which keeps kube-scheduler off: others are not free either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dracaena.api.device_taints import in_words, keeping_off
from dracaena.api.devicepool import device_problem
from dracaena.api.names import taint_key
from dracaena.api.objects import Node, Taint
from dracaena.api.reasons import unknown_fields
from dracaena.api.resource_objects import Device, ResourceSlice

NODE_CONDITIONS: Final = "node.kubernetes.io/"
"""Prefix of the keys of taints by which Kubernetes says that a node is not ready, or has no room. Other taints are an
admin's: pods for GPUs usually tolerate those."""

NO_NODE: Final = "there is no such Node"
CORDONED: Final = "cordoned"

MOST_PAGES: Final = 32
"""Slices of one node that are read to show it, 2,048 devices: 16 GPUs with all the places of a divided one have 500. A
node can publish as many as the API server stores, and must not hold up who looks at it."""


def why_not_given(driver: str, device: Device) -> str:
    """Return why no claim without tolerations gets a device even if no claim has it, whatever else its pool and its
    node are; empty if one may. Cost: a look at each
    attribute."""
    if device.unknown:
        return unknown_fields(device.unknown, "the device")
    blocking = list(keeping_off(device.taints))
    others = [taint for taint in blocking if taint.key != taint_key(driver)]
    if others:
        return f"taint {in_words(others[0])}"
    if not blocking:
        return f"kube-scheduler allocates it: it lacks the taint {taint_key(driver)}"
    problem = device_problem(device)
    return "" if problem is None else f"{problem.attribute}: {problem.seen}, expected {problem.expected}"


def why_node_closed(*, unschedulable: bool, taints: Iterable[Taint]) -> str:
    """Return why pods without tolerations for it are not bound to a node, whatever it has; empty if they may be."""
    if unschedulable:
        return CORDONED
    closing = (taint for taint in keeping_off(taints) if taint.key.startswith(NODE_CONDITIONS))
    return next((f"taint {in_words(taint)} on the node" for taint in closing), "")


def why_nothing_given(pages: Sequence[ResourceSlice], node: Node | None) -> Iterator[str]:
    """Yield why no claim gets any device of a node now, from all of its slices of one driver, at least one; nothing if
    one may. Cost: O(devices)."""
    if node is None:
        yield NO_NODE
    else:
        closed = why_node_closed(unschedulable=node.spec.unschedulable, taints=node.spec.taints)
        yield from filter(None, (closed,))
    pools = {page.spec.pool.name for page in pages}
    if len(pools) > 1:
        yield several_pools(pages[0].spec.node_name, len(pools))
    else:
        current = current_pages(pages)
        yield from filter(None, (unfinished(current) or why_pool_unusable(current),))


def current_pages(pages: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation. There is at least one if `pages` has one."""
    newest = max(page.spec.pool.generation for page in pages)
    return [page for page in pages if page.spec.pool.generation == newest]


def shown_pages(pages: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation, the first MOST_PAGES by name. There is at least one if `pages` has
    one."""
    return sorted(current_pages(pages), key=lambda page: page.metadata.name)[:MOST_PAGES]


def several_pools(node: str, count: int) -> str:
    """Say that a node has several pools. None of them is used: ordinals of two say nothing about each other."""
    return f"node {node} has {count} pools of this driver, expected one: none of them is used"


def unfinished(current: Sequence[ResourceSlice]) -> str:
    """Say that some slices of the newest generation of a pool are not there yet; empty if all are."""
    pool = current[0].spec.pool
    if len(current) == pool.resource_slice_count:
        return ""
    return f"generation {pool.generation} has {len(current)} of {pool.resource_slice_count} slices: being updated"


def why_pool_unusable(current: Sequence[ResourceSlice]) -> str:
    """Return what is wrong with a pool as a whole, from all slices of its newest generation; empty if nothing is."""
    nodes = sorted({page.spec.node_name for page in current})
    if len(nodes) > 1 or not nodes[0]:
        return f"slices name the nodes {nodes}, expected one node"
    for page in current:
        if page.spec.unknown:
            return f"slice {page.metadata.name}: {unknown_fields(page.spec.unknown, 'the pool')}"
        if page.spec.skip_node_operations:
            return f"slice {page.metadata.name}: {_SKIPS}"
    counts = Counter(device.name for page in current for device in page.spec.devices)
    twice = min((name for name, count in counts.items() if count > 1), default="")
    return f"device {twice} is published twice" if twice else ""


_SKIPS: Final = "skipNodeOperations: GPUs are of no use unless the plugin prepares them: the pool is left alone"
