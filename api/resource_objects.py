"""Objects of resource.k8s.io as they are on the wire, reduced to the fields that we read, like those in objects.

Where an unknown field would change the meaning (the spec of a claim), the raw document is kept and read strictly
elsewhere (allocation.legal.read.claims). What belongs to one driver, above all opaque parameters, stays JSON text: it
may be nested as deep as its author likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from dracaena.api.known_fields import Parts, known_part
from dracaena.api.objects import KubeObject, ObjectMeta, Taint, Toleration, Wire
from dracaena.api.opaque import NO_PARAMETERS, PARAMETERS, AsSent, all_but

_NO_FIELD: Final = "\ufdd0"
"""Prefix of names that no field of the API has: such fields are our own notes, and are never sent."""


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The API's integers. Those of a device of ours are bounded further where they are read (api.attributes)."""


class DeviceAttribute(Wire, frozen=True, forbid_unknown_fields=True):
    """One attribute of a device: exactly one field is set. Lists are behind a gate that is off in 1.36."""

    int_value: Int64 | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: list[Int64] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRange(Wire, frozen=True, forbid_unknown_fields=True):
    """requestPolicy.validRange: Quantities as text; `min` is required by the API."""

    min: str | None = None
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(Wire, frozen=True, forbid_unknown_fields=True):
    """capacity[].requestPolicy: what a request for a part of the capacity is rounded to."""

    default: str | None = None
    valid_range: CapacityRange | None = None
    valid_values: list[str] | None = None


class DeviceCapacity(Wire, frozen=True, forbid_unknown_fields=True):
    """One capacity of a device; `value` is a Quantity as text."""

    value: str
    request_policy: CapacityRequestPolicy | None = None


class Counter(Wire, frozen=True, forbid_unknown_fields=True):
    """One counter, declared or consumed; `value` is a Quantity as text."""

    value: str


class CounterSet(Wire, frozen=True, forbid_unknown_fields=True):
    """spec.sharedCounters[] of a ResourceSlice."""

    name: str
    counters: dict[str, Counter] = {}


class CounterConsumption(Wire, frozen=True, forbid_unknown_fields=True):
    """devices[].consumesCounters[]: what the device takes from one counter set of its pool."""

    counter_set: str
    counters: dict[str, Counter] = {}
    compatibility_groups: list[str] = []


class Device(Wire, frozen=True, forbid_unknown_fields=True):
    """One entry of spec.devices of a ResourceSlice. `node_selector` stays a raw document."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: list[Taint] = []
    consumes_counters: list[CounterConsumption] = []
    allow_multiple_allocations: bool = False
    node_name: str = ""
    node_selector: dict[str, Any] | None = None
    all_nodes: bool = False
    binds_to_node: bool = False
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    unknown: str = msgspec.field(default="", name=_NO_FIELD + "device")
    """A field that this version does not know: the device may be taken only by rules that are not known either."""


class ResourcePool(Wire, frozen=True, forbid_unknown_fields=True):
    """spec.pool of a ResourceSlice."""

    name: str
    generation: Int64
    resource_slice_count: Int64


class ResourceSliceSpec(Wire, frozen=True, forbid_unknown_fields=True):
    """spec of a ResourceSlice. We publish only slices of one node with devices; other drivers also use the rest.

    Exactly one of the four fields that select nodes is set; `node_selector` stays a raw document.
    """

    driver: str
    pool: ResourcePool
    node_name: str = ""
    node_selector: dict[str, Any] | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []
    skip_node_operations: list[str] = []
    partition_type_attribute: str = ""
    """For counts in a ResourcePoolStatusRequest; it has no part in what may be allocated."""
    unknown: str = msgspec.field(default="", name=_NO_FIELD + "spec")
    """A field besides the devices that this version does not know, as in Device; here it is about the whole pool."""


class ResourceSlice(KubeObject, frozen=True):
    """A page of a pool of devices. An unknown field would change what a device is, so it is noted."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    RESOURCE: ClassVar[str] = "resourceslices"
    KIND: ClassVar[str] = "ResourceSlice"
    NAMESPACED: ClassVar[bool] = False

    spec: ResourceSliceSpec

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> ResourceSlice:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.ValidationError:  # the one slice in a million whose driver is ahead of us, or which is broken
            read = _ONLY_SPEC.decode(text)
        return cls(metadata=read.metadata, spec=msgspec.convert(known_fields(read.spec), ResourceSliceSpec))


