"""Field numbers in protobuf, for the kinds that clients send like this: a type and its fields, even those not served.

They are those of the generated.proto files of k8s.io/api and k8s.io/apimachinery, which never change a number.
"""

from __future__ import annotations

NUMBERS = """
Affinity nodeAffinity=1 podAffinity=2 podAntiAffinity=3
Container name=1 image=2 command=3 args=4 workingDir=5 ports=6 env=7 resources=8 volumeMounts=9 livenessProbe=10
    readinessProbe=11 lifecycle=12 terminationMessagePath=13 imagePullPolicy=14 securityContext=15 stdin=16
    stdinOnce=17 tty=18 envFrom=19 terminationMessagePolicy=20 volumeDevices=21 startupProbe=22 resizePolicy=23
    restartPolicy=24 restartPolicyRules=25
ContainerClaim name=1 request=2
ContainerPort name=1 hostPort=2 containerPort=3 protocol=4 hostIP=5
Deployment metadata=1 spec=2 status=3
DeploymentCondition type=1 status=2 reason=4 message=5 lastUpdateTime=6 lastTransitionTime=7
DeploymentSpec replicas=1 selector=2 template=3 strategy=4 minReadySeconds=5 revisionHistoryLimit=6 paused=7
    progressDeadlineSeconds=9
DeploymentStatus observedGeneration=1 replicas=2 updatedReplicas=3 availableReplicas=4 unavailableReplicas=5
    conditions=6 readyReplicas=7 collisionCount=8 terminatingReplicas=9
DeploymentStrategy type=1 rollingUpdate=2
EnvVar name=1 value=2 valueFrom=3
Job metadata=1 spec=2 status=3
JobCondition type=1 status=2 lastProbeTime=3 lastTransitionTime=4 reason=5 message=6
JobSpec parallelism=1 completions=2 activeDeadlineSeconds=3 selector=4 manualSelector=5 template=6 backoffLimit=7
    ttlSecondsAfterFinished=8 completionMode=9 suspend=10 podFailurePolicy=11 backoffLimitPerIndex=12
    maxFailedIndexes=13 podReplacementPolicy=14 managedBy=15 successPolicy=16 scheduling=17
JobStatus conditions=1 startTime=2 completionTime=3 active=4 succeeded=5 failed=6 completedIndexes=7
    uncountedTerminatedPods=8 ready=9 failedIndexes=10 terminating=11
LabelSelector matchLabels=1 matchExpressions=2
LabelSelectorRequirement key=1 operator=2 values=3
Namespace metadata=1 spec=2 status=3
NamespaceCondition type=1 status=2 lastTransitionTime=4 reason=5 message=6
NamespaceSpec finalizers=1
NamespaceStatus phase=1 conditions=2
NodeAffinity requiredDuringSchedulingIgnoredDuringExecution=1 preferredDuringSchedulingIgnoredDuringExecution=2
NodeSelector nodeSelectorTerms=1
NodeSelectorRequirement key=1 operator=2 values=3
NodeSelectorTerm matchExpressions=1 matchFields=2
ObjectMeta name=1 generateName=2 namespace=3 selfLink=4 uid=5 resourceVersion=6 generation=7 creationTimestamp=8
    deletionTimestamp=9 deletionGracePeriodSeconds=10 labels=11 annotations=12 ownerReferences=13 finalizers=14
    managedFields=17
OwnerReference kind=1 name=3 uid=4 apiVersion=5 controller=6 blockOwnerDeletion=7
PodResourceClaim name=1 resourceClaimName=3 resourceClaimTemplateName=4
PodSchedulingGate name=1
PodSecurityContext seLinuxOptions=1 runAsUser=2 runAsNonRoot=3 supplementalGroups=4 fsGroup=5 runAsGroup=6 sysctls=7
    windowsOptions=8 fsGroupChangePolicy=9 seccompProfile=10 appArmorProfile=11 supplementalGroupsPolicy=12
    seLinuxChangePolicy=13
PodSpec volumes=1 containers=2 restartPolicy=3 terminationGracePeriodSeconds=4 activeDeadlineSeconds=5 dnsPolicy=6
    nodeSelector=7 serviceAccountName=8 serviceAccount=9 nodeName=10 hostNetwork=11 hostPID=12 hostIPC=13
    securityContext=14 imagePullSecrets=15 hostname=16 subdomain=17 affinity=18 schedulerName=19 initContainers=20
    automountServiceAccountToken=21 tolerations=22 hostAliases=23 priorityClassName=24 priority=25 dnsConfig=26
    shareProcessNamespace=27 readinessGates=28 runtimeClassName=29 enableServiceLinks=30 preemptionPolicy=31
    overhead=32 topologySpreadConstraints=33 ephemeralContainers=34 setHostnameAsFQDN=35 os=36 hostUsers=37
    schedulingGates=38 resourceClaims=39 resources=40 hostnameOverride=41 schedulingGroup=43
PodTemplateSpec metadata=1 spec=2
PreferredSchedulingTerm weight=1 preference=2
ResourceRequirements limits=1 requests=2 claims=3
RollingUpdateDeployment maxUnavailable=1 maxSurge=2
Toleration key=1 operator=2 value=3 effect=4 tolerationSeconds=5
UncountedTerminatedPods succeeded=1 failed=2
"""
