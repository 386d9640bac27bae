"""The three answers to "which devices do these claims get here": a plan, it does not fit, or a person must act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dracaena.api.device_id import PoolId
from dracaena.api.quantity import Quantity
from dracaena.controller.allocation.legal.read.claims import Claim, Request
from dracaena.controller.allocation.legal.read.slices import PoolState, PublishedDevice, Slice


class DeviceRule(Enum):
    """Why a device is not given to a request; the values are words that follow a count of devices."""

    NOT_OFFERED = "without our taint or unreadable"
    IN_USE = "in use"
    TAKEN = "given to another request of the pod"
    BINDING_CONDITIONS = "with binding conditions, which the cluster has switched off"
    CLASS_SELECTOR = "not matching the device class"
    REQUEST_SELECTOR = "not matching the request's selectors"
    NODE = "not for this node"
    NODE_OPERATIONS = "of a driver whose calls must be skipped, which the node's kubelet cannot do"
    NO_CAPACITY = "that lack such a capacity, or never have as much as requested"
    CAPACITY = "with too little of the requested capacity left"
    MODE = "shared in another mode"
    COUNTERS_OFF = "that consume counters, which the cluster has switched off"
    COUNTERS = "for which the pool's counters do not suffice"
    COMPATIBILITY = "that share no compatibility group with the devices in use of their counter sets"
    TAINT = "with a taint that is not tolerated"
    CONSTRAINT = "against a constraint of the claim"


@dataclass(frozen=True, slots=True)
class RefusedDevices:
    """How many devices one rule kept from one request."""

    claim: str
    """`namespace/name`."""
    request: str
    """`request`, or `request/subrequest`."""
    rule: DeviceRule
    devices: int
    """Devices that this rule refused at least once while the other devices were tried together."""

    def __str__(self) -> str:
        return f"claim {self.claim}, request {self.request}: {self.devices} {self.rule.value}"


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """A pool that was left out."""

    pool: PoolId
    state: PoolState
    problem: str

    def __str__(self) -> str:
        return f"pool {self.pool} is {self.state.value}: {self.problem}"


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """There is no legal allocation of all claims on this node, or none was found within the allowed steps."""

    reasons: tuple[RefusedDevices, ...] = ()
    """In the order of claims and requests, then of the rules. Requests that were never reached have none."""
    pools: tuple[PoolProblem, ...] = ()
    note: str = ""
    """What the reasons cannot say, in one line."""
    cut_off: bool = False
    """True: the search ended at its limit, so this is no proof."""
    steps: int = 0

    def __str__(self) -> str:
        parts = [self.note, *map(str, self.reasons), *map(str, self.pools)]
        if self.cut_off:
            parts.append(f"the search was cut off after {self.steps} steps")
        return "; ".join(part for part in parts if part) or "there are fewer devices than requested"


class Mistake(Enum):
    """What a person has to mend; values are metric labels."""

    CLASS_MISSING = "class-missing"
    UNSUPPORTED = "unsupported"
    FEATURE_OFF = "feature-off"
    SELECTOR = "selector"
    LIMIT = "limit"
    SLICE = "slice"


@dataclass(frozen=True, slots=True)
class NeedsPerson:
    """No answer is possible on any node until a person changes an object."""

    mistake: Mistake
    subject: str
    """The object to change, for example `claim default/training` or `DeviceClass gpu.example.com`."""
    problem: str
    """What was seen there and what was expected."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"


def bad_slice(name: str, problem: str) -> NeedsPerson:
    """Return the answer for a slice whose node selector cannot be evaluated."""
    return NeedsPerson(Mistake.SLICE, f"ResourceSlice {name}", f"node selector: {problem}")


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for one request."""

    request: Request
    device: PublishedDevice
    slice: Slice
    """Where the device is published."""
    shared: bool = False
    """Whether it is a share of the device, not the whole."""
    consumed: Mapping[str, Quantity] | None = None
    """What a share takes of each capacity; None for a whole device."""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What one claim gets."""

    claim: Claim
    chosen: tuple[Request, ...]
    """The alternative that was taken for each request of the claim, in the order of the spec."""
    picks: tuple[Pick, ...]
    """In the order of the spec's requests, and within a request in the order in which devices are tried."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A legal allocation of all claims on one node. Nothing is taken until it is written."""

    node: str
    claims: tuple[ClaimPlan, ...]
    steps: int = 0


Outcome = Plan | DoesNotFit | NeedsPerson
