"""Claims and classes read once: for each content of a claim's spec, and for each class when the watch brings it.

Decisions come back to the same claims, and a template makes thousands that ask alike. So what a spec says is kept by
the digest of its text, and what it says together with the classes that it names beside it.

Short specs are read when the claim comes (see()). A long one, which the API allows up to a megabyte, is read when it is
first decided for, and charged to that decision (docs/design/0018): who wrote it waits for it, and nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec

from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config, merged
from dracaena.api.objects import DeviceClass, ResourceClaim
from dracaena.api.packed import LONGEST_UNPACKED_BYTES
from dracaena.controller.allocation.effort import BYTES_A_STEP, CLAIM_STEPS, KNOWN_CLAIM_STEPS, Effort, Work
from dracaena.controller.allocation.legal.read import claims as legal
from dracaena.controller.allocation.legal.read.claims import (
    MAX_DEVICES,
    Claim,
    Config,
    Request,
    read_claim,
    read_class,
)
from dracaena.controller.allocation.legal.read.documents import Unsupported
from dracaena.controller.allocation.memo import Memo
from dracaena.controller.allocation.request.demands import (
    ClaimDemand,
    ReadRequests,
    RefusalKind,
    Refused,
    RequestDemand,
    class_names,
    config_drivers,
    inside,
    selectors_name,
)

MOST_CHARACTERS: Final = 4 << 20
"""Text of all specs that are kept read. The worst, selectors of four letters, take three times their text."""

MOST_SPECS: Final = 4_096
"""Specs that are kept read: an ordinary one has 200 bytes of text and takes 3 KiB."""

MOST_REQUESTS: Final = 4_096
"""Specs that are kept together with their classes: about 1 KiB each."""

READ_AHEAD_CHARACTERS: Final = LONGEST_UNPACKED_BYTES
"""A spec of at most so many is read as soon as the watch brings it: below 0.2 ms."""

DIGEST_BYTES: Final = 32
"""Nobody finds two specs of one digest of 256 bits."""

_Policies = tuple[tuple[tuple[str, ...], TopologyPolicy], ...]
"""The requests that a policy is for (none: all), and the policy."""

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why nothing can be decided about a claim."""

    kind: RefusalKind
    text: str
    of_class: bool = False
    """Whether the text names the class that has to be mended; else it is about the claim."""

    def about(self, claim: ResourceClaim) -> str:
        return self.text if self.of_class else f"claim {claim.key}: {self.text}"


@dataclass(frozen=True, slots=True, eq=False)
class _ReadClass:
    document: DeviceClass
    device_class: legal.DeviceClass | Unsupported
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
        self._classes[name] = _ReadClass(item, read, policies, self._means_us(name, item))

    def remove_class(self, name: str) -> None:
        """Forget a device class, if it is there."""
        self._classes.pop(name, None)
        self._documents.pop(name, None)

    def see(self, claim: ResourceClaim) -> None:
        """Read the spec of a claim that may soon be decided for, if it is short."""
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
                return _Problem(RefusalKind.CLASS_MISSING, f"DeviceClass {request.class_name} does not exist")
            if isinstance(known.device_class, Unsupported):
                text = f"DeviceClass {request.class_name}: {known.device_class}"
                return _Problem(RefusalKind.UNSUPPORTED, text, of_class=True)
            classes[request.class_name] = known
        return self._requests.get((read, tuple(classes.values())), lambda: _with_classes(spec, read.policies, classes))

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
        spec = Claim("", "", read.requests, read.constraints, read.configs)
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
    spec: Claim, policies: _Policies | _Problem, classes: Mapping[str, _ReadClass]
) -> ReadRequests | _Problem:
    """Return the requests with what claim and classes say together."""
    of_class: dict[str, tuple[legal.DeviceClass, list[TopologyPolicy]]] = {}
    for name, known in classes.items():
        if isinstance(known.policies, _Problem):
            return known.policies
        assert not isinstance(known.device_class, Unsupported)
        of_class[name] = known.device_class, [policy for _, policy in known.policies]
    if isinstance(policies, _Problem):
        return policies
    try:
        alternatives = tuple(
            tuple(_with_policy(request, policies, *of_class[request.class_name]) for request in entry.alternatives)
            for entry in spec.requests
        )
    except _ContradictionError as error:
        return _Problem(RefusalKind.CONFIG_BROKEN, str(error))
    return ReadRequests(spec, alternatives)


class _ContradictionError(Exception):
    """The policies of claim and class contradict each other only together."""


def _with_policy(
    request: Request,
    policies: _Policies,
    device_class: legal.DeviceClass,
    of_class: Iterable[TopologyPolicy],
) -> RequestDemand:
    names = {request.main, request.name}
    of_claim = [policy for requests, policy in policies if not requests or names & set(requests)]
    try:
        return RequestDemand(request, merged(of_class, of_claim), device_class)
    except ConfigError as error:
        text = f"request {request.name}, the policies of claim and DeviceClass together: {error}"
        raise _ContradictionError(text) from error
