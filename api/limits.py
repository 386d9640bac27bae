"""The limits of the API, each once: its value with the unit in the name or below it, and where Kubernetes says it.

These are the limits that kube-apiserver 1.36 enforces. `validate`, the demo's API server and whatever publishes objects
read them here. Tests compare them with the sources of Kubernetes, and the demo's transcripts, recorded from a
kube-apiserver, hold the demo's server to them.

Each says what is limited, with the name of the constant in Kubernetes in parentheses. The lines between them name its
file within k8s.io.
"""

from __future__ import annotations

from typing import Final

# ---- names and metadata of all kinds: apimachinery pkg/util/validation/validation.go, pkg/api/validation/objectmeta.go

DNS_LABEL_BYTES: Final = 63
"""A DNS label, a label value, and the part of a label key after its prefix (DNS1123LabelMaxLength,
LabelValueMaxLength)."""
DNS_SUBDOMAIN_BYTES: Final = 253
"""A DNS name: names of most objects, prefixes of label keys (DNS1123SubdomainMaxLength)."""
ANNOTATIONS_BYTES: Final = 256 << 10
"""Keys and values of all annotations of an object (TotalAnnotationSizeLimitB)."""

# ---- apiserver pkg/storage/names/generate.go

GENERATED_NAME_BYTES: Final = 63
"""A name made from metadata.generateName (maxNameLength)."""
GENERATED_SUFFIX_BYTES: Final = 5
"""The random end of such a name (randomLength); what is before it is cut to make room."""

# ---- apimachinery pkg/apis/meta/v1/validation/validation.go

CONDITION_REASON_BYTES: Final = 1 << 10
"""conditions[].reason (maxReasonLen)."""
CONDITION_MESSAGE_BYTES: Final = 32 << 10
"""conditions[].message (maxMessageLen)."""

# ---- one request: apiserver pkg/server/config.go, pkg/endpoints/handlers/patch.go, sigs.k8s.io/json scanner.go

REQUEST_BODY_BYTES: Final = 3 << 20
"""The body of a request (MaxRequestBodyBytes)."""
JSON_PATCH_OPERATIONS: Final = 10_000
"""Operations of a JSON patch (maxJSONPatchOperations)."""
JSON_LEVELS: Final = 10_000
"""Lists and objects within each other that are decoded (maxNestingDepth)."""

# ---- Events: kubernetes pkg/apis/core/validation/events.go

EVENT_NOTE_BYTES: Final = 1 << 10
"""note (NoteLengthLimit)."""

# ---- ports: apimachinery pkg/util/validation/validation.go, IsValidPortNum

PORT: Final = 65_535
"""The largest port."""

# ---- ResourceSlice: api resource/v1/types.go

DRIVER_NAME_BYTES: Final = 63
"""spec.driver, and the domain of an attribute's name (DriverNameMaxLength, DeviceMaxDomainLength)."""
POOL_NAME_BYTES: Final = DNS_SUBDOMAIN_BYTES
"""spec.pool.name (PoolNameMaxLength)."""
SLICE_DEVICES: Final = 128
"""spec.devices (ResourceSliceMaxDevices)."""
SLICE_ADVANCED_DEVICES: Final = 64
"""The same as soon as one device has taints, consumes counters or has a list for an attribute
(ResourceSliceMaxDevicesWithAdvancedFeatures)."""
SLICE_COUNTER_SETS: Final = 8
"""spec.sharedCounters (ResourceSliceMaxCounterSets)."""
COUNTER_SET_COUNTERS: Final = 32
"""spec.sharedCounters[].counters (ResourceSliceMaxCountersPerCounterSet)."""
DEVICE_CONSUMPTIONS: Final = 2
"""devices[].consumesCounters: sets that a device draws from (ResourceSliceMaxDeviceCounterConsumptionsPerDevice)."""
CONSUMPTION_COUNTERS: Final = 32
"""devices[].consumesCounters[].counters (ResourceSliceMaxCountersPerDeviceCounterConsumption)."""
COMPATIBILITY_GROUPS: Final = 2
"""devices[].consumesCounters[].compatibilityGroups (DeviceCompatibilityGroupsMaxSize)."""
DEVICE_ATTRIBUTES_AND_CAPACITIES: Final = 32
"""devices[].attributes and devices[].capacity together (ResourceSliceMaxAttributesAndCapacitiesPerDevice)."""
DEVICE_ATTRIBUTE_VALUES: Final = 48
"""Values in all attributes of a device, each entry of a list counted (ResourceSliceMaxAttributeValuesPerDevice)."""
IDENTIFIER_BYTES: Final = 32
"""The part of an attribute's or capacity's name behind its domain (DeviceMaxIDLength)."""
ATTRIBUTE_VALUE_BYTES: Final = 64
"""An attribute that is a text or a version (DeviceAttributeMaxValueLength)."""
DEVICE_TAINTS: Final = 16
"""devices[].taints (DeviceTaintsMaxLength)."""
BINDING_CONDITIONS: Final = 4
"""devices[].bindingConditions, and devices[].bindingFailureConditions (BindingConditionsMaxSize,
BindingFailureConditionsMaxSize)."""

