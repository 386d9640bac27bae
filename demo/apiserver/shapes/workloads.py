"""Shapes of batch/v1 Job and what else makes pods from a template (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
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
    backoffLimit *int32
    selector *LabelSelector
    manualSelector *bool
    template PodTemplateSpec !
    ttlSecondsAfterFinished *int32
    completionMode *string
    suspend *bool
    podReplacementPolicy *string
    unserved activeDeadlineSeconds podFailurePolicy successPolicy backoffLimitPerIndex maxFailedIndexes managedBy
    unserved scheduling
JobStatus
    conditions []JobCondition merge=type atomic
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
UncountedTerminatedPods
    succeeded []string set
    failed []string set
"""
