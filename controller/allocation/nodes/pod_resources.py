"""What a pod takes of a node besides devices: CPU, memory, disk, extended resources, host ports, one place.

The sums are those of kube-scheduler 1.36 (KEP-753 for sidecars, KEP-2837 for pod-level resources, KEP-1287 for
resizing): a pod that we count smaller than it does would be pinned to a node that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from dracaena.api.objects import Container, ContainerStatus, Node, Pod, Quantities, ResourceRequests
from dracaena.api.quantity import NANO, parse_quantity

PODS: Final = "pods"
CPU: Final = "cpu"
_ALWAYS_COUNTED: Final = frozenset({CPU, "memory", "ephemeral-storage"})
_MILLI: Final = NANO // 1000

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - a value of the API, nothing is bound

Amounts = tuple[tuple[str, int], ...]
"""Resource → amount, by name, none zero: CPU in thousandths of a core, `pods` in pods, all else in ones (bytes)."""

_Exact = dict[str, int]
"""Resource → billionths: sums are exact, and rounded up once."""


class HostPort(NamedTuple):
    """A port of the node that a pod takes; ANY_ADDRESS takes it on all addresses."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Return whether the two ports cannot be on one node."""
        return (self.protocol, self.port) == (other.protocol, other.port) and (
            self.address == other.address or ANY_ADDRESS in (self.address, other.address)
        )


@dataclass(frozen=True, slots=True)
class PodResources:
    """Everything that a pod takes; equal for equal pods."""

    amounts: Amounts
    ports: tuple[HostPort, ...] = ()
    priority: int = 0
    """spec.priority: kube-scheduler may evict the pod for pods with a higher one."""


class UnreadableQuantityError(ValueError):
    """An amount that is no Quantity. The API server accepts none; files may contain some."""


def pod_resources(pod: Pod) -> PodResources:
    """Return what a pod takes, both as it is and as it is being resized. Raises UnreadableQuantityError."""
    total = _containers(pod)
    resources = pod.spec.resources
    if resources is not None:
        effective: _Exact | None = None
        if pod.status.resources is not None:
            effective = _resized(pod, resources.requests, pod.status.resources, pod.status.allocated_resources)
        for name, amount in _exact(resources.requests).items():
            if name in (CPU, "memory") or name.startswith("hugepages-"):
                total[name] = amount if effective is None else effective.get(name, 0)
    _add(total, _exact(pod.spec.overhead))
    return shared_resources(_rounded({**total, PODS: NANO}), _host_ports(pod), pod.spec.priority)


def readable_resources(pod: Pod) -> PodResources:
    """Return what a pod takes; a pod with an unreadable amount takes only its place."""
    try:
        return pod_resources(pod)
    except UnreadableQuantityError:
        return shared_resources(((PODS, 1),), (), pod.spec.priority)


def node_allocatable(node: Node) -> Mapping[str, int] | None:
    """Return what a node has for pods, in the units of Amounts; None when the node says nothing at all.

    An unreadable amount counts as zero.
    """
    if node.status is None:
        return None
    readable = {}
    for name, value in node.status.allocatable.items():
        try:
            readable[name] = parse_quantity(str(value)).nano
        except ValueError:
            continue
    return dict(_rounded(readable))


@lru_cache(8_192)
def shared_resources(amounts: Amounts, ports: tuple[HostPort, ...], priority: int = 0) -> PodResources:
    """Return one object for equal values: the pods of a cluster come from few templates."""
    return PodResources(amounts, ports, priority)


def _containers(pod: Pod) -> _Exact:
    """Return the sum of all containers that run together or, if more, what starts before them, for each resource."""
    statuses = {status.name: status for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    total: _Exact = {}
    for container in pod.spec.containers:
        _add(total, _of_container(pod, container, statuses))
    sidecars: _Exact = {}
    largest: _Exact = {}
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            wanted = _of_container(pod, container, statuses)
            _add(total, wanted)
            _add(sidecars, wanted)
            starting = sidecars
        else:
            starting = _exact(container.resources.requests)
            _add(starting, sidecars)
        _raise(largest, starting)
    _raise(total, largest)
    return total


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the containers."""
    return container.restart_policy == "Always"


def _of_container(pod: Pod, container: Container, statuses: Mapping[str, ContainerStatus]) -> _Exact:
    status = statuses.get(container.name)
    if status is None or status.resources is None:
        return _exact(container.resources.requests)
    return _resized(pod, container.resources.requests, status.resources, status.allocated_resources)


def _resized(pod: Pod, wanted: Quantities, actual: ResourceRequests, allocated: Quantities) -> _Exact:
    """Return the most of what is wanted, in use and promised; what is wanted does not count if it is infeasible."""
    pending = next((one for one in pod.status.conditions if one.type == "PodResizePending"), None)
    infeasible = pending is not None and pending.reason == "Infeasible"
    found = {} if infeasible else _exact(wanted)
    _raise(found, _exact(actual.requests))
    _raise(found, _exact(allocated))
    return found


def _host_ports(pod: Pod) -> tuple[HostPort, ...]:
    running: Iterable[Container] = (*filter(is_sidecar, pod.spec.init_containers), *pod.spec.containers)
    found = {
        HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in running
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(sorted(found))


def _exact(requests: Quantities) -> _Exact:
    amounts = {}
    for name, value in requests.items():
        try:
            amounts[name] = parse_quantity(str(value)).nano
        except ValueError as error:
            raise UnreadableQuantityError(f"request for {name}: {error}") from None
    return amounts


def _rounded(exact: _Exact) -> Amounts:
    """Round up, as Kubernetes does, and drop what the scheduler does not count."""
    rounded = []
    for name in sorted(exact):
        amount = -(-exact[name] // (_MILLI if name == CPU else NANO))
        if amount and (name == PODS or _is_counted(name)):
            rounded.append((name, amount))
    return tuple(rounded)


def _is_counted(name: str) -> bool:
    if "/" in name:
        return "kubernetes.io/" in name or not name.startswith("requests.")
    return name in _ALWAYS_COUNTED or name.startswith(("hugepages-", "attachable-volumes-"))


def _add(total: _Exact, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: _Exact, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount
