{{/* Every helper takes a dict with the chart ("root") and the name of a part, which is the name of its Deployment. */}}

{{- define "gpu-scheduler.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "gpu-scheduler.labels" -}}
{{ include "gpu-scheduler.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpu-scheduler
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpu-scheduler.meta" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "gpu-scheduler.labels" . | nindent 2 }}
{{- end }}

{{/* Metadata of cluster-scoped objects. */}}
{{- define "gpu-scheduler.clusterMeta" -}}
name: {{ .name }}
labels: {{- include "gpu-scheduler.labels" . | nindent 2 }}
{{- end }}

{{- define "gpu-scheduler.podMeta" -}}
labels:
  {{- include "gpu-scheduler.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  # The programs read their settings once, at the start.
  checksum/settings: {{ include "gpu-scheduler.settings" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Scheduling and security of the pods of a part. */}}
{{- define "gpu-scheduler.podSpec" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "gpu-scheduler.selector" $ | fromYaml)) }}
  {{- range . }}
  - {{- toYaml (merge (deepCopy .) $own) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "gpu-scheduler.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The file for --config. */}}
{{- define "gpu-scheduler.settings" -}}
{{- $fixed := dict "schedulerNames" .Values.scheduler.schedulerNames "namespace" .Release.Namespace -}}
{{- merge $fixed .Values.scheduler.settings | toYaml -}}
{{- end }}

{{/* Every container has its settings and a directory for temporary files: its root file system is read-only. */}}
{{- define "gpu-scheduler.settingsVolume" -}}
- name: settings
  configMap: {name: gpu-scheduler}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end }}

{{- define "gpu-scheduler.settingsMount" -}}
- {name: settings, mountPath: /etc/gpu-scheduler, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* -- the webhook */}}

{{/* Where it runs: "off", "outside", "apart" (in its own Deployment) or "beside" (in the scheduler's pod). */}}
{{- define "gpu-scheduler.webhook.place" -}}
{{- with .Values.webhook -}}
{{- if not .enabled }}off{{ else if .url }}outside{{ else if .separate }}apart{{ else }}beside{{ end -}}
{{- end -}}
{{- end }}

{{/* Where its certificates come from: "given", "cert-manager" or "own". */}}
{{- define "gpu-scheduler.webhook.certificates" -}}
{{- with .Values.webhook -}}
{{- if and .caBundle .certManager.enabled }}
{{- fail "webhook.caBundle and webhook.certManager.enabled: set only one of them; each defines the CA to trust" }}
{{- else if and .url .certManager.enabled }}
{{- fail "webhook.url and webhook.certManager.enabled: cert-manager issues certificates for a webhook in the cluster only; set webhook.caBundle instead" }}
{{- else if .caBundle }}given{{ else if .certManager.enabled }}cert-manager{{ else }}own{{ end -}}
{{- end -}}
{{- end }}

{{/* Its service account. */}}
{{- define "gpu-scheduler.webhook.account" -}}
{{- eq (include "gpu-scheduler.webhook.place" .) "beside" | ternary "gpu-scheduler" "gpu-scheduler-webhook" -}}
{{- end }}

{{- define "gpu-scheduler.webhook.container" -}}
{{- $own := eq (include "gpu-scheduler.webhook.certificates" .) "own" -}}
- name: webhook
  {{- include "gpu-scheduler.image" . | nindent 2 }}
  command: [gpu-scheduler, webhook]
  args:
    - --config=/etc/gpu-scheduler/scheduler.yaml
    - --namespace={{ .Release.Namespace }}
    - --listen=:8443
    - --scheduler-account={{ include "gpu-scheduler.schedulerAccount" . }}
    {{- if $own }}
    - --tls-secret=gpu-scheduler-webhook-tls
    - --configuration=gpu-scheduler-webhook
    {{- else }}
    - --tls-dir=/etc/gpu-scheduler-tls
    {{- end }}
    {{- if not .Values.webhook.inject }}
    - --no-inject
    {{- end }}
    {{- range .Values.webhook.deny }}
    - --deny={{ . }}
    {{- end }}
    {{- with .Values.webhook.extraArgs }}{{ toYaml . | nindent 4 }}{{ end }}
  ports:
    - {name: webhook, containerPort: 8443}
  livenessProbe: {httpGet: {path: /healthz, port: webhook, scheme: HTTPS}, periodSeconds: 10, timeoutSeconds: 5}
  readinessProbe: {httpGet: {path: /readyz, port: webhook, scheme: HTTPS}, periodSeconds: 5, timeoutSeconds: 5}
  resources: {{- toYaml .Values.webhook.resources | nindent 4 }}
  volumeMounts:
    {{- include "gpu-scheduler.settingsMount" . | nindent 4 }}
    {{- if not $own }}
    - {name: tls, mountPath: /etc/gpu-scheduler-tls, readOnly: true}
    {{- end }}
{{- end }}

{{- define "gpu-scheduler.webhook.volumes" -}}
{{- if ne (include "gpu-scheduler.webhook.certificates" .) "own" }}
- name: tls
  secret: {secretName: gpu-scheduler-webhook-tls, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* The user name of the scheduler's service account. */}}
{{- define "gpu-scheduler.schedulerAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:gpu-scheduler
{{- end }}

{{/* A ValidatingAdmissionPolicy and its binding, in all namespaces or in those that a selector selects. */}}
{{- define "gpu-scheduler.policy" }}
{{- $meta := include "gpu-scheduler.clusterMeta" . }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{- $meta | nindent 2 }}
spec: {{- toYaml .spec | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{- $meta | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  {{- with .namespaces }}
  matchResources:
    namespaceSelector: {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}

{{/* The webhooks of one configuration for this installation, without clientConfig. */}}
{{- define "gpu-scheduler.webhooks" -}}
{{- $names := printf "[\"%s\"]" (.root.Values.scheduler.schedulerNames | sortAlpha | join "\", \"") -}}
{{- .root.Files.Get (printf "files/%s-webhooks.yaml" (lower .kind))
  | replace "[\"SCHEDULER_NAMES\"]" $names
  | replace "SCHEDULER_ACCOUNT" (include "gpu-scheduler.schedulerAccount" .root)
  | replace "SYSTEM_NAMESPACE" .root.Release.Namespace -}}
{{- end }}
