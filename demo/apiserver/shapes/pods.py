"""Shapes of core/v1 Pod and Binding, as far as they are served (format: see the package docstring)."""

from __future__ import annotations

TABLE = """
Affinity
    nodeAffinity *NodeAffinity
    unserved podAffinity podAntiAffinity
Binding
    metadata ObjectMeta
    target ObjectReference !
Container
    name string !
    image string
    command []string
    args []string
    workingDir string
    ports []ContainerPort merge=containerPort
    env []EnvVar merge=name
    resources ResourceRequirements
    terminationMessagePath string default="/dev/termination-log"
    terminationMessagePolicy string default="File"
    imagePullPolicy string
    stdin bool
    stdinOnce bool
    tty bool
    unserved envFrom resizePolicy restartPolicy restartPolicyRules volumeMounts volumeDevices
    unserved livenessProbe readinessProbe startupProbe lifecycle securityContext
ContainerPort
    name string
    hostPort int32
    containerPort int32 !
    protocol string default="TCP"
    hostIP string
ContainerState
    waiting *ContainerStateWaiting
    running *ContainerStateRunning
    terminated *ContainerStateTerminated
ContainerStateRunning
    startedAt time
ContainerStateTerminated
    exitCode int32 !
    signal int32
    reason string
    message string
    startedAt time
    finishedAt time
    containerID string
ContainerStateWaiting
    reason string
    message string
ContainerStatus
    name string !
    state ContainerState
    lastState ContainerState
    ready bool !
    restartCount int32 !
    image string !
    imageID string !
    containerID string
    started *bool
    allocatedResourcesStatus []ResourceStatus merge=name
    unserved allocatedResources resources volumeMounts user stopSignal
EnvVar
    name string !
    value string
    unserved valueFrom
HostIP
    ip string !
NodeAffinity
    requiredDuringSchedulingIgnoredDuringExecution *NodeSelector
    preferredDuringSchedulingIgnoredDuringExecution []PreferredSchedulingTerm
Pod
    metadata ObjectMeta
    spec PodSpec
    status PodStatus
PodCondition
    type string !
    observedGeneration int64
    status string !
    lastProbeTime time
    lastTransitionTime time
    reason string
    message string
PodIP
    ip string !
PodResourceClaim
    name string !
    resourceClaimName *string
    resourceClaimTemplateName *string
PodResourceClaimStatus
    name string !
    resourceClaimName *string
PodSchedulingGate
    name string !
PodSecurityContext
    unserved seLinuxOptions windowsOptions runAsUser runAsGroup runAsNonRoot supplementalGroups
    unserved supplementalGroupsPolicy fsGroup sysctls fsGroupChangePolicy seccompProfile appArmorProfile
    unserved seLinuxChangePolicy
PodSpec
    initContainers []Container merge=name
    containers []Container ! merge=name
    restartPolicy string default="Always"
    terminationGracePeriodSeconds *int64 default=30
    dnsPolicy string default="ClusterFirst"
    nodeSelector {}string
    serviceAccountName string
    serviceAccount string
    automountServiceAccountToken *bool
    nodeName string
    securityContext *PodSecurityContext default={}
    affinity *Affinity
    schedulerName string default="default-scheduler"
    tolerations []Toleration
    priority *int32
    enableServiceLinks *bool
    preemptionPolicy *string
    schedulingGates []PodSchedulingGate merge=name
    resourceClaims []PodResourceClaim merge=name retainKeys
    unserved activeDeadlineSeconds volumes ephemeralContainers hostNetwork hostPID hostIPC shareProcessNamespace
    unserved imagePullSecrets hostname subdomain hostAliases priorityClassName dnsConfig readinessGates
    unserved runtimeClassName overhead topologySpreadConstraints setHostnameAsFQDN os hostUsers resources
    unserved hostnameOverride schedulingGroup
PodStatus
    observedGeneration int64
    phase string
    conditions []PodCondition merge=type
    message string
    reason string
    nominatedNodeName string
    hostIP string
    hostIPs []HostIP merge=ip
    podIP string
    podIPs []PodIP merge=ip
    startTime *time
    initContainerStatuses []ContainerStatus
    containerStatuses []ContainerStatus
    qosClass string
    resourceClaimStatuses []PodResourceClaimStatus merge=name retainKeys
    unserved ephemeralContainerStatuses resize extendedResourceClaimStatus allocatedResources resources
    unserved nodeAllocatableResourceClaimStatuses
PreferredSchedulingTerm
    weight int32 !
    preference NodeSelectorTerm !
ContainerClaim
    name string !
    request string
ResourceHealth
    resourceID string !
    health string
    message *string
ResourceRequirements
    limits {}quantity
    requests {}quantity
    claims []ContainerClaim
ResourceStatus
    name string !
    resources []ResourceHealth
Toleration
    key string
    operator string
    value string
    effect string
    tolerationSeconds *int64
"""
