{{/* The values: defaults, those of the topology, and those that were given. Templates call this instead of .Values. */}}
{{- define "vcr.values" -}}
{{- $preset := .Files.Get (printf "topologies/%s.yaml" .Values.topology) -}}
{{- if not $preset }}{{ fail (printf "topology: there is no topology %q" .Values.topology) }}{{ end -}}
{{- $v := mergeOverwrite (.Files.Get "defaults.yaml" | fromYaml) ($preset | fromYaml) .Values -}}
{{- if and $v.trace.location (not $v.trace.sha256) }}{{ fail (printf "trace.sha256: give the sha256 of %s, so that its answers do not change" $v.trace.location) }}{{ end -}}
{{- if and (eq .Values.topology "replay") (not $v.trace.location) (not $v.trace.golden) }}{{ fail "trace.location: replay needs a trace, or a golden as trace.golden" }}{{ end -}}
{{- toYaml $v -}}
{{- end }}

{{- define "vcr.labels" -}}
app.kubernetes.io/name: vllm-vcr
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of an object: with its name behind that of the release. */}}
{{- define "vcr.metadata" -}}
metadata:
  name: {{ .root.Release.Name }}{{ with .suffix }}-{{ . }}{{ end }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "vcr.labels" .root | nindent 4 }}
    {{- with .suffix }}
    app.kubernetes.io/component: {{ . }}
    {{- end }}
{{- end }}

{{- define "vcr.selector" -}}
{{ include "vcr.labels" .root }}
app.kubernetes.io/component: {{ .suffix }}
{{- end }}

{{- define "vcr.image" -}}
{{- $v := include "vcr.values" . | fromYaml -}}
{{- $tag := $v.image.tag -}}
{{- $digest := $v.image.digest -}}
{{- if not $tag -}}
{{- $tag = $v.vllmVersion -}}
{{- with .Chart.AppVersion }}{{ $tag = printf "%s-vllm%s" . $v.vllmVersion }}{{ end -}}
{{- $digest = default (get (.Files.Get "digests.yaml" | fromYaml) $v.vllmVersion) $digest -}}
{{- end -}}
{{ $v.image.repository }}:{{ $tag }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "vcr.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "vcr.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "vcr.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
