"""What the claims of a pod ask for, or why that cannot be known: read once for each content.

Whether users get an Event when their claims wait is a separate question (`concerns_us`): only if the class is named
like the driver or its selectors name it, or class or claim have an opaque config for it, so that users of other drivers
are not bothered.

Decisions come back to the same claims, and a template makes thousands of claims that ask for the same. So what a spec
says is kept by the digest of its text, and next to it what it says together with the classes that it names
(RequestReader). Short specs are read when the claim comes (see()). A long one, which the API allows up to a megabyte,
is read in its first decision and charged to it (docs/design/queue-and-fairness.md): only its author waits for it.

Last comes what requests that are chosen by links ask of a node, whatever their names and the node's (Question).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dracaena.api import limits
from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config, merged
from dracaena.api.objects import Taint, Toleration
from dracaena.api.packed import LONGEST_UNPACKED_BYTES, unpacked
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.api.sharing import NO_MODE, GpuConfigs, mode_of, requires_mps
from dracaena.controller.allocation.effort import BYTES_A_STEP, CLAIM_STEPS, KNOWN_CLAIM_STEPS, Effort, Memo, Work
from dracaena.controller.allocation.legal.read import claims as legal
from dracaena.controller.allocation.legal.read.claims import (
    MAX_DEVICES,
    Claim,
    Config,
    Request,
    Unsupported,
    read_claim,
    read_class,
)
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.missing_classes import MissingClasses


class RefusalKind(Enum):
    """Why no decision is possible until a person changes something; values are metric labels."""

    CLASS_MISSING = "class-missing"
    CONFIG_BROKEN = "config-broken"
    UNSUPPORTED = "unsupported"
    SELECTOR = "selector"
    LIMIT = "limit"
    OTHER_DRIVER = "other-driver"
    QUOTA = "quota"
    TOO_LONG = "took-too-long"
    """Nothing is wrong, but working it out takes longer than one pod may take; it is tried again after all others."""
    REFUSED_WRITE = "refused-write"
    """The API server does not let us write a claim as it is."""
    INCOMPLETE = "incomplete-gang"
    """Other pods have to be created first: alone this one is of no use."""
    GANG_TOO_LARGE = "gang-too-large"
    """All nodes together could not serve the pods that have to run at once."""
    MISTAKE = "mistake"
    """Another object that a person has to fix, for example a slice."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No decision is possible until a person (or a later version) acts."""

    kind: RefusalKind
    text: str
    concerns_us: bool
    """Whether the pod's user expects our driver, and therefore gets Events."""
    goes_on: bool = False
    """For the kind TOO_LONG: whether the next attempt begins with nodes that no earlier one has asked."""


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """One request of a claim, or one alternative of it, with the class and the policy that apply to it."""

    request: Request
    policy: TopologyPolicy
    device_class: legal.ClassRequirements
    mode: str = NO_MODE
    """How it wants a GPU to be shared if it gets a share of one."""
    requires_mps: bool = False
    """Whether it has MPS, or its pod does not start."""

    @property
    def name(self) -> str:
        """`request`, or `request/subrequest`."""
        return self.request.name

    @property
    def count(self) -> int:
        """Devices; meaningless in mode All."""
        return self.request.count

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """What the request tolerates."""
        return self.request.tolerations


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequests:
    """The requests of a claim, read with the classes that they name. Claims with equal specs share one as long as the
    classes stay as they are, so its identity stands for what is asked for."""

    spec: Claim
    """Without the claim's key and UID."""
    alternatives: tuple[tuple[RequestDemand, ...], ...]
    """The alternatives of each request in order of preference; an exact request has one."""


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """One claim to be served."""

    claim: ResourceClaim
    read: ReadRequests
    spec: Claim = field(init=False)
    """With the claim's own key and UID."""

    def __post_init__(self) -> None:
        known = self.read.spec
        spec = Claim(self.claim.key, known.requests, known.constraints, known.configs)
        object.__setattr__(self, "spec", spec)

    @property
    def requests(self) -> tuple[tuple[RequestDemand, ...], ...]:
        """The alternatives of each request in order of preference; an exact request has one."""
        return self.read.alternatives

    def configs(self, chosen: Iterable[RequestDemand], features: Features) -> tuple[Mapping[str, Any], ...]:
        """Return status.allocation.devices.config when these alternatives are taken: classes' entries, then its own."""
        taken = tuple(chosen)
        configs = (*_class_configs(taken), *_claim_configs(self.spec, taken))
        return tuple(_unnamed(config, taken) for config in configs) if features.unnamed_means_all else configs

    @property
    def excess_configs(self) -> int:
        """How many configs the allocation would have too many at least, whichever alternatives are taken; at most 0: it
        has room for all of them and for one more, the decision."""
        mains = {one.request.main for alternatives in self.requests for one in alternatives}
        of_claim = sum(not config.requests or bool(mains & set(config.requests)) for config in self.spec.configs)
        classes = [{one.device_class.name: one.device_class for one in alternatives} for alternatives in self.requests]
        certain = {name: known for named in classes if len(named) == 1 for name, known in named.items()}
        return of_claim + sum(len(known.configs) for known in certain.values()) + 1 - limits.ALLOCATION_CONFIGS


