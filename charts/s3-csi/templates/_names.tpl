{{- define "s3-csi.labels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: csi-driver
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- /* They cannot override the chart's own labels: selectors and the Pod Security level of the Mountpoint Pods' namespace depend on those. */}}
{{- range $name, $value := .Values.customLabels }}
{{- $fixed := list "app" "name" "helm.sh/chart" }}
{{- if not (or (has $name $fixed) (regexMatch "^(app|pod-security)\\.kubernetes\\.io/" $name)) }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "s3-csi.image" -}}
{{- with .root.Values.image.containerRegistry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .image.repository | trimPrefix "/" }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "s3-csi.endpointUrl" -}}
{{ .Values.node.s3EndpointUrl | default .Values.s3.endpointUrl }}
{{- end }}

{{- define "s3-csi.region" -}}
{{ .Values.node.s3Region | default .Values.s3.region }}
{{- end }}

{{- /* A number is a klog verbosity, as in the reference driver's chart. */}}
{{- define "s3-csi.logLevel" -}}
{{- $level := toString . }}
{{- if not (regexMatch "^[0-9]+$" $level) }}{{ $level }}
{{- else if le (int $level) 3 }}info
{{- else if le (int $level) 5 }}debug
{{- else }}trace
{{- end }}
{{- end }}

{{- define "s3-csi.nodeSelector" -}}
{{ toYaml (merge (dict "kubernetes.io/os" "linux") (. | default dict)) }}
{{- end }}

{{- define "s3-csi.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "s3-csi.nodeSidecar" -}}
# Only root can connect to the sockets; the sidecars need nothing else.
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end }}

{{- define "s3-csi.pluginFolder" -}}
- name: plugin
  mountPath: /csi
  # Buckets are mounted below. Without propagation, the container would pin those that were mounted when it started.
  mountPropagation: HostToContainer
{{- end }}

{{- /* Kubernetes' own priority classes exist already, and other pods use them too. */}}
{{- define "s3-csi.makesPriorityClass" -}}
{{- if not (hasPrefix "system-" .Values.mountpointPod.priorityClassName) }}yes{{ end }}
{{- end }}