# ---- ResourceSlice: kubernetes pkg/apis/resource/types.go

CAPACITY_VALID_VALUES: Final = 10
"""capacity.requestPolicy.validValues (CapacityRequestPolicyDiscreteMaxOptions)."""

# ---- ResourceClaim, ResourceClaimTemplate, DeviceClass: api resource/v1/types.go

CLAIM_REQUESTS: Final = 32
"""spec.devices.requests, and names in one list of requests (DeviceRequestsMaxSize)."""
REQUEST_ALTERNATIVES: Final = 8
"""requests[].firstAvailable (FirstAvailableDeviceRequestMaxSize)."""
CLAIM_CONSTRAINTS: Final = 32
"""spec.devices.constraints (DeviceConstraintsMaxSize)."""
CONFIGS: Final = 32
"""Configurations of one class or one claim (DeviceConfigMaxSize)."""
ALLOCATION_CONFIGS: Final = 2 * CONFIGS
"""status.allocation.devices.config: room for those of one class and one claim (validateDeviceAllocationResult)."""
REQUEST_DERIVED_ATTRIBUTES: Final = 32
"""derivedAttributes of a request (DeviceDerivedAttributesMaxSize)."""
SELECTORS: Final = 32
"""Selectors of one class or one request (DeviceSelectorsMaxSize)."""
TOLERATIONS: Final = 16
"""Tolerations of one request, as documented; kube-apiserver 1.36 does not count them (DeviceTolerationsMaxLength)."""
EXPRESSION_BYTES: Final = 10 << 10
"""selectors[].cel.expression (CELSelectorExpressionMaxLength)."""
EXPRESSION_COST: Final = 1_000_000
"""Units of CEL's cost model that one evaluation may take (CELSelectorExpressionMaxCost)."""
PARAMETERS_BYTES: Final = 10 << 10
"""opaque.parameters as JSON without blanks (OpaqueParametersMaxLength)."""

# ---- status of a ResourceClaim: api resource/v1/types.go

CLAIM_DEVICES: Final = 32
"""status.allocation.devices.results: devices that one claim can hold (AllocationResultsMaxSize)."""
RESERVED_FOR: Final = 256
"""status.reservedFor (ResourceClaimReservedForMaxSize)."""
DEVICE_CONDITIONS: Final = 8
"""status.devices[].conditions (AllocatedDeviceStatusMaxConditions)."""
DEVICE_DATA_BYTES: Final = 10 << 10
"""status.devices[].data (AllocatedDeviceStatusDataMaxLength)."""
NETWORK_IPS: Final = 16
"""status.devices[].networkData.ips (NetworkDeviceDataMaxIPs)."""
INTERFACE_NAME_BYTES: Final = 256
"""status.devices[].networkData.interfaceName (NetworkDeviceDataInterfaceNameMaxLength)."""
HARDWARE_ADDRESS_BYTES: Final = 128
"""status.devices[].networkData.hardwareAddress (NetworkDeviceDataHardwareAddressMaxLength)."""