def tolerates_anything(claim: ResourceClaim) -> bool:
    """Return whether any request of a claim has a toleration. Reads leniently, never raises."""
    return any(entry.get("tolerations") for entry in request_entries(claim.spec))


def classes_asked_for(claim: ResourceClaim) -> frozenset[str]:
    """Return the classes of which a claim cannot do without a device: those of requests without alternatives. Admin
    access does not count. Reads leniently, never raises."""
    exact = (inside(request, "exactly") for request in items(inside(claim.spec, "devices"), "requests"))
    return frozenset(str(one.get("deviceClassName")) for one in exact if one and not one.get("adminAccess"))


def names_selector(document: Mapping[str, Any], expression: str) -> bool:
    """Return whether the spec of a claim or class has this selector anywhere. Reads leniently, never raises."""
    places = (document, *request_entries(document))
    return any(
        inside(entry, "cel").get("expression") == expression for place in places for entry in items(place, "selectors")
    )


def config_drivers(document: Mapping[str, Any]) -> set[object]:
    """Return the drivers that the configs of a class, or of a claim's devices, are for. Lenient, never raises."""
    return {inside(entry, "opaque").get("driver") for entry in items(document, "config")}


def selectors_name(document: Mapping[str, Any], driver: str) -> bool:
    """Return whether a selector of a class contains the driver's name. Reads leniently, never raises."""
    return any(driver in str(inside(entry, "cel").get("expression", "")) for entry in items(document, "selectors"))


