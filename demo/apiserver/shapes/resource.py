"""All shapes of resource.k8s.io/v1 in Kubernetes 1.36 and 1.37 (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
AllocatedDeviceStatus
    driver string !
    pool string !
    device string !
    shareID *string
    conditions []Condition !
    data *raw
    networkData *NetworkDeviceData
AllocationResult
    devices DeviceAllocationResult
    nodeSelector *NodeSelector
    allocationTimestamp *time
CELDeviceSelector
    expression string !
CapacityRequestPolicy
    default *quantity !
    validValues []quantity
    validRange *CapacityRequestPolicyRange
CapacityRequestPolicyRange
    min *quantity
    max *quantity
    step *quantity
CapacityRequirements
    requests {}quantity
Counter
    value quantity !
CounterSet
    name string !
    counters {}Counter
Device
    name string !
    attributes {}DeviceAttribute
    capacity {}DeviceCapacity
    consumesCounters []DeviceCounterConsumption
    nodeName *string
    nodeSelector *NodeSelector
    allNodes *bool
    taints []DeviceTaint
    bindsToNode *bool
    bindingConditions []string
    bindingFailureConditions []string
    allowMultipleAllocations *bool
    unserved nodeAllocatableResourceMappings nodeAllocatableResources
DeviceAllocationConfiguration
    source string !
    requests []string
    opaque *OpaqueDeviceConfiguration
DeviceAllocationResult
    results []DeviceRequestAllocationResult
    config []DeviceAllocationConfiguration
DeviceAttribute
    int *int64
    bool *bool
    string *string
    version *string
    unserved ints bools strings versions
DeviceCapacity
    value quantity !
    requestPolicy *CapacityRequestPolicy
DeviceClaim
    requests []DeviceRequest !
    constraints []DeviceConstraint
    config []DeviceClaimConfiguration
DeviceClaimConfiguration
    requests []string
    opaque *OpaqueDeviceConfiguration
DeviceClass
    metadata ObjectMeta
    spec DeviceClassSpec !
DeviceClassConfiguration
    opaque *OpaqueDeviceConfiguration
DeviceClassSpec
    selectors []DeviceSelector
    config []DeviceClassConfiguration
    extendedResourceName *string
DeviceConstraint
    requests []string
    matchAttribute *string
    distinctAttribute *string
DeviceCounterConsumption
    counterSet string !
    counters {}Counter
    unserved compatibilityGroups
DeviceRequest
    name string !
    exactly *ExactDeviceRequest
    firstAvailable []DeviceSubRequest
DeviceRequestAllocationResult
    request string !
    driver string !
    pool string !
    device string !
    adminAccess *bool
    tolerations []DeviceToleration
    bindingConditions []string
    bindingFailureConditions []string
    shareID *string
    consumedCapacity {}quantity
    unserved skipNodeOperations
DeviceSelector
    cel *CELDeviceSelector
DeviceSubRequest
    name string !
    deviceClassName string !
    selectors []DeviceSelector
    allocationMode string default="ExactCount"
    count int64
    tolerations []DeviceToleration
    capacity *CapacityRequirements
    unserved derivedAttributes
DeviceTaint
    key string !
    value string
    effect string !
    timeAdded *time
DeviceToleration
    key string
    operator string default="Equal"
    value string
    effect string
    tolerationSeconds *int64
ExactDeviceRequest
    deviceClassName string !
    selectors []DeviceSelector
    allocationMode string default="ExactCount"
    count int64
    adminAccess *bool
    tolerations []DeviceToleration
    capacity *CapacityRequirements
    unserved derivedAttributes
NetworkDeviceData
    interfaceName string
    ips []string
    hardwareAddress string
OpaqueDeviceConfiguration
    driver string !
    parameters raw !
ResourceClaim
    metadata ObjectMeta
    spec ResourceClaimSpec !
    status ResourceClaimStatus
ResourceClaimConsumerReference
    apiGroup string
    resource string !
    name string !
    uid string !
ResourceClaimSpec
    devices DeviceClaim !
ResourceClaimStatus
    allocation *AllocationResult
    reservedFor []ResourceClaimConsumerReference merge=uid
    devices []AllocatedDeviceStatus
ResourceClaimTemplate
    metadata ObjectMeta
    spec ResourceClaimTemplateSpec !
ResourceClaimTemplateSpec
    metadata ObjectMeta
    spec ResourceClaimSpec !
ResourcePool
    name string !
    generation int64 !
    resourceSliceCount int64 !
ResourceSlice
    metadata ObjectMeta
    spec ResourceSliceSpec !
ResourceSliceSpec
    driver string !
    pool ResourcePool !
    nodeName *string
    nodeSelector *NodeSelector
    allNodes *bool
    devices []Device
    perDeviceNodeSelection *bool
    sharedCounters []CounterSet
    unserved partitionTypeAttribute skipNodeOperations
"""
