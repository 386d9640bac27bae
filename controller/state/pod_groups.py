"""Which pods each group has that may be a gang, and which of them wait for devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dracaena.api.objects import ENDED, Pod
from dracaena.controller.allocation.state.gangs import Family, group_of, labelled_size
from dracaena.controller.lifecycle.pod_record import is_unbound


@dataclass(slots=True)
class _Members:
    """The pods of one group."""

    pods: dict[str, bool] = field(default_factory=dict)
    """Those that name claims → whether they are bound."""
    bound: int = 0
    waiting: dict[str, None] = field(default_factory=dict)
    """Those that wait."""
    staying: dict[str, int] = field(default_factory=dict)
    """All that have not ended and are not being deleted, also without claims → the size in their label, or 0."""
    plain: int = 0
    """How many of these name no claims."""
    labels: Counter[int] = field(default_factory=Counter)
    """The sizes in labels of those → of how many."""


_NOBODY = _Members()


class PodGroups:
    """Kept up to date at each change of a pod and of what its claims have, so that no caller has to look at a whole
    group to learn about one of its pods. Part of its owner, and used under the owner's lock. Cost: O(1) per call, a
    look at a pod's claims, and a step for each size in the labels of its group.

    A pod that failed is in no group: a Job keeps the failed pods of a gang that starts once more. One that succeeded
    stays bound, so that a pod that is repeated after the others are done does not wait for them."""

    def __init__(self, waits: Callable[[Pod], bool]) -> None:
        """`waits` returns whether some claim of a pod has no devices, and none were decided for it."""
        self._waits = waits
        self._groups: dict[Family, _Members] = {}
        self._group_of: dict[str, Family] = {}

    def unbound(self) -> tuple[Family, ...]:
        """Return the groups whose pods with claims are all unbound, sorted."""
        return tuple(sorted(group for group, members in self._groups.items() if members.pods and not members.bound))

    def has_bound(self, group: Family) -> bool:
        """Return whether a pod of a group that names claims is bound."""
        return self._of(group).bound > 0

    def pods(self, group: Family) -> tuple[str, ...]:
        """Return the keys of the pods of a group that name claims, sorted. Cost: O(its pods × log its pods)."""
        return tuple(sorted(self._of(group).pods))

    def waiting(self, group: Family) -> Collection[str]:
        """Return the keys of its pods that may still be bound and that wait."""
        return self._of(group).waiting.keys()

    def count(self, group: Family) -> int:
        """Return how many pods of a group there are, also without claims: neither ended nor being deleted."""
        return len(self._of(group).staying)

    def count_without_claims(self, group: Family) -> int:
        """Return how many of these name no claims."""
        return self._of(group).plain

    def labelled_size(self, group: Family) -> int | None:
        """Return the largest size that these pods have in their labels. Cost: a step for each size."""
        return max(self._of(group).labels, default=0) or None

    def change(self, key: str, new: Pod | None) -> None:
        """Take in a change of a pod, once its claims are known."""
        self._leave(key)
        group = None if new is None else group_of(new)
        if new is None or group is None or new.status.phase == "Failed":
            return
        stays = new.status.phase not in ENDED and new.metadata.deletion_timestamp is None
        if not stays and not new.spec.resource_claims:
            return
        self._group_of[key] = group
        members = self._groups.setdefault(group, _Members())
        if stays:
            size = members.staying[key] = labelled_size(new) or 0
            members.labels[size] += 1
            members.plain += not new.spec.resource_claims
        if new.spec.resource_claims:
            members.pods[key] = bool(new.spec.node_name)
            members.bound += members.pods[key]
            self.look_again((new,))

    def look_again(self, pods: Iterable[Pod]) -> None:
        """Find out whether pods wait now that one of their claims has got devices, or lost them."""
        for pod in pods:
            group = self._group_of.get(pod.key)
            if group is None:
                continue
            may_be_bound = is_unbound(pod) and pod.metadata.deletion_timestamp is None
            if may_be_bound and self._waits(pod):
                self._groups[group].waiting[pod.key] = None
            else:
                self._groups[group].waiting.pop(pod.key, None)

    def _of(self, group: Family) -> _Members:
        return self._groups.get(group, _NOBODY)

    def _leave(self, key: str) -> None:
        group = self._group_of.pop(key, None)
        if group is None:
            return
        members = self._groups[group]
        size = members.staying.pop(key, None)
        members.plain -= size is not None and key not in members.pods
        members.bound -= members.pods.pop(key, False)
        members.waiting.pop(key, None)
        if size is not None:
            members.labels[size] -= 1
            members.labels = +members.labels
        if not members.pods and not members.staying:
            del self._groups[group]
