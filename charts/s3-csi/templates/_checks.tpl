{{- /* Values that contradict each other. The schema knows each value by itself; without these texts the chart would be installed, and
    one of the values would have no effect, or harm workloads. */}}
{{- define "s3-csi.checks" -}}
{{- with .Values.podIdentity }}
{{- if and .eks.enabled (not .enabled) }}
{{- fail "`podIdentity.eks.enabled` needs `podIdentity.enabled`, which is false: set it to true, or `podIdentity.eks.enabled` to false. For the driver's own identity, `podIdentity.eks.driver` is enough" }}
{{- end }}
{{- end }}
{{- with .Values.mountpointPod }}
{{- if and (hasPrefix "system-" .priorityClassName) (not (has (toString (default 0 .warm.perNode)) (list "0" "off"))) }}
{{- fail (printf "`mountpointPod.warm.perNode` is %v and `mountpointPod.priorityClassName` is %s: warm pods, which only wait, would preempt workloads that run. Set `mountpointPod.warm.perNode` to off, or `mountpointPod.priorityClassName` to a name of your own, of which the chart creates a class that does not preempt" .warm.perNode .priorityClassName) }}
{{- end }}
{{- end }}
{{- with .Values.metrics }}
{{- if and .serviceMonitor.enabled .podMonitor.enabled }}
{{- fail "`metrics.serviceMonitor.enabled` and `metrics.podMonitor.enabled` are both true, and Prometheus would scrape each pod twice: set one of them to false" }}
{{- end }}
{{- end }}
{{- with .Values.tls }}
{{- if and .caCertData (not .caCertConfigMap) }}
{{- fail "`tls.caCertData` needs `tls.caCertConfigMap`, which is empty: set it to the name of the ConfigMap that the chart creates" }}
{{- end }}
{{- end }}
{{- /* What serves the mounts is in the namespace of the Mountpoint Pods. `lookup` finds nothing without a cluster. */}}
{{- if .Release.IsUpgrade }}
{{- $pod := .Values.mountpointPod }}
{{- $controller := lookup "apps/v1" "Deployment" .Release.Namespace "s3-csi-controller" }}
{{- range dig "spec" "template" "spec" "containers" list $controller | first | default dict | dig "env" list }}
{{- if eq .name "MOUNTPOINT_NAMESPACE" }}
{{- $before := .value }}
{{- $annotations := dig "metadata" "annotations" dict (lookup "v1" "Namespace" "" $before) }}
{{- $isHelms := and (eq (index $annotations "meta.helm.sh/release-name" | default "") $.Release.Name) (ne (index $annotations "helm.sh/resource-policy" | default "") "keep") }}
{{- $moves := ne $before $pod.namespace }}
{{- if and (or $moves (and $isHelms (not $pod.createNamespace))) (lookup "v1" "Pod" $before "").items }}
{{- if $moves }}
{{- fail (printf "`mountpointPod.namespace` would change from %q to %q, and the pods in %q serve mounts: end the workloads that use buckets first, and turn `mountpointPod.warm` off" $before $pod.namespace $before) }}
{{- else }}
{{- fail (printf "without `mountpointPod.createNamespace`, Helm would delete the namespace %q, whose pods serve mounts. To keep the namespace: kubectl annotate namespace %s helm.sh/resource-policy=keep" $before $before) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
