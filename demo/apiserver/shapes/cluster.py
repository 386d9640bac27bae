"""Shapes of core/v1 Node, Namespace, Event and what several kinds share (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
ContainerImage
    names []string !
    sizeBytes int64
DaemonEndpoint
    Port int32 !
Event
    metadata ObjectMeta !
    involvedObject ObjectReference !
    reason string
    message string
    source EventSource
    firstTimestamp time
    lastTimestamp time
    count int32
    type string
    eventTime microtime
    reportingComponent string !
    reportingInstance string !
    unserved series action related
EventSource
    component string
    host string
Namespace
    metadata ObjectMeta
    spec NamespaceSpec
    status NamespaceStatus
NamespaceCondition
    type string !
    status string !
    lastTransitionTime time
    reason string
    message string
NamespaceSpec
    finalizers []string
NamespaceStatus
    phase string
    conditions []NamespaceCondition merge=type
Node
    metadata ObjectMeta
    spec NodeSpec
    status NodeStatus
NodeAddress
    type string !
    address string !
NodeCondition
    type string !
    status string !
    lastHeartbeatTime time
    lastTransitionTime time
    reason string
    message string
NodeDaemonEndpoints
    kubeletEndpoint DaemonEndpoint
NodeSelector
    nodeSelectorTerms []NodeSelectorTerm !
NodeSelectorRequirement
    key string !
    operator string !
    values []string
NodeSelectorTerm
    matchExpressions []NodeSelectorRequirement
    matchFields []NodeSelectorRequirement
NodeSpec
    unschedulable bool
    taints []Taint
    unserved podCIDR podCIDRs providerID configSource externalID
NodeStatus
    capacity {}quantity
    allocatable {}quantity
    phase string
    conditions []NodeCondition merge=type
    addresses []NodeAddress merge=type
    daemonEndpoints NodeDaemonEndpoints
    nodeInfo NodeSystemInfo
    images []ContainerImage
    unserved volumesInUse volumesAttached config runtimeHandlers features declaredFeatures
NodeSystemInfo
    machineID string !
    systemUUID string !
    bootID string !
    kernelVersion string !
    osImage string !
    containerRuntimeVersion string !
    kubeletVersion string !
    kubeProxyVersion string !
    operatingSystem string !
    architecture string !
    unserved swap
ObjectReference
    kind string
    namespace string
    name string
    uid string
    apiVersion string
    resourceVersion string
    fieldPath string
Taint
    key string !
    value string
    effect string !
    timeAdded *time
"""
