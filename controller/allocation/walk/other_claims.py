"""Whether a node can serve those claims of a pod that are for other drivers.

kube-scheduler allocates them after ours, on the node that we choose. A node where it certainly cannot is no choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dracaena.api.objects import Node
from dracaena.controller.allocation.effort import DEVICE_STEPS, Effort, Work
from dracaena.controller.allocation.legal.books import Books
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit
from dracaena.controller.allocation.legal.pools import SliceSource, gather_pools
from dracaena.controller.allocation.legal.problem import Problem, Snapshot, pose
from dracaena.controller.allocation.legal.read.claims import Claim
from dracaena.controller.allocation.legal.read.features import V1_37, Features
from dracaena.controller.allocation.legal.search import solve
from dracaena.controller.allocation.request import ClaimDemand
from dracaena.controller.allocation.state.other_devices import OtherDevices

MAX_STEPS: Final = 2_000
"""Of a search on one node: ordinary claims take some tens. One that is cut off proves nothing."""

RULES: Final = tuple(replace(one, list_attributes=True) for one in (Features(), Features.of(V1_37)))
"""The rules of each version with all that can be switched on, because nothing says what is. What none of them serves is
not served."""

TOGETHER: Final = -1
"""Instead of a claim's place: each of the claims can be served, but not all of them."""

ALL: Final = "all claims that kube-scheduler has to allocate for the pod"
"""How they are called then."""


class OtherClaims:
    """The claims of one pod that are not ours and not allocated yet. Looks at nodes are charged to `effort`."""

    def __init__(
        self, devices: OtherDevices, claims: Sequence[ClaimDemand], selectors: CelSelectors, effort: Effort
    ) -> None:
        self._devices, self._claims, self._selectors, self._effort = devices, tuple(claims), selectors, effort

    def lack(self, node: Node) -> str | None:
        """Return what a node certainly lacks for them now, in words that follow a count of nodes."""
        found = self._refused(node, as_free=False)
        if found == TOGETHER:
            return f"without free devices that suit {ALL}"
        return None if found is None else f"without free devices that suit claim {self._named(found)}"

    def never(self, node: Node) -> str | None:
        """Return the same if no claim held a device."""
        if self._refused(node, as_free=False) is None:
            return None
        found = self._refused(node, as_free=True)
        if found == TOGETHER:
            return f"without devices that suit {ALL}"
        return None if found is None else f"without devices that suit claim {self._named(found)}"

    def _named(self, place: int) -> str:
        claim = self._claims[place]
        names = dict.fromkeys(one.device_class.name for entry in claim.requests for one in entry)
        return f"{claim.claim.key} (DeviceClass {', '.join(names)}), which kube-scheduler allocates"

    def _refused(self, node: Node, *, as_free: bool) -> int | None:
        """Return the place of the first claim that the node certainly cannot serve, None: it may serve all."""
        question = tuple(claim.read for claim in self._claims), as_free
        return self._devices.answer(node, question, lambda: self._first_refused(node, as_free=as_free))

    def _first_refused(self, node: Node, *, as_free: bool) -> int | None:
        slices, held = self._devices.reach(node.metadata.name)
        books = Books(()) if as_free else held
        if self._may_fit(node, self._claims, slices, books):
            return None
        alone = enumerate(self._claims)
        return next((place for place, one in alone if not self._may_fit(node, (one,), slices, books)), TOGETHER)

    def _may_fit(self, node: Node, claims: Sequence[ClaimDemand], slices: SliceSource, books: Books) -> bool:
        """Whether kube-scheduler may be able to allocate these claims on the node: it can, or we cannot know."""
        return any(self._may_fit_by(rules, node, claims, slices, books) for rules in RULES)

    def _may_fit_by(
        self, rules: Features, node: Node, claims: Sequence[ClaimDemand], slices: SliceSource, books: Books
    ) -> bool:
        classes = {
            one.device_class.name: one.device_class for claim in claims for entry in claim.requests for one in entry
        }
        pools = gather_pools(slices, node, rules)
        if not isinstance(pools, tuple):
            return True
        devices = [one for pool in pools for one in pool.devices]
        self._effort.charge(DEVICE_STEPS * (1 + len(devices)), Work.DEVICES)
        if any(device.unknown for pool in pools for device in pool.elsewhere) or any(one.problem for one in devices):
            return True
        found = pose(Snapshot(classes, books, self._selectors, rules), node.metadata.name, _specs(claims), pools)
        outcome = solve(found, max_steps=MAX_STEPS, effort=self._effort) if isinstance(found, Problem) else found
        return not isinstance(outcome, DoesNotFit) or outcome.cut_off or bool(outcome.pools)


def _specs(claims: Sequence[ClaimDemand]) -> list[Claim]:
    return [claim.spec for claim in claims]
