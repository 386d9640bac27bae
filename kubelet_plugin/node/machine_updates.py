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
        """Say that another reading found the last machine. Raises what a subscriber raises; as publish() otherwise."""
        for look in self._same:
            look()

    def publish(self, machine: Machine) -> None:
        """Pass a machine on. Raises what a subscriber raises; those after it do not get the machine then.

        The first subscriber publishes the devices; the node hears of another driver only after that.
        """
        first, *others = self._subscribers
        first(machine)
        before, self._gpu_driver_version = self._gpu_driver_version, machine.driver_version
        if before is not None and before != machine.driver_version:
            self._events.gpu_driver_replaced(before, machine.driver_version)
        for take in others:
            take(machine)
