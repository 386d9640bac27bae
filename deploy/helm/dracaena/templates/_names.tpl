{{/* Names of what is in the release's namespace begin with this; 40 characters leave room for what follows. */}}
{{- define "dracaena.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}{{- $name = printf "%s-%s" $name .Chart.Name -}}{{- end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels by which a Deployment, DaemonSet or policy finds its pods. Argument: dict root, component. They never change. */}}
{{- define "dracaena.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object. Argument: dict root, component. */}}
{{- define "dracaena.labels" -}}
{{ include "dracaena.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "dracaena.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dracaena.controller" -}}{{ include "dracaena.name" . }}-controller{{- end -}}
{{- define "dracaena.exporter" -}}{{ include "dracaena.name" . }}-exporter{{- end -}}
{{- define "dracaena.nodeLabels" -}}{{ include "dracaena.name" . }}-node-labels{{- end -}}
{{- define "dracaena.mps" -}}{{ include "dracaena.name" . }}-mps{{- end -}}
{{- define "dracaena.plugin" -}}{{ include "dracaena.name" . }}-kubelet-plugin{{- end -}}

{{/*
  Affinity of pods that open the GPU driver beside the plugin. Who needs the driver for itself labels the node
  (docs/reference/settings.md, "Let go of the driver"). Such pods read no labels: each term of the plugin's affinity gets these rules,
  and the DaemonSet takes its pod off a node that they leave out.
*/}}
{{- define "dracaena.besideDriverAffinity" -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- $driver := .Values.driverName -}}
{{- $free := list (dict "key" (printf "%s/release-driver" $driver) "operator" "NotIn" "values" (list "true")) -}}
{{- range list "device-plugin" "dcgm-exporter" "gpu-feature-discovery" -}}
{{- $paused := list "paused-for-driver-upgrade" "paused-for-mig-change" -}}
{{- $free = append $free (dict "key" (printf "nvidia.com/gpu.deploy.%s" .) "operator" "NotIn" "values" $paused) -}}
{{- end -}}
{{- $affinity := deepCopy ($plugin.affinity | default dict) -}}
{{- $nodes := $affinity.nodeAffinity | default dict -}}
{{- $required := $nodes.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $rules := concat (.matchExpressions | default list) $free -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $rules) .) -}}
{{- end -}}
{{- $_ := set $required "nodeSelectorTerms" $terms -}}
{{- $_ := set $nodes "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- toYaml $affinity -}}
{{- end -}}

{{/* Names of users as the API server sees them. */}}
{{- define "dracaena.controllerUser" -}}system:serviceaccount:{{ .Release.Namespace }}:{{ include "dracaena.controller" . }}{{- end -}}
{{- define "dracaena.uninstall" -}}{{ include "dracaena.name" . }}-uninstall{{- end -}}
{{- define "dracaena.pluginUser" -}}system:serviceaccount:{{ .Release.Namespace }}:{{ include "dracaena.plugin" . }}{{- end -}}

{{/* The settings files of the two programs. */}}
{{- define "dracaena.controllerSettings" -}}
{{- $own := dict
  "driver-name" .Values.driverName
  "log-level" .Values.logLevel
  "log-format" .Values.logFormat
  "lease-namespace" .Release.Namespace -}}
{{- if .Values.webConfig.secretName }}{{ $_ := set $own "web-config-file" "/etc/dracaena-web/web-config.yml" }}{{ end -}}
{{- toYaml (merge $own .Values.controller.settings) -}}
{{- end -}}

{{/*
Where the driver's root is mounted from and seen. A driver container may remove its folder and make another one: a mount
of the folder itself would stay empty until the pod is restarted, one of its parent shows the new folder.
*/}}
{{- define "dracaena.driverRootParent" -}}
{{- dir (clean .Values.kubeletPlugin.hostPaths.driverRoot) -}}
{{- end -}}

{{- define "dracaena.driverRootMount" -}}
{{- $root := clean .Values.kubeletPlugin.hostPaths.driverRoot -}}
{{- eq $root "/" | ternary "/driver-root" (printf "/driver-root/%s" (base $root)) -}}
{{- end -}}

{{/* The conditions of Nodes that settings ask for, with spaces between them. */}}
{{- define "dracaena.nodeConditions" -}}
{{- $found := list -}}
{{- $names := dict "layout" "MigLayoutApplied" "vgpu" "VgpuLayoutApplied" -}}
{{- range append (values (.Values.kubeletPlugin.nodeSettings | default dict)) .Values.kubeletPlugin.settings -}}
{{- range (. | default dict).gpus -}}
{{- if .condition }}{{ $found = append $found (get $names .as) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | join " " -}}
{{- end -}}

{{/* What GPUs are for by the settings of all nodes, with spaces between the roles. */}}
{{- define "dracaena.gpuRoles" -}}
{{- $found := list -}}
{{- range append (values (.Values.kubeletPlugin.nodeSettings | default dict)) .Values.kubeletPlugin.settings -}}
{{- range (. | default dict).gpus }}{{ $found = append $found .as }}{{ end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | join " " -}}
{{- end -}}

{{- define "dracaena.pluginSettings" -}}
{{- $paths := .Values.kubeletPlugin.hostPaths -}}
{{- $own := dict
  "driver-name" .Values.driverName
  "log-level" .Values.logLevel
  "log-format" .Values.logFormat
  "kubelet-root" $paths.kubelet
  "cdi-root" $paths.cdi
  "dev-root" $paths.devRoot
  "driver-root" $paths.driverRoot
  "driver-root-mount" (include "dracaena.driverRootMount" .)
  "host-root-mount" (eq $paths.driverRoot "/" | ternary "/driver-root" "/host-root")
  "job-mapping-dir" $paths.jobMapping
  "read-as-node" .Values.kubeletPlugin.readAsNode -}}
{{- if .Values.webConfig.secretName }}{{ $_ := set $own "web-config-file" "/etc/dracaena-web/web-config.yml" }}{{ end -}}
{{- if .Values.mps.enabled }}{{ $_ := set $own "mps-root" .Values.mps.hostPath }}{{ end -}}
{{- with .Values.kubeletPlugin.nodeSettings }}{{ $_ := set $own "sections" . }}{{ end -}}
{{- toYaml (merge $own .Values.kubeletPlugin.settings) -}}
{{- end -}}

{{/* What puts an admission policy into force. Argument: dict name, labels. */}}
{{- define "dracaena.binding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- .labels | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}
