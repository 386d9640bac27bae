"""Hands each new reading of this node's GPUs to its subscribers, in the order in which they subscribed."""

from __future__ import annotations

from collections.abc import Callable

from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.node.events import NodeEvents


class MachineUpdates:
    """Subscribe everybody before the first publish(), which comes from one thread at a time."""

    def __init__(self, events: NodeEvents) -> None:
        self._events = events
        self._subscribers: list[Callable[[Machine], None]] = []
        self._same: list[Callable[[], None]] = []
        self._gpu_driver_version: str | None = None

    def subscribe(self, take: Callable[[Machine], None], *, same: Callable[[], None] | None = None) -> None:
        """Have `take` called for each machine from now on, and `same` for each reading that equals the last."""
        self._subscribers.append(take)
        if same is not None:
            self._same.append(same)

    def same(self) -> None:
        """Report a reading that equals the last. Like publish(), raises what a subscriber raises."""
        for look in self._same:
            look()

    def publish(self, machine: Machine) -> None:
        """Pass a machine on. Raises what a subscriber raises; those after it then do not get the machine.

        The first subscriber publishes the devices; only then does the node get an Event about a replaced driver.
        """
        first, *others = self._subscribers
        first(machine)
        before, self._gpu_driver_version = self._gpu_driver_version, machine.driver_version
        if before is not None and before != machine.driver_version:
            self._events.gpu_driver_replaced(before, machine.driver_version)
        for take in others:
            take(machine)
