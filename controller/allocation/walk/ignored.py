"""What has no effect in claims and containers: the API accepts it, it does nothing, and nothing else reports it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dracaena import cel
from dracaena.api import reasons
from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.quantity import Quantity
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.sharing import in_words
from dracaena.controller.allocation.legal.capacity import amounts
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.claims import Config
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.request import ClaimDemand, Refused, RequestDemand
from dracaena.controller.allocation.state.device_kind import reads_identity
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.published_names import PublishedNames

OFFERING: Final = "no node that offers GPUs"
"""Other nodes may be kept for kube-scheduler, or publish their GPUs later."""


def ignored_parts(
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    others: Collection[str],
    selectors: CelSelectors,
    names: PublishedNames,
    features: Features,
) -> tuple[str, ...]:
    """Return what has no effect, in the order of the claims, then of the containers; each once. Nothing about claims
    that cannot be read, or that are not about devices of ours: others may know what to do with them. `others` are the
    claims that other pods also name: what no container of this pod uses, theirs may.

    Cost: a step for each request and configuration; a look at each device of each kind of node where there are
    alternatives or capacities. It may raise OverdueError.
    """
    demands = inventory.requests.read(claims)
    if isinstance(demands, Refused) or inventory.allowed_drivers:
        return ()
    ours = tuple(demand for demand in demands if all(_is_of_ours(inventory, one) for one in _every(demand)))
    found: list[str] = []
    for demand in ours:
        found += _of_claim(inventory, demand, selectors, names, features)
    found += _of_containers(pod, {demand.claim.key: demand for demand in ours}, others)
    return tuple(dict.fromkeys(found))


def _every(demand: ClaimDemand) -> Iterator[RequestDemand]:
    for alternatives in demand.requests:
        yield from alternatives


def _is_of_ours(inventory: Inventory, request: RequestDemand) -> bool:
    return inventory.requests.class_concerns_us(request.device_class.name)


def _of_claim(
    inventory: Inventory, demand: ClaimDemand, selectors: CelSelectors, names: PublishedNames, features: Features
) -> Iterator[str]:
    driver, key = inventory.driver, demand.claim.key
    for config in _foreign(demand.spec.configs, driver):
        yield f"claim {key}: {reasons.foreign_config(config.driver, driver)}"
    for alternatives in demand.requests:
        for one in alternatives:
            where = f"claim {key}, request {one.name}"
            for config in _foreign(one.device_class.configs, driver):
                yield f"DeviceClass {one.device_class.name}: {reasons.foreign_config(config.driver, driver)}"
            for text in _of_capacity(inventory, one, names):
                yield f"{where}: {text}"
            why = _why_dead(inventory, one, selectors, names, features) if len(alternatives) > 1 else None
            if why is not None:
                yield f"{where}: {reasons.dead_alternative(why)}"


def _foreign(configs: Sequence[Config], driver: str) -> Iterator[Config]:
    return (config for config in configs if config.driver != driver)


def _of_capacity(inventory: Inventory, request: RequestDemand, names: PublishedNames) -> Iterator[str]:
    wanted = request.request.capacity
    if not wanted:
        return
    unknown = names.unknown(inventory, tuple(map(reasons.ReadName.of_request, sorted(wanted))))
    yield from unknown
    if not unknown and not any(device.allow_multiple_allocations for device in inventory.kinds_of_devices()):
        yield reasons.whole_gpu()


def _why_dead(
    inventory: Inventory, request: RequestDemand, selectors: CelSelectors, names: PublishedNames, features: Features
) -> str | None:
    """Return why no node has that many devices that match and are large enough, in use or not; None if one has, if that
    is unknown for a kind of device, or if nothing is published."""
    expressions = (*request.device_class.selectors, *request.request.selectors)
    footprints = [selectors.footprint(expression) for expression in expressions]
    readable = [found for found in footprints if isinstance(found, cel.Footprint)]
    if len(readable) < len(footprints) or any(reads_identity(inventory.driver, found) for found in readable):
        return None
    wanted = _Amounts(inventory, request, names, features)
    is_empty, is_matched, most = True, False, 0
    for kind in inventory.buckets:
        serving = 0
        for device in inventory.devices_of(kind):
            is_empty = False
            if not _matches(selectors, expressions, device):
                continue
            is_matched = True
            if not wanted.are_there(device):
                continue
            serving += 1
            if serving >= request.count or request.request.all_devices or device.allow_multiple_allocations:
                return None
        most = max(most, serving)
    if is_empty:
        return None
    if most:
        return reasons.too_few_gpus(OFFERING, request.count, most, wanted.which)
    if is_matched:
        return wanted.why()
    read = tuple(name for found in readable for name in reasons.ReadName.of_paths(found.paths))
    return "; ".join(names.unknown(inventory, read)) or reasons.NO_SUCH_GPU


class _Amounts:
    """The amounts of capacities that an alternative wants of each GPU, and the most that was seen of each. If no GPU
    has some name, that is reported alone, and nothing about amounts."""

    def __init__(self, inventory: Inventory, request: RequestDemand, names: PublishedNames, features: Features) -> None:
        wanted = (request.request.capacity or {}) if features.consumable_capacity else {}
        unknown = names.unknown(inventory, tuple(map(reasons.ReadName.of_request, sorted(wanted))))
        self._wanted: Mapping[str, Quantity] = {} if unknown else wanted
        self._fractional = features.fractional_capacity_range
        self._is_refused = False
        self._most_nano = dict.fromkeys(self._wanted, 0)

    def are_there(self, device: PublishedDevice) -> bool:
        """Whether an unused device has that much of each."""
        if not self._wanted:
            return True
        values = {capacity.name: capacity.value.nano for capacity in device.capacities}
        for name in self._most_nano:
            self._most_nano[name] = max(self._most_nano[name], values.get(name, 0))
        taken = amounts(device, self._wanted, fractional=self._fractional)
        is_there = taken is not None and all(amount.nano <= values[name] for name, amount in taken.items())
        self._is_refused |= not is_there
        return is_there

    @property
    def which(self) -> str:
        """Which GPUs count, in words that follow their number."""
        return reasons.LARGE_ENOUGH if self._is_refused else reasons.MATCHING

    def why(self) -> str:
        """Say why none of the devices seen is large enough."""
        for name, most_nano in self._most_nano.items():
            wanted_nano = self._wanted[name].nano
            if wanted_nano > most_nano:
                wanted, most = (in_words(name, nano) for nano in (wanted_nano, most_nano))
                return reasons.too_small_gpus(wanted, most, reasons.MATCHING)
        return reasons.NO_GPU_FOR_AMOUNTS


def _matches(selectors: CelSelectors, expressions: Sequence[str], device: PublishedDevice) -> bool:
    return all(selectors.evaluate(expression, device) is True for expression in expressions)


def _of_containers(pod: Pod, demands: Mapping[str, ClaimDemand], others: Collection[str]) -> Iterator[str]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    for reference in pod_claims(pod):
        demand = demands.get(reference.key or "")
        if demand is None or not containers:
            continue
        known = {request.name for request in demand.spec.requests}
        used: set[str] = set()
        for container in containers:
            for use in container.resources.claims:
                if use.name != reference.alias:
                    continue
                used |= {use.request} if use.request else known
                if use.request and use.request not in known:
                    yield reasons.unknown_request(use.request, use.name, known)
        for request in demand.spec.requests:
            if request.name not in used and demand.claim.key not in others:
                yield reasons.unused_request(request.name, reference.alias)