def known_fields(text: bytes | msgspec.Raw) -> dict[str, Any]:
    """Return the spec of a slice without the unknown fields, which are named in `unknown`."""
    spec: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    noted: list[str] = []
    devices = spec.pop("devices", None)
    known: dict[str, Any] = known_part(spec, ResourceSliceSpec, _PARTS, noted)
    if devices is not None:
        known["devices"] = [_known_device(device) for device in devices]
    return known | {_NO_FIELD + "spec": ", ".join(noted)}


def _known_device(device: Any) -> Any:
    noted: list[str] = []
    known = known_part(device, Device, _PARTS, noted)
    return known | {_NO_FIELD + "device": ", ".join(noted)} if isinstance(known, dict) else known


_PARTS: Final[Parts] = {
    ResourceSliceSpec: {"pool": ResourcePool, "sharedCounters": [CounterSet]},
    CounterSet: {"counters": {"": Counter}},
    Device: {
        "attributes": {"": DeviceAttribute},
        "capacity": {"": DeviceCapacity},
        "consumesCounters": [CounterConsumption],
    },
    CounterConsumption: {"counters": {"": Counter}},
    DeviceCapacity: {"requestPolicy": CapacityRequestPolicy},
    CapacityRequestPolicy: {"validRange": CapacityRange},
}


class DeviceResult(Wire, frozen=True):
    """status.allocation.devices.results[]. `request` is `request` or `request/subrequest`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    tolerations: list[Toleration] = []
    consumed_capacity: dict[str, str] = {}
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    skip_node_operations: list[str] = []


class OpaqueConfig(Wire, frozen=True):
    """opaque: parameters are for the named driver; the text of a JSON object."""

    driver: str
    parameters: msgspec.Raw = NO_PARAMETERS


class AllocationConfig(Wire, frozen=True):
    """status.allocation.devices.config[]; `source` is FromClass or FromClaim, empty requests mean all."""

    source: str
    requests: list[str] = []
    opaque: OpaqueConfig | None = None


class AllocatedDevices(Wire, frozen=True):
    """status.allocation.devices."""

    results: list[DeviceResult] = []
    config: list[AllocationConfig] = []


class AllocationResult(Wire, frozen=True):
    """status.allocation. Immutable once set; `node_selector` stays a raw document."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: dict[str, Any] | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(Wire, frozen=True):
    """status.reservedFor[]; pods have an empty API group."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class ResourceClaimStatus(Wire, frozen=True):
    """status of a claim. `devices` stay JSON text: those of other drivers are written back as they are."""

    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] = []
    devices: list[msgspec.Raw] = []


class ResourceClaim(KubeObject, frozen=True):
    """A claim. `spec` stays the raw document, with opaque parameters as text in it (msgspec.Raw):
    allocation.legal.read.claims reads it strictly.
    """

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    RESOURCE: ClassVar[str] = "resourceclaims"
    KIND: ClassVar[str] = "ResourceClaim"
    APART: ClassVar[tuple[str, ...]] = ("managedFields", "parameters", "data")

    spec: dict[str, Any] = {}
    status: ResourceClaimStatus = ResourceClaimStatus()
    problem: str = ""
    """Why the object could not be read, if this stands in for it; not a field of the API. Empty: it was read."""

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> ResourceClaim:
        read = _SPEC_AND_STATUS.decode(text)
        spec = _object_but(("devices", *PARAMETERS), read.spec, as_sent)
        return cls(metadata=read.metadata, spec=spec, status=_status_as_sent(read.status, as_sent))


class _SpecAndStatus(Wire, frozen=True):
    """A claim whose spec is not decoded yet."""

    metadata: ObjectMeta
    spec: msgspec.Raw = NO_PARAMETERS
    status: ResourceClaimStatus = ResourceClaimStatus()


_SPEC_AND_STATUS: Final = msgspec.json.Decoder(_SpecAndStatus)


def _object_but(path: Sequence[str], text: msgspec.Raw, as_sent: AsSent) -> dict[str, Any]:
    document = all_but(path, text, as_sent)
    if not isinstance(document, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(document).__name__}` - at `$.spec`")
    return document


def _status_as_sent(status: ResourceClaimStatus, as_sent: AsSent) -> ResourceClaimStatus:
    replace = msgspec.structs.replace
    allocation = status.allocation
    if allocation is not None and allocation.devices.config:
        config = [
            entry
            if entry.opaque is None
            else replace(entry, opaque=replace(entry.opaque, parameters=as_sent(entry.opaque.parameters)))
            for entry in allocation.devices.config
        ]
        allocation = replace(allocation, devices=replace(allocation.devices, config=config))
    elif not status.devices:
        return status
    return replace(status, allocation=allocation, devices=list(map(as_sent, status.devices)))


class ResourceClaimTemplateSpec(Wire, frozen=True):
    """spec of a template: `spec` goes into the claim unchanged, `metadata` provides labels and annotations."""

    spec: dict[str, Any]
    metadata: dict[str, Any] = {}


class ResourceClaimTemplate(KubeObject, frozen=True):
    """A template of claims, one for each pod that names it."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    RESOURCE: ClassVar[str] = "resourceclaimtemplates"
    KIND: ClassVar[str] = "ResourceClaimTemplate"
    APART: ClassVar[tuple[str, ...]] = ("managedFields", "parameters")

    spec: ResourceClaimTemplateSpec

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> ResourceClaimTemplate:
        read = _ONLY_SPEC.decode(text)
        document = _object_but(("spec", "devices", *PARAMETERS), read.spec, as_sent)
        return cls(metadata=read.metadata, spec=msgspec.convert(document, ResourceClaimTemplateSpec))


