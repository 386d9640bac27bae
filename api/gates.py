"""Scheduling gates of pods (pod.spec.schedulingGates, KEP-3521): ours, and those of others."""

from __future__ import annotations

from dracaena.api.names import allocation_gate
from dracaena.api.objects import Pod


def is_at_our_gate(pod: Pod, driver: str) -> bool:
    """Whether a pod waits at our gate and at no other. Others may still change what a pod asks of nodes (Kueue does),
    so its decision waits until their gates are gone. No gate can come back once the pod exists.
    """
    return [gate.name for gate in pod.spec.scheduling_gates] == [allocation_gate(driver)]


def gates_of_others(pod: Pod, driver: str) -> tuple[str, ...]:
    """Return the names of the gates that others have to remove, in the order of the spec."""
    return tuple(gate.name for gate in pod.spec.scheduling_gates if gate.name != allocation_gate(driver))
