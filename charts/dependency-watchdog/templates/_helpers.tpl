{{/* The first part of every name. Not that of the chart: gardenlet's own objects begin with dependency-watchdog. */}}
{{- define "watchdog.prefix" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "watchdog" }}
{{- end }}

{{/* The label app.kubernetes.io/name. */}}
{{- define "watchdog.name" -}}
{{ .Values.nameOverride | default (include "watchdog.prefix" .) }}
{{- end }}

{{/*
The enabled programs, as a list of {component, values}. component is the name of the program and of its image, and the
last part of names.
*/}}
{{- define "watchdog.services" -}}
{{- $services := list }}
{{- range $component, $key := dict "lease-probe" "leaseProbe" "scaling-coordinator" "scalingCoordinator"
    "weeder" "weeder" }}
{{- $values := index $.Values $key }}
{{- if $values.enabled }}
{{- $services = append $services (dict "component" $component "values" $values) }}
{{- end }}
{{- end }}
{{- toJson $services }}
{{- end }}

{{/* Name of the objects of one service; takes (root, component). */}}
{{- define "watchdog.fullname" -}}
{{ printf "%s-%s" (include "watchdog.prefix" (index . 0)) (index . 1) }}
{{- end }}

{{/* ServiceAccount of a service; takes (root, component). */}}
{{- define "watchdog.serviceAccount" -}}
{{- $values := index (index . 0).Values (index . 1 | camelcase | untitle) -}}
{{ $values.serviceAccount.name | default (include "watchdog.fullname" .) }}
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
{{- $own := include "watchdog.selector" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
{{- merge $own $root.Values.commonLabels | toYaml }}
{{- end }}

{{/*
Metadata of an object; takes a dict of root, component and name, and optionally annotations, labels, namespace and
clusterScoped.
*/}}
{{- define "watchdog.metadata" -}}
name: {{ .name }}
{{- if not .clusterScoped }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels:
  {{- merge (include "watchdog.labels" (list .root .component) | fromYaml) (.labels | default dict) | toYaml
      | nindent 2 }}
{{- with merge dict (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Image of a service; takes (root, service). */}}
{{- define "watchdog.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $component := (index . 1).component -}}
{{- $own := (index . 1).values.image -}}
{{- $repository := $own.repository }}
{{- if not $repository }}
{{- if not $image.registry }}
{{- fail (print "there is no image of " $component ": build the images with make image, push them, and set "
    "image.registry to that registry, or <service>.image.repository to the name of each") }}
{{- end }}
{{- $repository = printf "%s/%s/%s" $image.registry $image.repository $component }}
{{- end }}
{{- $tag := $own.tag | default $image.tag | default (index . 0).Chart.AppVersion }}
{{- $repository }}:{{ $tag }}{{ with $own.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Secret with the certificate of a service; takes (root, service). */}}
{{- define "watchdog.tlsSecret" -}}
{{- $service := index . 1 -}}
{{ $service.values.tlsSecretName | default (printf "%s-tls"
    (include "watchdog.fullname" (list (index . 0) $service.component))) }}
{{- end }}

{{/* Source of the certificates: builtIn, certManager or secrets; plaintext if there are none. */}}
{{- define "watchdog.certificates" -}}
{{ .Values.insecurePlaintext | ternary "plaintext" .Values.certificates.source }}
{{- end }}

{{/* Secret of the certificate authority. */}}
{{- define "watchdog.authoritySecret" -}}
{{ .Values.certificates.authoritySecretName | default (printf "%s-authority" (include "watchdog.prefix" .)) }}
{{- end }}

{{/*
Secret with the observer certificate, which helm test uses too, and its namespace. Both are empty if the chart makes
none and the values name none.
*/}}
{{- define "watchdog.observerSecret" -}}
{{ .Values.watchdogctl.tlsSecretName | default (has (include "watchdog.certificates" .) (list "builtIn" "certManager")
    | ternary (printf "%s-observer" (include "watchdog.prefix" .)) "") }}
{{- end }}
{{- define "watchdog.observerNamespace" -}}
{{ and (eq (include "watchdog.certificates" .) "builtIn") (not .Values.watchdogctl.tlsSecretName)
    | ternary (include "watchdog.leaseNamespace" .) .Release.Namespace }}
{{- end }}

{{/* True if each service has its certificate in a Secret that its Pods mount. */}}
{{- define "watchdog.hasTlsFiles" -}}
{{ has (include "watchdog.certificates" .) (list "certManager" "secrets") }}
{{- end }}

{{/* DNS name in the certificates of a service; takes (root, component). */}}
{{- define "watchdog.serverName" -}}
{{ include "watchdog.fullname" . }}.{{ (index . 0).Release.Namespace }}.svc
{{- end }}

{{/*
Mode of a service; takes (root, values of the service). gardenlet renders the chart with one set of values for all
seeds, so an annotation of the Seed takes precedence.
*/}}
{{- define "watchdog.mode" -}}
{{- $annotation := "dependency-watchdog.gardener.cloud/mode" -}}
{{- $annotations := dig "seed" "annotations" dict ((index . 0).Values.gardener | default dict) | default dict -}}
{{- $ofSeed := get $annotations $annotation -}}
{{- if and $ofSeed (not (has $ofSeed (list "protect" "observe"))) -}}
{{- fail (printf "the annotation %s of the Seed is %q: write protect or observe" $annotation $ofSeed) -}}
{{- end -}}
{{- $ofSeed | default (index . 1).mode | default (index . 0).Values.mode -}}
{{- end }}

{{/*
True if a Job restores what scaling-coordinator holds down before an uninstallation. Not with 0 replicas or in mode
observe: then another program scales. gardenlet, which sets .Values.gardener, ignores hooks (docs/how-to/uninstall.md).
*/}}
{{- define "watchdog.restores" -}}
{{- with .Values.scalingCoordinator -}}
{{ and .enabled .releaseOnUninstall (eq (include "watchdog.mode" (list $ .)) "protect") (gt (int .replicas) 0)
    (not $.Values.gardener) }}
{{- end }}
{{- end }}

{{/* Components that a service calls. Replicas call each other to answer for the whole seed. Takes the service. */}}
{{- define "watchdog.calls" -}}
{{ eq .component "scaling-coordinator" | ternary (list "scaling-coordinator" "lease-probe") (list .component)
    | toJson }}
{{- end }}

{{/* Components that call a service; takes the service. */}}
{{- define "watchdog.calledBy" -}}
{{ eq .component "lease-probe" | ternary (list "lease-probe" "scaling-coordinator") (list .component) | toJson }}
{{- end }}

{{/* ConfigMap of a service; takes (root, component). lease-probe and scaling-coordinator read the same file. */}}
{{- define "watchdog.configMap" -}}
{{- $file := eq (index . 1) "weeder" | ternary "weeder" "prober" -}}
{{ get (index . 0).Values.existingConfigMap $file
    | default (printf "%s-%s-config" (include "watchdog.prefix" (index . 0)) $file) }}
{{- end }}

{{/* True if the file of a service may hold fields that this version does not know; takes (root, component). */}}
{{- define "watchdog.ignoreUnknownFields" -}}
{{- $file := eq (index . 1) "weeder" | ternary "weeder" "prober" -}}
{{- with (index . 0).Values.existingConfigMap }}
{{- if and .ignoreUnknownFields (get . $file) }}true{{ end }}
{{- end }}
{{- end }}

{{/* The volume with the configuration file of a service; takes (root, component). */}}
{{- define "watchdog.configVolume" -}}
{{- $file := eq (index . 1) "weeder" | ternary "weeder" "prober" -}}
- name: config
  configMap:
    name: {{ include "watchdog.configMap" . }}
    {{- if get (index . 0).Values.existingConfigMap $file }}
    items:
      - key: {{ (index . 0).Values.existingConfigMap.key }}
        path: config.yaml
    {{- end }}
{{- end }}

{{/* Namespace of the Leases and of the certificate authority. */}}
{{- define "watchdog.leaseNamespace" -}}
{{ .Values.membership.namespace | default (printf "%s-leases" (include "watchdog.prefix" .)) }}
{{- end }}

{{/*
Requests and limits of a service; takes (root, service). Memory that the values do not set follows from expectedShoots
and the figures of docs/explanation/performance.md, so that one replica can hold all shoots: base + perShoot in MiB.
*/}}
{{- define "watchdog.resources" -}}
{{- $shoots := float64 (index . 0).Values.expectedShoots }}
{{- $perShoot := get (dict "lease-probe" (list 0.1 0.27) "scaling-coordinator" (list 0.02 0.12)
    "weeder" (list 0.02 0.04)) (index . 1).component }}
{{- $request := printf "%dMi" (addf 32.0 (mulf $shoots (first $perShoot)) | ceil | int) }}
{{- $limit := printf "%dMi" (addf 64.0 (mulf $shoots (last $perShoot)) | ceil | int) }}
{{- $sized := dict "requests" (dict "memory" $request) "limits" (dict "memory" $limit) }}
{{- mergeOverwrite $sized (deepCopy (index . 1).values.resources) | toYaml }}
{{- end }}

{{/* Name of cluster-scoped RBAC objects; takes (root, component). */}}
{{- define "watchdog.clusterRole" -}}
gardener.cloud:{{ include "watchdog.prefix" (index . 0) }}:{{ index . 1 }}
{{- end }}

{{/* Labels by which Gardener's network policies let a Pod reach DNS and the API server of the seed; takes root. */}}
{{- define "watchdog.gardenerLabels" -}}
networking.gardener.cloud/to-dns: allowed
networking.gardener.cloud/to-runtime-apiserver: allowed
{{- end }}

{{/*
True if a HorizontalPodAutoscaler sets the replicas of a service; takes the service. A service with 0 replicas stays
off. Only lease-probe has an autoscaler, because only one replica of the others acts.
*/}}
{{- define "watchdog.autoscaled" -}}
{{ and (dig "autoscaling" "enabled" false .values) (gt (int .values.replicas) 0) }}
{{- end }}

{{/*
Fails if a well-formed duration is out of its bounds; takes (path, duration or nothing, minimum, maximum), the last two
in milliseconds.
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

{{/* TLS settings with which the Prometheus operator scrapes port 9643. */}}
{{- define "watchdog.scrapeTLS" -}}
{{- if .Values.adminTLS.enabled -}}
scheme: https
{{- with .Values.adminTLS.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* On a seed of Gardener, only the aggregate Prometheus has an Alertmanager. It selects objects by this label. */}}
{{- define "watchdog.aggregateLabel" -}}
{{ .Values.seed.gardener | ternary (dict "prometheus" "aggregate") dict | toYaml }}
{{- end }}

{{/* Fields that all Pods of a service share, including the release Job's; takes (root, component, values). */}}
{{- define "watchdog.podSpec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "watchdog.serviceAccount" (list $root (index . 1)) }}
automountServiceAccountToken: true
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "watchdog.podSecurityContext" $root | nindent 2 }}
{{- range $key := list "dnsConfig" "nodeSelector" "tolerations" "affinity" }}
{{- with get $values $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels of a Pod; takes (root, component, values, labels of its own). Values cannot change what selects it. */}}
{{- define "watchdog.podLabels" -}}
{{- $root := index . 0 -}}
{{- $gardener := $root.Values.seed.gardener | ternary (include "watchdog.gardenerLabels" . | fromYaml) dict }}
{{- $own := merge (index . 3) $gardener $root.Values.commonLabels }}
{{- merge dict (include "watchdog.selector" . | fromYaml) (index . 2).podLabels $own | toYaml }}
{{- end }}

{{/* The securityContext of a Pod. OpenShift gives each namespace users of its own and refuses others. */}}
{{- define "watchdog.podSecurityContext" -}}
{{- include "watchdog.withFields" (list (include "watchdog.ownPodSecurityContext" .) .Values.podSecurityContext) }}
{{- end }}

{{- define "watchdog.ownPodSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.seed.openshift }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The securityContext of a container. */}}
{{- define "watchdog.securityContext" -}}
{{- include "watchdog.withFields" (list (include "watchdog.ownSecurityContext" .) .Values.securityContext) }}
{{- end }}

{{- define "watchdog.ownSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A mapping in which some fields are replaced, each as a whole; takes (YAML, fields). */}}
{{- define "watchdog.withFields" -}}
{{- if index . 1 }}
{{- $all := index . 0 | fromYaml }}
{{- range $name, $value := index . 1 }}
{{- /* Not merge, which keeps what a false should replace. */}}
{{- $_ := set $all $name $value }}
{{- end }}
{{- toYaml $all }}
{{- else }}
{{- index . 0 }}
{{- end }}
{{- end }}
