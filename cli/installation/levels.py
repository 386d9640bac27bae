"""Racks, blocks and the like: what the controller was given, and what nodes say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from dracaena.api.errors import BadInputError
from dracaena.api.kueue_topology import KueueTopology, KueueTopologyLevel, KueueTopologySpec
from dracaena.api.names import topology_levels_annotation
from dracaena.api.objects import ObjectMeta
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.cli.installation.programs import CONTROLLER
from dracaena.cli.installation.snapshot import (
    Document,
    Finding,
    Quote,
    Snapshot,
    entries,
    fine,
    labels,
    name_of,
    text,
    texts,
    to_fix,
)
from dracaena.validation.topology_levels import levels_of_topologies, read_topology_levels


def levels_of(
    deployments: Sequence[Document], driver: str, topologies: Callable[[], Sequence[Document]]
) -> TopologyLevels:
    """Return the levels that the controller with one of these Deployments has; the default without a Deployment. Raises
    BadInputError if what it says is no list of levels. `topologies` returns Kueue's, of which it is asked if need be.
    """
    key = topology_levels_annotation(driver)
    said = next(filter(None, (texts(one, "metadata", "annotations").get(key) for one in deployments)), "")
    try:
        levels = read_topology_levels(json.loads(said)) if said else DEFAULT_LEVELS
    except (ValueError, RecursionError) as error:
        raise BadInputError("is not JSON") from error
    return levels_of_topologies(map(_topology, topologies()))[0] if levels.is_kueues else levels


def _topology(document: Document) -> KueueTopology:
    levels = tuple(KueueTopologyLevel(text(one, "nodeLabel")) for one in entries(document, "spec", "levels"))
    return KueueTopology(metadata=ObjectMeta(name=name_of(document)), spec=KueueTopologySpec(levels=levels))


def topology_levels(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes with GPUs are in a domain at each level, and the levels are in order."""
    try:
        deployments = snapshot.of_component("deployments", CONTROLLER)
        levels = levels_of(deployments, snapshot.driver, lambda: snapshot.objects("topologies"))
    except BadInputError as error:
        key = topology_levels_annotation(snapshot.driver)
        yield to_fix("the annotation {} of the controller's Deployment {}: upgrade the chart again", key, Quote(error))
        return
    if levels.is_kueues and not levels.labels:
        yield to_fix(
            "`topology-levels` is kueue and there is no Topology of Kueue that names levels: an admin has to make one"
        )
    published = {page.spec.node_name for page in snapshot.slices}
    nodes = {name_of(one): labels(one) for one in snapshot.objects("nodes") if name_of(one) in published}
    if levels != DEFAULT_LEVELS or any(any(levels.domains(own)) for own in nodes.values()):
        yield from _unlabelled(levels, nodes)
    yield from _out_of_order(levels, nodes)
    sizes = Counter(place for own in nodes.values() for place, each in enumerate(levels.domains(own)) if each)
    found = tuple(f"{name}={sizes[place]}" for place, name in enumerate(levels.names)) if nodes else ()
    yield fine("nodes with GPUs that are in a domain of a level: {}", found or "none")


def _unlabelled(levels: TopologyLevels, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    for place, key in enumerate(levels.labels):
        without = tuple(sorted(name for name, own in nodes.items() if levels.domains(own)[place] is None))
        if nodes and len(without) == len(nodes):
            words = (
                "no node with GPUs has the label {} of `topology-levels`: an admin has to label them or leave it out"
            )
            yield to_fix(words, key)
        elif without:
            words = (
                "{} of {} nodes with GPUs lack the label {} of `topology-levels`, and jobs are not kept together there:"
            )
            yield to_fix(f"{words} an admin has to label nodes {{}}", str(len(without)), str(len(nodes)), key, without)
        elif len({levels.domains(own)[place] for own in nodes.values()}) == len(nodes) > 1:
            words = "the label {} of `topology-levels` has another value on each node, so it joins none: leave it out"
            yield to_fix(words, key)


def _out_of_order(levels: TopologyLevels, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Two levels of which the lower one joins what the upper one has parted already."""
    for upper, lower in zip(levels.labels, levels.labels[1:], strict=False):
        pairs = {(own[upper], own[lower]) for own in nodes.values() if upper in own and lower in own}
        is_parted = len(pairs) == len({one for one, _ in pairs})
        if is_parted and len(pairs) > len({other for _, other in pairs}):
            words = "`topology-levels` names {} before {}, which is the larger one: name the largest level first"
            yield to_fix(words, upper, lower)
