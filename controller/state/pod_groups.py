"""Which pods each PodGroup has, and which of them wait for devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dracaena.api.objects import Pod
from dracaena.api.podclaims import group_of
from dracaena.controller.lifecycle.pod_record import is_unbound


class PodGroups:
    """Kept up to date at each change of a pod and of what its claims have, so that no caller has to look at a whole
    group to learn about one of its pods. Only pods that name claims count. Part of its owner, and used under the
    owner's lock. Cost: O(1) per call, and a look at a pod's claims."""

    def __init__(self, waits: Callable[[Pod], bool]) -> None:
        """`waits` returns whether some claim of a pod has no devices, and none were decided for it."""
        self._waits = waits
        self._pods: dict[str, dict[str, bool]] = {}  # PodGroup → its pods → whether it is bound
        self._bound_counts: dict[str, int] = {}  # of these PodGroups that have bound pods
        self._waiting: dict[str, dict[str, None]] = {}  # PodGroup → its pods that wait

    def unbound(self) -> tuple[str, ...]:
        """Return the PodGroups (`namespace/name`) whose pods are all unbound, sorted."""
        return tuple(sorted(group for group in self._pods if group not in self._bound_counts))

    def pods(self, group: str) -> tuple[str, ...]:
        """Return the keys of the pods of a PodGroup, sorted. Cost: O(its pods × log its pods)."""
        return tuple(sorted(self._pods.get(group, ())))

    def waiting(self, group: str) -> Collection[str]:
        """Return the keys of its pods that may still be bound and that wait."""
        return self._waiting.get(group, {}).keys()

    def change(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a change of a pod, once its claims are known."""
        if old is not None and (group := group_of(old)) is not None:
            self._leave(group, old.key)
        if new is not None and new.spec.resource_claims and (group := group_of(new)) is not None:
            is_bound = bool(new.spec.node_name)
            self._pods.setdefault(group, {})[new.key] = is_bound
            if is_bound:
                self._bound_counts[group] = self._bound_counts.get(group, 0) + 1
            self.look_again((new,))

    def look_again(self, pods: Iterable[Pod]) -> None:
        """Find out whether pods wait now that one of their claims has got devices, or lost them."""
        for pod in pods:
            group = group_of(pod)
            if group is None:
                continue
            may_be_bound = is_unbound(pod) and pod.metadata.deletion_timestamp is None
            if may_be_bound and self._waits(pod):
                self._waiting.setdefault(group, {})[pod.key] = None
            else:
                self._stop_waiting(group, pod.key)

    def _leave(self, group: str, pod_key: str) -> None:
        pods = self._pods.get(group, {})
        if pods.pop(pod_key, False):
            self._bound_counts[group] -= 1
            if not self._bound_counts[group]:
                del self._bound_counts[group]
        if not pods:
            self._pods.pop(group, None)
        self._stop_waiting(group, pod_key)

    def _stop_waiting(self, group: str, pod_key: str) -> None:
        waiting = self._waiting.get(group, {})
        waiting.pop(pod_key, None)
        if not waiting:
            self._waiting.pop(group, None)
