"""Allocations that lead nowhere: the pod has its devices, and kube-scheduler does not bind it.

The rules, with what was seen on a real control plane, are docs/design/0011-take-back.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.bind_watch import BindWatch, Standing
from dracaena.controller.exclusions import Exclusions
from dracaena.controller.ports import EventSink
from dracaena.controller.take_back import TakeBack, is_used_by_only, our_decision
from dracaena.process.clock import Clock

UNRESERVED_S: Final = 30.0
"""Between a reservation that is gone and a take-back: a bind that failed drops it too, and kube-scheduler tries again
after its longest back-off of 10 s."""

LOOK_S: Final = 15.0
"""Between two looks at a pod about which nothing can be said yet."""

MESSAGE_LENGTH: Final = 300
"""Characters of kube-scheduler's own message that are told again: its node counts come first."""

EVENT_REASON: Final = "GPUsTakenBack"

UNSCHEDULABLE: Final = "Unschedulable"
"""Reason of the condition PodScheduled when kube-scheduler found no node; SchedulerError is a fault of some kind."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _LedNowhere:
    """An allocation is to be taken back."""

    reason: str
    """Label of the metric."""
    node_matters: bool
    """Whether another node may do. Else nothing does before kube-scheduler says something new."""


class UnboundPods:
    """Finds allocations that lead nowhere, has them taken back, and remembers where not to try again.

    `others_wait` says whether pods wait for devices that fitted nowhere. Takes in changes from the reflectors' threads,
    before the cluster does; the rest is called by workers.
    """

    def __init__(
        self,
        driver: str,
        *,
        watch: BindWatch,
        exclusions: Exclusions,
        take_back: TakeBack,
        others_wait: Callable[[], bool],
        events: EventSink,
        clock: Clock,
        refused_wait_s: float,
        passed_over_wait_s: float,
    ) -> None:
        """`refused_wait_s`: how long a refusal of kube-scheduler's has to stand; `passed_over_wait_s`: how long a pod
        is left to a kube-scheduler that says nothing new about it."""
        self._driver = driver
        self._watch = watch
        self._exclusions = exclusions
        self._take_back = take_back
        self._others_wait = others_wait
        self._events = events
        self._clock = clock
        self._refused_wait_s = refused_wait_s
        self._passed_over_wait_s = passed_over_wait_s
        self._lock = threading.Lock()
        self._quiet_before_s = float("-inf")

    # What the watches tell

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in any pod."""
        self._watch.pod_changed(old, new)
        subject = new or old
        if subject is not None and (new is None or new.spec.node_name):
            self._exclusions.drop(subject.key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a claim. One that kube-scheduler cleared (PostFilter) led nowhere: without a word it would be
        allocated just there again, a dozen times a second."""
        self._watch.claim_changed(old, new)
        if old is None or new is None or new.metadata.uid != old.metadata.uid or new.status.allocation is not None:
            return
        decision = our_decision(old, self._driver) if old.status.reserved_for else None
        if decision is None or new.metadata.deletion_timestamp is not None:
            return
        for user in old.status.reserved_for:
            key = f"{old.metadata.namespace}/{user.name}"
            if self._watch.is_unbound(key, user.uid):
                for_s = self._exclusions.exclude(key, user.uid, decision.node)
                self._drop_if_over(key, user.uid)
                log.info("allocation was cleared", pod=key, claim=old.key, node=decision.node, not_there_for_s=for_s)

    # What is to be done

    def attend(self, pod: Pod, claims: Sequence[ResourceClaim]) -> float | None:
        """Look at a pod that needs nothing more from us; return the seconds until it wants a look again.

        0: something is taken back, which TakeBack.advance() does. None: its next change will bring it here.
        """
        if pod.spec.node_name:
            return None
        alone = ((claim, our_decision(claim, self._driver)) for claim in claims if is_used_by_only(claim, pod))
        decisions = [(claim, decision) for claim, decision in alone if decision is not None]
        ours = [claim for claim, _ in decisions]
        standing = self._watch.standing(pod, [claim.key for claim in ours])
        if standing is None:
            return None
        node = decisions[0][1].node
        found = self._judge(pod, standing, node)
        if not isinstance(found, _LedNowhere):
            return found
        if not self._take_back.begin(pod, ours, found.reason):
            return LOOK_S
        if found.node_matters:
            for_s = self._exclusions.exclude(pod.key, pod.metadata.uid, node)
        else:
            for_s = self._exclusions.hold(pod, standing.said)
        self._drop_if_over(pod.key, pod.metadata.uid)
        log.warning(
            "allocation led nowhere, taking it back",
            reason=found.reason,
            node=node,
            claims=[claim.key for claim in ours],
            excluded="the node" if found.node_matters else "all nodes",
            for_s=round(for_s, 1),
            said=standing.said.message if standing.said is not None else "",
        )
        self._events.record(pod, "Warning", EVENT_REASON, _in_words(found, standing, node))
        return 0.0

    def held(self, pod: Pod) -> float | None:
        """Return for how many seconds a pod is not to be decided for, None when it may be."""
        held = self._exclusions.held(pod, self._watch.said(pod))
        return None if held is None else held.in_s

    def next_try_s(self, pod: Pod) -> float | None:
        """Return the seconds until a node that is left out for a pod may be tried again, None when none is."""
        end = self._exclusions.next_end(pod)
        return None if end is None else end.in_s

    def when_again(self, pod: Pod) -> str:
        """Say to a user when that is, as the rest of a sentence; nothing when no node is left out."""
        end = self._exclusions.next_end(pod)
        return "" if end is None else f"; what was tried before is tried again from {end.at}"

    def why_held(self, pod: Pod) -> str:
        """Say to a user why nothing is allocated for a pod that is held."""
        said = self._watch.said(pod)
        message = said.message[:MESSAGE_LENGTH] if said is not None else "nothing"
        held = self._exclusions.held(pod, said)
        until = f", at {held.at} at the latest" if held is not None else ""
        return (
            f"its GPUs were given back, because kube-scheduler did not bind it for reasons of its own: {message} "
            f"They are allocated again when it says something else{until}"
        )

    def _drop_if_over(self, key: str, uid: str) -> None:
        """Leave no exclusion behind for a pod that went, or was bound, in the moment in which it was written.

        pod_changed() tells the watch first and drops then: one of the two sees what the other did.
        """
        if not self._watch.is_unbound(key, uid):
            self._exclusions.drop(key, uid)

    def _judge(self, pod: Pod, standing: Standing, node: str) -> _LedNowhere | float:
        """Say whether an allocation led nowhere, else in how many seconds to look again."""
        now_s = self._clock.monotonic()
        if standing.unreserved_s is not None:
            left_s = standing.unreserved_s + UNRESERVED_S - now_s
            # An earlier leader dropped the reservation and did not come to the second write.
            return left_s if left_s > 0 else _LedNowhere("unreserved", node_matters=True)
        refused = standing.said is not None and standing.said.reason == UNSCHEDULABLE and standing.said_s is not None
        if refused and pod.status.nominated_node_name == node:
            return LOOK_S  # it makes room there by preemption: our own hint was wiped by the try that failed
        if refused:
            assert standing.said_s is not None
            left_s = standing.said_s + self._refused_wait_s - now_s
            return left_s if left_s > 0 else _LedNowhere("refused", node_matters=_others_may_do(standing))
        left_s = standing.allocated_s + self._passed_over_wait_s - now_s
        if left_s > 0:
            return left_s
        if standing.passed_over or self._is_quiet(standing, now_s):
            return _LedNowhere("passed-over", node_matters=_others_may_do(standing))
        until_quiet_s = self._passed_over_wait_s - standing.quiet_s
        return min(until_quiet_s, LOOK_S) if until_quiet_s > 0 else LOOK_S

    def _is_quiet(self, standing: Standing, now_s: float) -> bool:
        """Whether nobody is tried at all while others could use the devices: nothing is queued then, or nobody is there
        to bind. One pod at a time, so that an absent kube-scheduler does not set everything in motion."""
        if standing.quiet_s < self._passed_over_wait_s or not self._others_wait():
            return False
        with self._lock:
            if now_s - self._quiet_before_s < self._passed_over_wait_s:
                return False
            self._quiet_before_s = now_s
            return True


def _others_may_do(standing: Standing) -> bool:
    """Return whether another node may do. Of a refusal that is no fault, and names none, kube-scheduler says that no
    node would do, whoever gets which devices."""
    said = standing.said
    return said is not None and (said.others_would_do or said.reason != UNSCHEDULABLE)


def _in_words(found: _LedNowhere, standing: Standing, node: str) -> str:
    said = f": {standing.said.message[:MESSAGE_LENGTH]}" if standing.said is not None else ""
    then = "Another node is tried" if found.node_matters else "GPUs are allocated again when it says something else"
    return f"GPUs on node {node} are taken back, because kube-scheduler does not bind the pod there{said} {then}"
