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
{{- with .Values.tls }}
{{- if and .caCertData (not .caCertConfigMap) }}
{{- fail "`tls.caCertData` needs `tls.caCertConfigMap`, which is empty: set it to the name of the ConfigMap that the chart creates" }}
{{- end }}
{{- end }}
{{- end }}
