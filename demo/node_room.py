"""Whether what a pod requests is left on a node, as far as the scheduler stand-in honours it. Pure.

It shares no code with the controller's own sums, so that a mistake in either shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dracaena.api.objects import ENDED, Container, Node, Pod
from dracaena.api.quantity import read_quantity


def shortages(pod: Pod, node: Node, others: Iterable[Pod]) -> tuple[str, ...]:
    """Return what the node lacks for the pod in addition to the pods there, in kube-scheduler's words, sorted.

    Honoured: the number of pods, and requests of every resource of containers, init containers and sidecars, with
    overhead. Not honoured: requests of a whole pod (spec.resources), resizing, host ports. Pods that have ended take
    nothing.
    """
    there = [other for other in others if other.status.phase not in ENDED]
    allocatable = node.status.allocatable if node.status is not None else {}
    left = {name: read_quantity(str(amount)).quantity.nano for name, amount in allocatable.items()}
    places = left.pop("pods", 0) // 10**9
    for other in there:
        for name, amount in requested(other).items():
            left[name] = left.get(name, 0) - amount
    found = ["Too many pods"] if len(there) >= places else []
    found += [f"Insufficient {name}" for name, amount in requested(pod).items() if amount > max(left.get(name, 0), 0)]
    return tuple(sorted(found))


def requested(pod: Pod) -> dict[str, int]:
    """Return the most that a pod needs at any moment, by resource, in billionths."""
    names = {
        name for container in (*pod.spec.containers, *pod.spec.init_containers) for name in container.resources.requests
    } | pod.spec.overhead.keys()
    return {name: _peak(pod, name) + _amount(pod.spec.overhead, name) for name in sorted(names)}


def _peak(pod: Pod, name: str) -> int:
    """Follow the pod's life: each init container with the sidecars that run by then, finally all containers."""
    sidecars = peak = 0
    for container in pod.spec.init_containers:
        amount = _request(container, name)
        peak = max(peak, sidecars + amount)
        if container.restart_policy == "Always":
            sidecars += amount
    return max(peak, sidecars + sum(_request(container, name) for container in pod.spec.containers))


def _request(container: Container, name: str) -> int:
    return _amount(container.resources.requests, name)


def _amount(requests: Mapping[str, str | int | float], name: str) -> int:
    return read_quantity(str(requests.get(name, 0))).quantity.nano
