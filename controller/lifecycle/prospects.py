"""Whether an allocation leads anywhere when a pod has its devices but kube-scheduler does not bind it.

The rules, and what we saw on a real control plane, are in docs/design/allocation-lifecycle.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dracaena.controller.lifecycle.claim_record import ClaimRecord
from dracaena.controller.lifecycle.pod_record import PodRecord

SETTLE_S: Final = 5.0
"""A message that comes this soon after an allocation may be from an attempt that began before it: kube-scheduler had
not seen it yet, or our two watches had drifted apart. The latest such message was 0.3 s late among 200 pods, and 0.7 s
among 300 on a busy machine."""

UNRESERVED_S: Final = 30.0
"""From the loss of a reservation to the take-back: a failed bind drops the reservation too, and kube-scheduler tries
again after its longest back-off of 10 s."""

PREEMPTION_S: Final = 600.0
"""How long devices are kept for a pod while kube-scheduler evicts others for it. A pod has 30 s to end unless it asks
for more, and one that saves its state takes minutes; waiting longer would keep GPUs idle with no end in sight."""

NUDGE_S: Final = 1.0
"""From an allocation until we make kube-scheduler try the pod: its watch shows the claim within 0.3 s. Where no node
passed its filters for CPU and the like, no change to a claim makes it try the pod again
(docs/design/where-a-pod-may-run.md)."""

PREEMPTED: Final = "no-preemption"
"""Metric label of an allocation on whose node no room was made."""

LOOK_S: Final = 15.0
"""Between two looks at a pod while the verdict is still open."""

NOT_SEEN: Final = "cannot allocate all claims"
"""kube-scheduler's message about a node when a claim is not allocated (1.34 to 1.36). For a pod whose claims are all
allocated it can only be an old one."""

UNSCHEDULABLE: Final = "Unschedulable"
"""Reason of the condition PodScheduled when kube-scheduler found no node; SchedulerError stands for any fault."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a pod keeps an allocation without being bound."""

    refused_s: float = 10.0
    """How long a refusal by kube-scheduler must stand. One can be a race: another pod's CPU on the node was not
    released yet. kube-scheduler tries again within its longest back-off, 10 s."""
    passed_over_s: float = 60.0
    """How long kube-scheduler may say nothing new about the pod. We do not know that anything is wrong, so this may be
    long: 2,000 pods at 30 per second wait for up to 67 s. So the time alone never suffices
    (docs/design/allocation-lifecycle.md)."""


@dataclass(frozen=True, slots=True)
class LedNowhere:
    """The allocation must be taken back."""

    reason: str
    """Label of the metric."""
    node_matters: bool
    """Whether another node may do better. If not, nothing helps until kube-scheduler says something new."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """kube-scheduler must be made to try the pod."""

    node: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What a verdict about one pod depends on."""

    pod: PodRecord
    node: str
    """The node of the allocation."""
    nominated: bool
    """Whether the pod is nominated for that node, by kube-scheduler or by us."""
    ours: tuple[ClaimRecord, ...]
    """The claims that we allocated for this pod alone; at least one."""
    whole: bool
    """Whether all its claims are allocated."""
    passed_over: bool
    """Whether pods of no higher priority had a turn since the allocation, so that this pod must have had one too."""
    quiet_s: float
    """Seconds since kube-scheduler was last seen at work."""
    others_wait: bool
    """Whether another pod could use the devices, and no pod has just given some back because of the same silence."""


def verdict(now: Situation, now_s: float, patience: Patience) -> LedNowhere | Nudge | float:
    """Return why an allocation leads nowhere, else the nudge that is due, else the seconds until the next look."""
    said = now.pod.said
    unreserved = [claim.unreserved_s for claim in now.ours if claim.unreserved_s is not None]
    if unreserved:
        left_s = max(now.pod.first_seen_s, *unreserved) + UNRESERVED_S - now_s
        return left_s if left_s > 0 else LedNowhere("unreserved", node_matters=True)
    allocated_s = max(claim.allocated_s for claim in now.ours)
    if any(claim.is_preempting for claim in now.ours):
        return _until_room_is_made(now, allocated_s, now_s, patience)
    if said is not None and said.reason == UNSCHEDULABLE and _knew(now, allocated_s):
        if now.nominated:
            return LOOK_S  # it is preempting there: the failed attempt would have removed our own hint
        left_s = now.pod.said_s + patience.refused_s - now_s
        return left_s if left_s > 0 else LedNowhere("refused", node_matters=_others_may_do(now.pod))
    left_s = allocated_s + patience.passed_over_s - now_s
    if left_s > 0:
        return left_s
    if now.passed_over or (now.quiet_s >= patience.passed_over_s and now.others_wait):
        return LedNowhere("passed-over", node_matters=_others_may_do(now.pod))
    until_quiet_s = patience.passed_over_s - now.quiet_s
    return min(until_quiet_s, LOOK_S) if until_quiet_s > 0 else LOOK_S


def _until_room_is_made(
    now: Situation, allocated_s: float, now_s: float, patience: Patience
) -> LedNowhere | Nudge | float:
    """kube-scheduler announces evictions by naming the node in the same write as its message. It has as long for that
    as a pod may be passed over; an earlier message may be older than the allocation."""
    left_s = allocated_s + (PREEMPTION_S if now.nominated else patience.passed_over_s) - now_s
    if left_s <= 0:
        return LedNowhere(PREEMPTED, node_matters=True)
    if now.nominated:
        return min(left_s, LOOK_S)
    nudge_s = max(allocated_s + NUDGE_S, now.pod.nudged_s + LOOK_S)
    return Nudge(now.node) if now_s >= nudge_s else min(left_s, nudge_s - now_s)


def _knew(now: Situation, allocated_s: float) -> bool:
    """Return whether kube-scheduler had seen the allocation when it wrote its message.

    If another node would do for a pod whose claims are all allocated, kube-scheduler itself clears the allocation.
    """
    said = now.pod.said
    if said is None or (now.whole and NOT_SEEN in said.message):
        return False
    settle_s = 0.0 if said.others_would_do and not now.whole else SETTLE_S
    return now.pod.said_s > allocated_s + settle_s


def _others_may_do(pod: PodRecord) -> bool:
    """Return whether another node may do. An Unschedulable verdict that names no such node means that no node would do,
    for any division of the devices."""
    return pod.said is not None and (pod.said.others_would_do or pod.said.reason != UNSCHEDULABLE)
