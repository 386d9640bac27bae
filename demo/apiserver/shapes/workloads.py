"""Shapes of Job, Deployment, ReplicaSet and StatefulSet, which create pods (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
Deployment
    metadata ObjectMeta
    spec DeploymentSpec
    status DeploymentStatus
DeploymentCondition
    type string !
    status string !
    lastUpdateTime time
    lastTransitionTime time
    reason string
    message string
DeploymentSpec
    replicas *int32 default=1
    selector *LabelSelector !
    template PodTemplateSpec !
    strategy DeploymentStrategy retainKeys
    revisionHistoryLimit *int32 default=10
    progressDeadlineSeconds *int32 default=600
    unserved minReadySeconds paused
DeploymentStatus
    observedGeneration int64
    replicas int32
    updatedReplicas int32
    readyReplicas int32
    availableReplicas int32
    unavailableReplicas int32
    terminatingReplicas *int32
    conditions []DeploymentCondition merge=type
    collisionCount *int32
DeploymentStrategy
    type string default="RollingUpdate"
    rollingUpdate *RollingUpdateDeployment
Job
    metadata ObjectMeta
    spec JobSpec
    status JobStatus
JobCondition
    type string !
    status string !
    lastProbeTime time
    lastTransitionTime time
    reason string
    message string
JobSpec
    parallelism *int32
    completions *int32
    backoffLimit *int32 default=6
    selector *LabelSelector
    manualSelector *bool default=false
    template PodTemplateSpec !
    ttlSecondsAfterFinished *int32
    completionMode *string default="NonIndexed"
    suspend *bool default=false
    podReplacementPolicy *string default="TerminatingOrFailed"
    unserved activeDeadlineSeconds podFailurePolicy successPolicy backoffLimitPerIndex maxFailedIndexes managedBy
    unserved scheduling
JobStatus
    conditions []JobCondition merge=type
    startTime *time
    completionTime *time
    active int32
    succeeded int32
    failed int32
    terminating *int32
    uncountedTerminatedPods *UncountedTerminatedPods
    ready *int32
    unserved completedIndexes failedIndexes
PodTemplateSpec
    metadata ObjectMeta
    spec PodSpec
ReplicaSet
    metadata ObjectMeta
    spec ReplicaSetSpec
    status ReplicaSetStatus
ReplicaSetCondition
    type string !
    status string !
    lastTransitionTime time
    reason string
    message string
ReplicaSetSpec
    replicas *int32 default=1
    selector *LabelSelector !
    template PodTemplateSpec
    unserved minReadySeconds
ReplicaSetStatus
    replicas int32 !
    fullyLabeledReplicas int32
    readyReplicas int32
    availableReplicas int32
    terminatingReplicas *int32
    observedGeneration int64
    conditions []ReplicaSetCondition merge=type
RollingUpdateDeployment
    maxUnavailable *intorstring
    maxSurge *intorstring
RollingUpdateStatefulSetStrategy
    partition *int32
    maxUnavailable *intorstring only=1.37
StatefulSet
    metadata ObjectMeta
    spec StatefulSetSpec
    status StatefulSetStatus
StatefulSetCondition
    type string !
    status string !
    lastTransitionTime time
    reason string
    message string
StatefulSetPersistentVolumeClaimRetentionPolicy
    whenDeleted string default="Retain"
    whenScaled string default="Retain"
StatefulSetSpec
    replicas *int32 default=1
    selector *LabelSelector !
    template PodTemplateSpec !
    serviceName string !
    podManagementPolicy string default="OrderedReady"
    updateStrategy StatefulSetUpdateStrategy
    revisionHistoryLimit *int32 default=10
    persistentVolumeClaimRetentionPolicy *StatefulSetPersistentVolumeClaimRetentionPolicy default={}
    unserved volumeClaimTemplates minReadySeconds ordinals
StatefulSetStatus
    observedGeneration int64
    replicas int32 !
    readyReplicas int32
    currentReplicas int32
    updatedReplicas int32
    currentRevision string
    updateRevision string
    collisionCount *int32
    conditions []StatefulSetCondition merge=type
    availableReplicas int32 !
StatefulSetUpdateStrategy
    type string default="RollingUpdate"
    rollingUpdate *RollingUpdateStatefulSetStrategy
UncountedTerminatedPods
    succeeded []string
    failed []string
"""