class DeviceClass(KubeObject, frozen=True):
    """A class of devices. `spec` stays the raw document, as in a claim: parameters are text."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    RESOURCE: ClassVar[str] = "deviceclasses"
    KIND: ClassVar[str] = "DeviceClass"
    NAMESPACED: ClassVar[bool] = False
    APART: ClassVar[tuple[str, ...]] = ("managedFields", "parameters")

    spec: dict[str, Any] = {}
    problem: str = ""
    """Why the object could not be read, if this stands in for it; not a field of the API. Empty: it was read."""

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> DeviceClass:
        read = _ONLY_SPEC.decode(text)
        return cls(metadata=read.metadata, spec=_object_but(PARAMETERS, read.spec, as_sent))


class _OnlySpec(Wire, frozen=True):
    """An object whose spec is not decoded yet."""

    metadata: ObjectMeta
    spec: msgspec.Raw = NO_PARAMETERS


_ONLY_SPEC: Final = msgspec.json.Decoder(_OnlySpec)


class DeviceTaintSelector(Wire, frozen=True):
    """spec.deviceSelector of a DeviceTaintRule: what is not set matches everything."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Wire, frozen=True):
    """spec of a DeviceTaintRule. Without a selector it taints nothing."""

    taint: Taint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(KubeObject, frozen=True):
    """A taint that an admin puts on devices, besides the driver's own. From Kubernetes 1.37 on."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    RESOURCE: ClassVar[str] = "devicetaintrules"
    KIND: ClassVar[str] = "DeviceTaintRule"
    NAMESPACED: ClassVar[bool] = False

    spec: DeviceTaintRuleSpec


class DeviceTaintRuleV1Beta2(DeviceTaintRule, frozen=True):
    """The same in Kubernetes 1.36, where an admin has to turn on the version and the gate DRADeviceTaintRules."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1beta2"
