"""A cluster with the door by which the watches tell it, in one."""

from __future__ import annotations

from collections.abc import Callable

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.state.cluster import Cluster, ClusterState, Collided
from dracaena.controller.state.intake import Intake, ProblemsChanged
from dracaena.process.clock import Clock


class WatchedCluster(Cluster):
    """`intake` takes in what the test, as the watches, tells."""

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        *,
        keep: Callable[[ResourceClaim], ResourceClaim] = lambda claim: claim,
        problems_changed: ProblemsChanged = lambda unusable, updating: None,
        collided: Collided = lambda claim, collisions: None,
    ) -> None:
        super().__init__(state, clock, keep=keep, collided=collided)
        self.intake = Intake(state, clock, problems_changed=problems_changed, collided=collided)