def class_names(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the classes that a claim names anywhere, sorted. Reads leniently, never raises."""
    names = (entry.get("deviceClassName") for entry in request_entries(claim.spec))
    return tuple(sorted({name for name in names if isinstance(name, str)}))


def request_entries(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield each request of a claim's spec, and each alternative of it."""
    for request in items(inside(spec, "devices"), "requests"):
        yield from (inside(request, "exactly"), *items(request, "firstAvailable"))


def _class_configs(chosen: Iterable[RequestDemand]) -> Iterator[Mapping[str, Any]]:
    """Yield the configs of all classes once, each naming the requests that use its class."""
    users: dict[str, list[RequestDemand]] = {}
    for demand in chosen:
        users.setdefault(demand.device_class.name, []).append(demand)
    for demands in users.values():
        for config in demands[0].device_class.configs:
            yield {"source": "FromClass", "requests": [demand.name for demand in demands], "opaque": _opaque(config)}


def _claim_configs(spec: Claim, chosen: Iterable[RequestDemand]) -> Iterator[Mapping[str, Any]]:
    names = {name for demand in chosen for name in (demand.request.main, demand.name)}
    for config in spec.configs:
        if not config.requests:
            yield {"source": "FromClaim", "opaque": _opaque(config)}
        elif names & set(config.requests):
            yield {"source": "FromClaim", "requests": list(config.requests), "opaque": _opaque(config)}


def _unnamed(config: Mapping[str, Any], chosen: Iterable[RequestDemand]) -> Mapping[str, Any]:
    """Return a config that covers each request without their names (Features.unnamed_means_all)."""
    named = set(config.get("requests", ()))
    covers_all = all({demand.request.main, demand.name} & named for demand in chosen)
    return {key: value for key, value in config.items() if key != "requests" or not covers_all}


def _opaque(config: Config) -> Mapping[str, Any]:
    return {"driver": config.driver, "parameters": config.parameters}


def inside(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object inside a document, or an empty one if there is none."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list inside a document, packed or not; none if there is no list."""
    value = unpacked(document.get(key))
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


MOST_CHARACTERS: Final = 4 << 20
"""Text of all specs that are kept in memory. The worst, selectors of four letters, take three times their text."""

MOST_SPECS: Final = 4_096
"""Specs that are kept in memory: an ordinary one has 200 bytes of text and takes 3 KiB."""

MOST_REQUESTS: Final = 4_096
"""Specs that are kept together with their classes: about 1 KiB each."""

READ_AHEAD_CHARACTERS: Final = LONGEST_UNPACKED_BYTES
"""The longest spec that is read as soon as the watch delivers it: below 0.2 ms."""

DIGEST_BYTES: Final = 32
"""256 bits: two specs with the same digest cannot be found."""

_Policies = tuple[tuple[tuple[str, ...], TopologyPolicy], ...]
"""The requests that a policy is for (none: all), and the policy."""

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why nothing can be decided about a claim."""

    kind: RefusalKind
    text: str
    of_class: bool = False
    """Whether the text names the class that has to be fixed; else it is about the claim."""

    def about(self, claim: ResourceClaim) -> str:
        return self.text if self.of_class else f"claim {claim.key}: {self.text}"


@dataclass(frozen=True, slots=True, eq=False)
class _ReadClass:
    device_class: legal.ClassRequirements | Unsupported
    policies: _Policies | _Problem
    concerns_us: bool


@dataclass(frozen=True, slots=True, eq=False)
class _ReadSpec:
    spec: Claim | _Problem
    policies: _Policies | _Problem
    class_names: tuple[str, ...]
    has_our_config: bool


class RequestReader:
    """All device classes, and what claims ask for. One owner, one thread at a time."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._classes: dict[str, _ReadClass] = {}
        self._documents: dict[str, DeviceClass] = {}
        self._specs: OrderedDict[bytes, tuple[_ReadSpec, int]] = OrderedDict()
        self._characters = 0
        self._missing = MissingClasses(driver)
        self._requests: Memo[tuple[_ReadSpec, tuple[_ReadClass, ...]], ReadRequests | _Problem] = Memo(MOST_REQUESTS)

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """All device classes by name, as they were published."""
        return MappingProxyType(self._documents)

    def set_class(self, item: DeviceClass) -> None:
        """Take in a device class, new or changed, and read it."""
        name = item.metadata.name
        read = read_class(item)
        policies: _Policies | _Problem = ()
        if not isinstance(read, Unsupported):
            policies = self._policies(read.configs, f"DeviceClass {name}: spec", of_class=True)
        self._documents[name] = item
        self._missing.know(self._documents)
        self._classes[name] = _ReadClass(read, policies, self._means_us(name, item))

    def remove_class(self, name: str) -> None:
        """Forget a device class, if it is there."""
        self._classes.pop(name, None)
        self._documents.pop(name, None)
        self._missing.know(self._documents)

    def see(self, claim: ResourceClaim) -> None:
        """Read the spec of a claim that a decision may soon be about, if it is short."""
        if claim.problem:
            return
        text = _ENCODER.encode(claim.spec)
        if len(text) <= READ_AHEAD_CHARACTERS:
            self._spec(claim, text, None)

    def concerns_us(self, claims: Iterable[ResourceClaim]) -> bool:
        """Return whether the author of any of the claims visibly means our driver. Never raises."""
        return any(self._claim_concerns_us(claim) for claim in claims)

    def class_concerns_us(self, name: str) -> bool:
        """Return whether a class visibly means our driver, by its name, configs or selectors. Never raises."""
        known = self._classes.get(name)
        return self._means_us(name, None) if known is None else known.concerns_us

    def read(self, claims: Iterable[ResourceClaim], effort: Effort | None = None) -> tuple[ClaimDemand, ...] | Refused:
        """Read all claims that are to be allocated; the first that cannot be served refuses them all. Each is charged.

        A claim without requests is left out: it needs no device, and kube-scheduler serves it. Cost: a digest of each
        spec; more for one that was not read before.
        """
        waiting = tuple(claims)
        demands = []
        for claim in waiting:
            found = self._requests_of(claim, effort)
            if isinstance(found, _Problem):
                return Refused(found.kind, found.about(claim), self.concerns_us(waiting))
            if found.alternatives:
                demands.append(ClaimDemand(claim, found))
        return tuple(demands)

    # Inside

    def _claim_concerns_us(self, claim: ResourceClaim) -> bool:
        if claim.problem:
            return False
        read = self._spec(claim, _ENCODER.encode(claim.spec), None)
        return read.has_our_config or any(map(self.class_concerns_us, read.class_names))

    def _means_us(self, name: str, item: DeviceClass | None) -> bool:
        if name.startswith(self._driver) or name.endswith(self._driver):
            return True
        return item is not None and (
            self._driver in config_drivers(item.spec) or selectors_name(item.spec, self._driver)
        )

    def _requests_of(self, claim: ResourceClaim, effort: Effort | None) -> ReadRequests | _Problem:
        if claim.problem:
            return _Problem(RefusalKind.UNSUPPORTED, str(read_claim(claim)))
        read = self._spec(claim, _ENCODER.encode(claim.spec), effort)
        spec = read.spec
        if isinstance(spec, _Problem):
            return spec
        classes: dict[str, _ReadClass] = {}
        for request in (request for entry in spec.requests for request in entry.alternatives):
            known = self._classes.get(request.class_name)
            if known is None:
                return _Problem(RefusalKind.CLASS_MISSING, self._missing.text(request.class_name, effort))
            if isinstance(known.device_class, Unsupported):
                text = f"DeviceClass {request.class_name}: {known.device_class}"
                return _Problem(RefusalKind.UNSUPPORTED, text, of_class=True)
            classes[request.class_name] = known
        return self._requests.get(
            (read, tuple(classes.values())), lambda: _with_classes(self._driver, spec, read.policies, classes)
        )

    def _spec(self, claim: ResourceClaim, text: bytes, effort: Effort | None) -> _ReadSpec:
        """Return what the spec of a claim says. `text` is all of it."""
        key = blake2b(text, digest_size=DIGEST_BYTES).digest()
        known = self._specs.get(key)
        if effort is not None:
            steps = CLAIM_STEPS if known is None else KNOWN_CLAIM_STEPS
            effort.charge(steps + len(text) // BYTES_A_STEP, Work.CLAIMS)
        if known is not None:
            self._specs.move_to_end(key)
            return known[0]
        read = self._read_spec(claim)
        self._specs[key] = read, len(text)
        self._characters += len(text)
        while len(self._specs) > 1 and (self._characters > MOST_CHARACTERS or len(self._specs) > MOST_SPECS):
            self._characters -= self._specs.popitem(last=False)[1][1]
        return read

    def _read_spec(self, claim: ResourceClaim) -> _ReadSpec:
        has_our_config = self._driver in config_drivers(inside(claim.spec, "devices"))
        names = class_names(claim)
        read = read_claim(claim)
        if isinstance(read, Unsupported):
            return _ReadSpec(_Problem(RefusalKind.UNSUPPORTED, str(read)), (), names, has_our_config)
        least = sum(min(0 if one.all_devices else one.count for one in entry.alternatives) for entry in read.requests)
        if least > MAX_DEVICES:
            text = f"spec.devices.requests: {least} devices: one claim can hold at most {MAX_DEVICES}"
            return _ReadSpec(_Problem(RefusalKind.UNSUPPORTED, text), (), names, has_our_config)
        policies = self._policies(read.configs, "spec.devices", of_class=False)
        spec = Claim("", read.requests, read.constraints, read.configs)
        return _ReadSpec(spec, policies, names, has_our_config)

    def _policies(self, configs: Iterable[Config], where: str, *, of_class: bool) -> _Policies | _Problem:
        found = []
        for index, entry in enumerate(configs):
            if entry.driver != self._driver:
                continue
            try:
                config = decode_config(entry.parameters)
            except ConfigError as error:
                text = f"{where}.config[{index}].opaque.parameters: {error}"
                return _Problem(RefusalKind.CONFIG_BROKEN, text, of_class)
            if isinstance(config, TopologyPolicy):
                found.append((entry.requests, config))
        return tuple(found)


def _with_classes(
    driver: str, spec: Claim, policies: _Policies | _Problem, classes: Mapping[str, _ReadClass]
) -> ReadRequests | _Problem:
    """Return the requests with what claim and classes say together."""
    of_class: dict[str, tuple[legal.ClassRequirements, list[TopologyPolicy]]] = {}
    for name, known in classes.items():
        if isinstance(known.policies, _Problem):
            return known.policies
        assert not isinstance(known.device_class, Unsupported)
        of_class[name] = known.device_class, [policy for _, policy in known.policies]
    if isinstance(policies, _Problem):
        return policies
    try:
        alternatives = tuple(
            tuple(_with_policy(driver, spec, request, policies, *of_class[request.class_name]) for request in one)
            for one in (entry.alternatives for entry in spec.requests)
        )
    except _ContradictionError as error:
        return _Problem(RefusalKind.CONFIG_BROKEN, str(error))
    return ReadRequests(spec, alternatives)


def _gpu_configs(driver: str, spec: Claim, device_class: legal.ClassRequirements) -> GpuConfigs:
    """Return the configs that apply to the requests of a class: what a claim says counts before its class."""
    configs = (*device_class.configs, *spec.configs)
    return [(one.requests, one.parameters) for one in configs if one.driver == driver]


class _ContradictionError(Exception):
    """The policies of claim and class are valid alone, but contradict each other."""


def _with_policy(
    driver: str,
    spec: Claim,
    request: Request,
    policies: _Policies,
    device_class: legal.ClassRequirements,
    of_class: Iterable[TopologyPolicy],
) -> RequestDemand:
    names = {request.main, request.name}
    of_claim = [policy for requests, policy in policies if not requests or names & set(requests)]
    try:
        policy = merged(of_class, of_claim)
        configs = _gpu_configs(driver, spec, device_class)
        mode = NO_MODE if request.capacity is None else mode_of(request.name, configs)
        return RequestDemand(request, policy, device_class, mode, requires_mps(request.name, configs))
    except ConfigError as error:
        text = f"request {request.name}, the policies of claim and DeviceClass together: {error}"
        raise _ContradictionError(text) from error


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Which devices the requests of one pod may have, in the order of its claims and requests."""

    tolerations: tuple[tuple[Toleration, ...], ...]
    """For each request."""
    selectors: tuple[tuple[str, ...], ...] = ()
    """CEL expressions of each request's class and of the request, all of which must match; empty: there are none."""
    taints_of_all: tuple[Taint, ...] = ()
    """Taints of all devices of ours (Inventory.taints_of_all)."""


@dataclass(frozen=True, slots=True)
class ValueRule:
    """All devices of some requests have one value of an attribute, or no two devices of all requests have."""

    attribute: str
    """Fully qualified."""
    requests: tuple[int, ...]
    """Places among the requests."""
    distinct: bool = False
    """If so, it is about all requests, and it does not matter how a set is divided."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a pod asks of one node, whatever the node: pods with equal questions get equal answers."""

    counts: tuple[int, ...]
    """GPUs of each request, in the order of claims and requests; so are the policies."""
    policies: tuple[TopologyPolicy, ...]
    eligibility: Eligibility
    matches: tuple[ValueRule, ...] = ()
    claims: tuple[int, ...] = ()
    """The place of each request's claim; empty: all are of one claim."""

    @property
    def count(self) -> int:
        """GPUs of all requests together."""
        return sum(self.counts)
