"""Which devices of a node each request of a pod may use.

Asked once for all nodes of a kind, and only for kinds that a decision comes to; never for all nodes of a decision.
Taints and selectors decide. Selectors that read what tells devices of equal nodes apart are left to walk.node_rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dracaena.api.objects import Toleration
from dracaena.controller.allocation.legal.selectors import SelectorFailure, Selectors
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.state.pool import NodeKind


@dataclass(frozen=True, slots=True)
class Failure:
    """A selector that has no answer for a device. The device is not given; a person should mend the selector."""

    request: int
    """Place among the requests."""
    expression: str
    reason: str


@dataclass(frozen=True, slots=True)
class Eligible:
    """Masks over the ordinals of a kind of node."""

    present: int
    """Devices that count for this pod at all, free or not. The others neither are taken nor make a node whole: nobody
    can use them who does not tolerate what they suffer from."""
    of_request: tuple[int, ...]
    """One mask a request: what it may take. A part of `present`."""
    failures: tuple[Failure, ...] = ()
    """At most one a request."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Answers for the requests of one pod, in the order of its claims and requests."""

    tolerations: tuple[tuple[Toleration, ...], ...]
    """Of each request."""
    selectors: tuple[tuple[str, ...], ...] = ()
    """CEL expressions of each request's class and of the request, all of which must match; empty: none for anybody."""

    def of_kind(self, kind: NodeKind, selectors: Selectors) -> Eligible:
        """Return the masks for all nodes of a kind. Cost: O(requests × devices), selectors asked once for each."""
        every = (1 << kind.box.gpu_count) - 1
        tolerated = [every & ~_untolerated(kind, tolerations) for tolerations in self.tolerations]
        present = 0
        for mask in tolerated:
            present |= mask
        failures: list[Failure] = []
        for request, expressions in enumerate(self.selectors):
            if expressions:
                tolerated[request] &= _matching(kind, selectors, request, expressions, failures)
        return Eligible(present, tuple(tolerated), tuple(failures))


def _untolerated(kind: NodeKind, tolerations: Iterable[Toleration]) -> int:
    mask = 0
    for ordinal, taints in kind.foreign_taints:
        if first_untolerated(taints, tolerations) is not None:
            mask |= 1 << ordinal
    return mask


def _matching(
    kind: NodeKind, selectors: Selectors, request: int, expressions: Sequence[str], failures: list[Failure]
) -> int:
    """Return the devices that all expressions match; the first failure of each request is added to `failures`."""
    mask = 0
    for ordinal, device_kind in enumerate(kind.devices):
        if device_kind is None:
            continue
        for expression in expressions:
            answer = selectors.evaluate(expression, device_kind.device)
            if isinstance(answer, SelectorFailure):
                if all(failure.request != request for failure in failures):
                    failures.append(Failure(request, expression, answer.reason))
                break
            if not answer:
                break
        else:
            mask |= 1 << ordinal
    return mask
