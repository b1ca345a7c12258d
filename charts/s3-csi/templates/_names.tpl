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

{{- /* Labels of the installation's own pods. What the chart selects by comes last, and cannot be overridden. */}}
{{- define "s3-csi.podLabels" -}}
{{- $own := include "s3-csi.labels" .root | fromYaml }}
{{- toYaml (merge $own (omit .pod.podLabels "app")) }}
{{- end }}

{{- define "s3-csi.isOpenShift" -}}
{{- $detected := .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- if kindIs "bool" .Values.isOpenShift | ternary .Values.isOpenShift $detected }}yes{{ end }}
{{- end }}

{{- define "s3-csi.proxy" -}}
{{- range $name, $value := dict "HTTPS_PROXY" .root.Values.proxy.httpsProxy "NO_PROXY" .root.Values.proxy.noProxy }}
{{- if $value }}
- name: {{ $.prefix }}{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A repository that begins with a host, by Docker's rule, is in that registry. */}}
{{- define "s3-csi.image" -}}
{{- $elsewhere := regexMatch "^(localhost|[^/]*[.:][^/]*)/" .image.repository }}
{{- with .root.Values.image.containerRegistry }}{{ if not $elsewhere }}{{ trimSuffix "/" . }}/{{ end }}{{ end }}
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

{{- /* The driver's own keys, as YAML. */}}
{{- define "s3-csi.driverSecret" -}}
{{- $amazon := .Values.awsAccessSecret }}
{{- if $amazon.name }}
name: {{ $amazon.name }}
accessKeyId: {{ $amazon.keyId }}
secretAccessKey: {{ $amazon.accessKey }}
sessionToken: {{ $amazon.sessionToken }}
{{- else }}
{{- toYaml .Values.s3CredentialSecret }}
{{- end }}
{{- end }}

{{- define "s3-csi.keyItems" -}}
secretName: {{ .name }}
optional: true
items:
  - key: {{ .accessKeyId }}
    path: access_key_id
  - key: {{ .secretAccessKey }}
    path: secret_access_key
  - key: {{ .sessionToken }}
    path: session_token
{{- end }}

{{- define "s3-csi.agentUrl" -}}
{{- with .Values.podIdentity.eks }}
{{- $own := ternary "http://[fd00:ec2::23]/v1/credentials" "http://169.254.170.23/v1/credentials" (eq .ipFamily "ipv6") }}
{{- $.Values.eksPodIdentityAgent.containerCredentialsFullURI | default .agentUrl | default $own }}
{{- end }}
{{- end }}

{{- /* The role of a service account of the driver. */}}
{{- define "s3-csi.role" -}}
{{- index (.annotations | default dict) "eks.amazonaws.com/role-arn" | default "" }}
{{- end }}

{{- /* Whether a pod with this service account can do without keys. */}}
{{- define "s3-csi.hasIdentity" -}}
{{- if or (include "s3-csi.role" .account) .root.Values.podIdentity.eks.driver .root.Values.instanceProfile.enabled }}yes{{ end }}
{{- end }}

{{- /* The driver's identity where it has no keys: variables, volume mounts and volumes of a pod with this service account. Names
    and paths differ from those of EKS's webhooks, which leave variables that exist alone. */}}
{{- define "s3-csi.identityVariables" -}}
- name: AWS_ENDPOINT_URL_STS
  value: {{ .root.Values.sts.endpointUrl | quote }}
{{- with include "s3-csi.role" .account }}
- name: AWS_ROLE_ARN
  value: {{ . | quote }}
- name: AWS_WEB_IDENTITY_TOKEN_FILE
  value: /var/run/secrets/s3-csi/sts/token
{{- end }}
{{- if .root.Values.podIdentity.eks.driver }}
- name: AWS_CONTAINER_CREDENTIALS_FULL_URI
  value: {{ include "s3-csi.agentUrl" .root | quote }}
- name: AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE
  value: /var/run/secrets/s3-csi/pod-identity/token
{{- end }}
{{- if .root.Values.instanceProfile.enabled }}
- name: AWS_EC2_METADATA_SERVICE_ENDPOINT
  value: {{ .root.Values.instanceProfile.metadataUrl | quote }}
{{- end }}
{{- end }}

{{- define "s3-csi.identityMounts" -}}
{{- if include "s3-csi.role" .account }}
- name: sts-token
  mountPath: /var/run/secrets/s3-csi/sts
  readOnly: true
{{- end }}
{{- if .root.Values.podIdentity.eks.driver }}
- name: pod-identity-token
  mountPath: /var/run/secrets/s3-csi/pod-identity
  readOnly: true
{{- end }}
{{- end }}

{{- define "s3-csi.identityVolumes" -}}
{{- $seconds := .root.Values.podIdentity.tokenExpirationSeconds }}
{{- if include "s3-csi.role" .account }}
{{- include "s3-csi.tokenVolume" (dict "name" "sts-token" "audience" "sts.amazonaws.com" "seconds" $seconds) }}
{{- end }}
{{- if .root.Values.podIdentity.eks.driver }}
{{ include "s3-csi.tokenVolume" (dict "name" "pod-identity-token" "audience" "pods.eks.amazonaws.com" "seconds" $seconds) }}
{{- end }}
{{- end }}

{{- define "s3-csi.tokenVolume" -}}
- name: {{ .name }}
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ .audience }}
          expirationSeconds: {{ .seconds }}
          path: token
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

{{- define "s3-csi.reservesHeadroom" -}}
{{- if or .Values.mountpointPod.reserveHeadroom .Values.experimental.reserveHeadroomForMountpointPods }}yes{{ end }}
{{- end }}

{{- /* The image of headroom pods, if it is not that of the Mountpoint Pods. The value of Amazon's chart is a whole reference. */}}
{{- define "s3-csi.headroomImage" -}}
{{- with .Values.mountpointPod.headroomImage }}
{{- if .repository }}{{ include "s3-csi.image" (dict "image" . "root" $) }}{{ else }}{{ $.Values.experimental.headroomPodImage }}{{ end }}
{{- end }}
{{- end }}

{{- /* Kubernetes' own priority classes exist already, and other pods use them too. */}}
{{- define "s3-csi.makesPriorityClass" -}}
{{- if not (hasPrefix "system-" .Values.mountpointPod.priorityClassName) }}yes{{ end }}
{{- end }}

{{- /* The classes that only Mountpoint Pods may have, as a list in JSON; nothing if there are none. */}}
{{- define "s3-csi.reservedPriorityClasses" -}}
{{- $pod := .Values.mountpointPod }}
{{- $names := list }}
{{- range list $pod.priorityClassName (ternary $pod.preemptingPriorityClassName "" (not (empty (include "s3-csi.reservesHeadroom" $)))) }}
{{- if and . (not (hasPrefix "system-" .)) }}
{{- $names = append $names . }}
{{- end }}
{{- end }}
{{- if $names }}{{ toJson $names }}{{ end }}
{{- end }}
