"""What we know about one unbound pod: what kube-scheduler said about it, and which nodes we leave out for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from dracaena.api.objects import ENDED, Pod
from dracaena.controller.lifecycle.versions import version_of

ELSEWHERE: Final = "resourceclaim not available on the node"
"""kube-scheduler's words for a node that would do if an allocated claim of the pod were not on another node."""

TRIED: Final = "tried before without success"
"""Why a node is left out for a pod, in words that follow a count."""


@dataclass(frozen=True, slots=True)
class Said:
    """What kube-scheduler last said about a pod that it did not bind (condition PodScheduled)."""

    reason: str
    message: str

    @property
    def others_would_do(self) -> bool:
        """Whether some node was refused only because the devices are on another one."""
        return ELSEWHERE in self.message


@dataclass(frozen=True, slots=True)
class Wait:
    """A back-off. `again_s` is a reading of our monotonic clock; `again_at` is the same moment in RFC 3339."""

    tries: int = 0
    again_s: float = 0.0
    again_at: str = ""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod without a node. Times are readings of our monotonic clock when our watch showed something."""

    key: str
    uid: str
    first_seen_s: float
    said: Said | None = None
    said_s: float = 0.0
    """When that was first shown."""
    version: int = 0
    """resourceVersion of the newest state that the watch showed or the server answered with."""
    requested_s: float = float("-inf")
    """When we sent the latest request for this pod whose answer showed it without a node."""
    requested_version: int = 0
    """resourceVersion in that answer. The watch may lag by any amount of time, so only messages in a later version were
    certainly written after `requested_s`."""
    spoke_s: float = float("-inf")
    """kube-scheduler ended an attempt for this pod after this time: a state later than that answer has a new message,
    or no longer has our probe."""
    is_gated: bool = False
    """Whether a scheduling gate holds the pod in that state: kube-scheduler has not tried it up to then."""
    probed: bool = False
    """Whether our probe is in the condition: the next failing attempt removes it, even if its message is the same."""
    nominated: str = ""
    """The node that kube-scheduler, or our own hint, names (status.nominatedNodeName)."""
    nominated_s: float = float("-inf")
    """When that node was first shown, or its absence after it was removed."""
    nudged_s: float = float("-inf")
    """When we last made kube-scheduler try the pod."""
    no_preemption: Wait = Wait()
    """The back-off during which the pod gets no node where others would have to be evicted first: their eviction may
    come to nothing each time."""
    left_out: Mapping[str, Wait] = field(default_factory=dict)
    """Nodes where an allocation led nowhere, with the back-off."""
    all_left_out: Wait = Wait()
    left_out_for: Said | None = None
    """What kube-scheduler had said when all nodes were left out. They are left out only while it says the same."""

    def nodes_left_out(self, now_s: float) -> Mapping[str, Wait]:
        """Return the nodes that are left out now."""
        return {node: wait for node, wait in self.left_out.items() if wait.again_s > now_s}

    def by_tries(self) -> Iterator[Mapping[str, str]]:
        """Yield the nodes that were tried before, with the reason; then those that were tried more than once, and so
        on. Who leaves out each set in turn tries every node before it tries one again."""
        for tries in sorted({wait.tries for wait in self.left_out.values()}):
            yield {node: TRIED for node, wait in self.left_out.items() if wait.tries >= tries}

    def may_preempt(self, now_s: float) -> bool:
        """Return whether the pod may get a node where others have to be evicted first."""
        return self.no_preemption.again_s <= now_s

    def first_wait(self, now_s: float, *, evicting: bool) -> Wait | None:
        """Of the back-offs for nodes and for preemption, return the one that ends first; None when there is none.
        `evicting`: others are being evicted for the pod, so it is not known yet when the one for preemption ends."""
        waits = [*self.nodes_left_out(now_s).values()]
        if self.no_preemption.again_s > now_s and not evicting:
            waits.append(self.no_preemption)
        return min(waits, key=lambda wait: wait.again_s, default=None)

    def held(self, now_s: float) -> Wait | None:
        """Return the back-off during which all nodes are left out, None when some may be tried."""
        is_held = self.all_left_out.again_s > now_s and self.said == self.left_out_for
        return self.all_left_out if is_held else None


def is_unbound(pod: Pod) -> bool:
    """Return whether a pod may still be bound."""
    return not pod.spec.node_name and pod.status.phase not in ENDED


def see(record: PodRecord | None, pod: Pod, now_s: float) -> PodRecord:
    """Return the record of an unbound pod after the watch showed it. `record` is that of the same pod, or None."""
    said, probed = _said(pod)
    version = version_of(pod)
    is_gated = bool(pod.spec.scheduling_gates)
    if record is None:
        record = PodRecord(pod.key, pod.metadata.uid, now_s, said, now_s)
        return replace(
            record, version=version, is_gated=is_gated, probed=probed, nominated=pod.status.nominated_node_name
        )
    if version < record.version:
        return record
    changed = replace(record, version=version, is_gated=is_gated, probed=probed)
    if pod.status.nominated_node_name != record.nominated:
        changed = replace(changed, nominated=pod.status.nominated_node_name, nominated_s=now_s)
    if said != record.said:
        changed = replace(changed, said=said, said_s=now_s)
        if said is None:
            return changed  # kube-scheduler never removes its message: another client did
    elif not record.probed or probed:
        return changed
    return replace(changed, spoke_s=record.requested_s) if version > record.requested_version else changed


def read_unbound(record: PodRecord, pod: Pod, requested_s: float, now_s: float) -> PodRecord:
    """Return the record after a request sent at `requested_s` was answered with the pod, still without a node."""
    if version_of(pod) < record.version:
        return record  # the watch is ahead: its message may date from before or after the request
    seen = see(record, pod, now_s)
    if requested_s <= record.requested_s:
        return seen  # two requests were under way, and the later one was answered first
    return replace(seen, requested_s=requested_s, requested_version=seen.version)


def _said(pod: Pod) -> tuple[Said | None, bool]:
    """Return what kube-scheduler says, and whether our probe is there. SchedulingGated comes from the API server."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason != "SchedulingGated":
            return Said(condition.reason, condition.message), bool(condition.last_probe_time)
    return None, False


