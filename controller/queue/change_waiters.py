"""Which waiting pods a change may help: pods that wait for other pods to come or go, or for their storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dracaena.controller.allocation.nodes.placement.placed_pods import Change, PodCount


class ChangeWaiters:
    """An index from changes to pods. Part of its owner, and used under the owner's lock. Cost of each call: one step
    per change that it names."""

    def __init__(self) -> None:
        self._waiting: dict[str, Mapping[Change, PodCount | None]] = {}  # holding on to a count keeps it up to date
        self._by_change: dict[Change, set[str]] = {}

    def wait(self, key: str, waits_for: Mapping[Change, PodCount | None]) -> None:
        """Let a pod wait for any of these changes, and for no others."""
        self.leave(key)
        if waits_for:
            self._waiting[key] = waits_for
            for change in waits_for:
                self._by_change.setdefault(change, set()).add(key)

    def leave(self, key: str) -> None:
        """Let a pod wait no more."""
        for change in self._waiting.pop(key, {}):
            keys = self._by_change[change]
            keys.discard(key)
            if not keys:
                del self._by_change[change]

    def waiting_for(self, changes: Iterable[Change]) -> frozenset[str]:
        """Return the pods that wait for one of these changes."""
        return frozenset(key for change in changes for key in self._by_change.get(change, ()))
