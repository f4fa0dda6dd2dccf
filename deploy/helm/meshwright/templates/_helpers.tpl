{{- define "meshwright.labels" -}}
app.kubernetes.io/name: meshwright
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "meshwright.selector" -}}
app.kubernetes.io/name: meshwright
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "meshwright.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "meshwright.isPrivileged" -}}
{{- if or .Values.features.privileged.enabled .Values.features.kernelLog.enabled }}true{{ end -}}
{{- end }}

{{- define "meshwright.isRoot" -}}
{{- $owners := .Values.features.hostPID }}
{{- if or (eq (include "meshwright.isPrivileged" .) "true") (and $owners.enabled $owners.ofOthers) }}true{{ end -}}
{{- end }}

{{- define "meshwright.needsFolders" -}}
{{- if and .Values.prepareHostFolders (or .Values.state.hostPath .Values.features.hostSocket.enabled .Values.features.nodeLabels.enabled) }}true{{ end -}}
{{- end }}

{{- /* Numbers of YAML are floating: 16777216 would be told as 1.6777216e+07, which is no whole number to the agent. */}}
{{- define "meshwright.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "meshwright.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .tls }}
  scheme: HTTPS
  {{- end }}
timeoutSeconds: 5
{{- end }}
