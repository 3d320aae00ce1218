{{/*
A ClusterRole for one service and its binding; takes (root, component, rules). At its start, a program checks that it
has these permissions: see the functions named permissions in its sources.
*/}}
{{- define "watchdog.clusterRoleAndBinding" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "watchdog.metadata" (dict "root" $root "component" $component
      "name" (include "watchdog.clusterRole" (list $root $component)) "clusterScoped" true) | nindent 2 }}
rules:
  {{- index . 2 | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "watchdog.metadata" (dict "root" $root "component" $component
      "name" (include "watchdog.clusterRole" (list $root $component)) "clusterScoped" true) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "watchdog.clusterRole" (list $root $component) }}
subjects:
  - kind: ServiceAccount
    name: {{ include "watchdog.serviceAccount" (list $root $component) }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
