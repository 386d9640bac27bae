"""Shapes of metadata, delete options and coordination.k8s.io/v1 Lease (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
Condition
    type string !
    status string !
    observedGeneration int64
    lastTransitionTime time !
    reason string !
    message string !
DeleteOptions
    gracePeriodSeconds *int64
    preconditions *Preconditions
    propagationPolicy *string
    unserved orphanDependents dryRun ignoreStoreReadErrorWithClusterBreakingPotential
LabelSelector
    matchLabels {}string
    matchExpressions []LabelSelectorRequirement
LabelSelectorRequirement
    key string !
    operator string !
    values []string
ObjectMeta
    name string
    generateName string
    namespace string
    selfLink string
    uid string
    resourceVersion string
    generation int64
    creationTimestamp time omitzero
    deletionTimestamp *time
    deletionGracePeriodSeconds *int64
    labels {}string
    annotations {}string
    ownerReferences []OwnerReference merge=uid
    finalizers []string merge
    managedFields []raw
OwnerReference
    apiVersion string !
    kind string !
    name string !
    uid string !
    controller *bool
    blockOwnerDeletion *bool
Preconditions
    uid *string
    resourceVersion *string
Lease
    metadata ObjectMeta
    spec LeaseSpec
LeaseSpec
    holderIdentity *string
    leaseDurationSeconds *int32
    acquireTime *microtime
    renewTime *microtime
    leaseTransitions *int32
    unserved strategy preferredHolder
"""
