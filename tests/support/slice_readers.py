"""All that is shown of the slices of a node: by the controller's page, and by `status`, `explain` and `simulate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dracaena.api.node_status import node_document, node_statuses
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.cli import simulate, status
from dracaena.cli.cut_parts import CutParts, devices_of
from dracaena.controller.simulation import Simulation
from dracaena.controller.views.details import graph_text, node_view
from dracaena.controller.views.fleet import Changes, changes, fleet
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, Watched
from dracaena.controller.views.summary import summary
from dracaena.controller.views.teams import teams
from support.allocation import DRIVER, claim, holding, node, request
from support.mig_nodes import MIG, mig_classes

Answers = Callable[[Sequence[ResourceSlice], Sequence[ResourceClaim]], str]


def holders_of_all(slices: Sequence[ResourceSlice]) -> list[ResourceClaim]:
    """A claim for each device, whatever the rules say: all that can be drawn is."""
    names = [device.name for page in slices for device in page.spec.devices]
    return [holding(claim(f"c{place}"), "n", name) for place, name in enumerate(names)]


def page(slices: Sequence[ResourceSlice], claims: Sequence[ResourceClaim]) -> str:
    """The page's answers: the sums, the fleet, teams, the node, and /graph with one node and with all."""
    snapshot = ClusterSnapshot("")
    for made in SnapshotMaker(DRIVER).turns(Watched([node("n")], slices, claims)):
        snapshot = made or snapshot
    found, line = snapshot.node("n"), snapshot.line("n")
    assert found is not None
    assert line is not None
    documents = (summary(snapshot, 0.0), teams(snapshot, _all), node_view(found, line, _all))
    rows = fleet(snapshot, _all, changes(None, Changes(), snapshot, 1), {})
    graphs = (graph_text(snapshot, _all, node="n"), graph_text(snapshot, _all))
    return "\n".join((*map(json.dumps, documents), rows.decode(), *map(str, graphs)))


def status_text(slices: Sequence[ResourceSlice], claims: Sequence[ResourceClaim]) -> str:
    """`status`, `status n`, `status -o json`."""
    found = node_statuses(DRIVER, [node("n")], slices, claims)
    drawn = (*status._lines(found * 4, {}, {}), *status._lines(found, {}, {}), status._total(found))
    return "\n".join((*drawn, *(json.dumps(node_document(one)) for one in found)))


def explained(slices: Sequence[ResourceSlice], claims: Sequence[ResourceClaim]) -> str:
    """What `explain` draws for each claim."""
    parts = CutParts(DRIVER, slices, claims)
    return "\n".join(line for one in claims for line in parts.lines(devices_of(DRIVER, one)))


def simulated(slices: Sequence[ResourceSlice], claims: Sequence[ResourceClaim]) -> str:
    """`simulate` with claims for a GPU and for a part, and nothing held."""
    wanted = [claim("whole"), claim("part", request("part", 1, MIG))]
    simulation = Simulation(DRIVER, nodes=[node("n")], slices=slices, classes=mig_classes(), claims=wanted)
    outcomes = list(simulation.outcomes(()))
    parts = CutParts(DRIVER, slices, ())
    problems = (str(problem) for problem in simulation.inventory.problems())
    return "\n".join((*simulate._table(outcomes, simulation, parts), *problems))


def _all(namespace: str) -> bool:
    return True


READERS: Final[Mapping[str, Answers]] = MappingProxyType(
    {"page": page, "status": status_text, "explain": explained, "simulate": simulated}
)