@dataclass(frozen=True, slots=True)
class Growth:
    """How a back-off grows: it doubles each time, from the first to the longest, in seconds."""

    first_s: float
    longest_s: float


def leave_out(record: PodRecord, node: str, now_s: float, now: datetime, growth: Growth) -> PodRecord:
    """Return the record of a pod for which a node is left out for a while. A repeat for the same node within that time
    does not count."""
    wait = _grown(record.left_out.get(node, Wait()), now_s, now, growth)
    return replace(record, left_out={**record.left_out, node: wait})


def leave_all_out(record: PodRecord, now_s: float, now: datetime, growth: Growth) -> PodRecord:
    """Return the record of a pod for which all nodes are left out as long as kube-scheduler says what it says now."""
    wait = _grown(record.all_left_out, now_s, now, growth)
    return replace(record, all_left_out=wait, left_out_for=record.said)


def preempt_later(record: PodRecord, now_s: float, now: datetime, growth: Growth) -> PodRecord:
    """Return the record of a pod for which preemption has to wait for a while: others were evicted for it, or nobody
    was, or they did not go in time."""
    return replace(record, no_preemption=_grown(record.no_preemption, now_s, now, growth))


def restart_wait_to_preempt(record: PodRecord, now_s: float, now: datetime, growth: Growth) -> PodRecord:
    """Return the record of a pod whose back-off before preemption restarts with the same length."""
    return replace(record, no_preemption=_again(max(record.no_preemption.tries, 1), now_s, now, growth))


def restart_wait(record: PodRecord, node: str, now_s: float, now: datetime, growth: Growth) -> PodRecord:
    """Return the record of a pod whose back-off for a node restarts with the same length; where it has none for this
    node, the back-off for all nodes restarts."""
    wait = record.left_out.get(node)
    if wait is not None:
        return replace(record, left_out={**record.left_out, node: _again(wait.tries, now_s, now, growth)})
    if record.all_left_out.tries:
        return replace(record, all_left_out=_again(record.all_left_out.tries, now_s, now, growth))
    return record


def _grown(wait: Wait, now_s: float, now: datetime, growth: Growth) -> Wait:
    if wait.again_s > now_s:
        return wait
    return _again(wait.tries + 1, now_s, now, growth)


def _again(tries: int, now_s: float, now: datetime, growth: Growth) -> Wait:
    for_s = min(growth.first_s * 2.0 ** min(tries - 1, 20), growth.longest_s)
    again_at = (now + timedelta(seconds=for_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Wait(tries, now_s + for_s, again_at)
