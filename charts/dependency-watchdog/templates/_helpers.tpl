{{/* First part of all names. */}}
{{- define "watchdog.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/*
The services that are switched on, as a list of {component, values}: component is the name of the program, of the image
and the last part of all names.
*/}}
{{- define "watchdog.services" -}}
{{- $services := list }}
{{- range $component, $key := dict "lease-probe" "leaseProbe" "scaling-coordinator" "scalingCoordinator" "weeder" "weeder" }}
{{- $values := index $.Values $key }}
{{- if $values.enabled }}
{{- $services = append $services (dict "component" $component "values" $values) }}
{{- end }}
{{- end }}
{{- toJson $services }}
{{- end }}

{{/* Name of what belongs to one service; takes (root, component). */}}
{{- define "watchdog.fullname" -}}
{{ printf "%s-%s" (include "watchdog.name" (index . 0)) (index . 1) }}
{{- end }}

{{/* The labels of the Pods of one service; they never change. Takes (root, component). */}}
{{- define "watchdog.selector" -}}
app.kubernetes.io/name: {{ include "watchdog.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of every object; takes (root, component). */}}
{{- define "watchdog.labels" -}}
{{- $root := index . 0 -}}
{{ include "watchdog.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Image of a service; takes (root, service). */}}
{{- define "watchdog.image" -}}
{{- $root := index . 0 -}}
{{- $service := index . 1 -}}
{{- with $root.Values.image -}}
{{- if $service.values.image -}}
{{ $service.values.image }}
{{- else -}}
{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}/{{ $service.component }}:{{ .tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Secret with the certificate of a service; takes (root, service). */}}
{{- define "watchdog.tlsSecret" -}}
{{- $service := index . 1 -}}
{{ $service.values.tlsSecretName | default (printf "%s-tls" (include "watchdog.fullname" (list (index . 0) $service.component))) }}
{{- end }}

{{/* DNS name in the certificates of lease-probe, which lease-probe and scaling-coordinator call. */}}
{{- define "watchdog.leaseProbeServerName" -}}
{{ include "watchdog.fullname" (list . "lease-probe") }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* ConfigMap of a service; takes (root, component). lease-probe and scaling-coordinator read the same file. */}}
{{- define "watchdog.configMap" -}}
{{ include "watchdog.name" (index . 0) }}-{{ eq (index . 1) "weeder" | ternary "weeder" "prober" }}-config
{{- end }}

{{/* Name of cluster-scoped RBAC objects; takes (root, component). */}}
{{- define "watchdog.clusterRole" -}}
gardener.cloud:{{ include "watchdog.name" (index . 0) }}:{{ index . 1 }}
{{- end }}

{{/*
Whether a HorizontalPodAutoscaler sets the replicas of a service; takes the service. With 0 replicas a service is off,
and stays off.
*/}}
{{- define "watchdog.autoscaled" -}}
{{ and .values.autoscaling.enabled (gt (int .values.replicas) 0) }}
{{- end }}

{{/*
Fails when a duration, which the schema has found well-formed, is out of its bounds; takes (where, duration or nothing,
least, most), the last two in milliseconds.
*/}}
{{- define "watchdog.checkDuration" -}}
{{- $units := dict "ns" 0.000001 "us" 0.001 "µs" 0.001 "μs" 0.001 "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 }}
{{- with index . 1 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+[a-zµμ]+" . -1 }}
{{- $number := regexFind "[0-9.]+" . }}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) }}
{{- end }}
{{- if or (lt $sum (index $ 2)) (gt $sum (index $ 3)) }}
{{- fail (printf "%s is %s; it must be at least %gs and at most 24h" (index $ 0) . (divf (index $ 2) 1000)) }}
{{- end }}
{{- end }}
{{- end }}
