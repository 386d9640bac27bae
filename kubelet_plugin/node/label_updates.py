"""Hands the labels of this node to its subscribers whenever they change, in the order in which they subscribed."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class LabelUpdates:
    """Subscribe everybody before the first publish(), which comes from one thread at a time."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Mapping[str, str]], None]] = []
        self._last: Mapping[str, str] | None = None

    def subscribe(self, take: Callable[[Mapping[str, str]], None]) -> None:
        """Have `take` called with the labels when the Node is first seen, and with each change from then on. It must
        not block.
        """
        self._subscribers.append(take)

    def publish(self, labels: Mapping[str, str]) -> None:
        """Pass on the labels that the Node has now; labels that nobody changed are not passed on again, unless that
        failed. Raises what a subscriber raises; those after it then do not get the labels.
        """
        if labels == self._last:
            return
        self._last = None
        for take in self._subscribers:
            take(labels)
        self._last = dict(labels)
