{{- define "check.selector" -}}
app.kubernetes.io/name: gpu-scheduler-check
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "check.labels" -}}
{{ include "check.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The name of the StatefulSet: several releases go into one namespace. A pod's number has to fit behind it. */}}
{{- define "check.name" -}}
{{- contains "gpu-scheduler-check" .Release.Name | ternary .Release.Name (printf "%s-gpu-scheduler-check" .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "check.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "check.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}
