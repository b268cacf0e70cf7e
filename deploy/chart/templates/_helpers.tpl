{{- define "omni.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "omni.labels" -}}
app.kubernetes.io/name: minicpmo-live
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* A container may do nothing but run the program as user 1000. */}}
{{- define "omni.security" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "omni.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
terminationGracePeriodSeconds: {{ add .Values.drainTimeoutS 30 }}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Healthy is who serves: of a worker, whose model is loaded. A full one is healthy. */}}
{{- define "omni.probe" -}}
exec: {command: [python, deploy/healthy.py, "{{ .port }}"]}
periodSeconds: 10
timeoutSeconds: 5
failureThreshold: {{ .failures }}
{{- end }}

{{/* Of one engine alone: what it holds must not be found by the other. */}}
{{- define "omni.secret" -}}
{{ include "omni.name" . }}-{{ eq .Values.engine "plain" | ternary "workers" "ray" }}
{{- end }}

{{/* The same for gateway and workers. */}}
{{- define "omni.settings" -}}
- name: OMNI_SECURITY_WORKER_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "omni.secret" . }}, key: secret}}
- {name: OMNI_SECURITY_WORKER_TLS, value: "true"}
- {name: OMNI_SERVICE_DRAIN_TIMEOUT_S, value: {{ .Values.drainTimeoutS | quote }}}
{{- range $key, $value := .Values.settings }}
- {name: {{ $key }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "omni.environment" -}}
- {name: HOME, value: /data} # caches of libraries
{{ include "omni.settings" . }}
{{- end }}

{{/* What only workers read. */}}
{{- define "omni.model" -}}
{{- with .Values.worker.model.path }}
- {name: OMNI_MODEL_MODEL_PATH, value: {{ . | quote }}}
{{- else }}
{{- if not .Values.worker.fake }}
- {name: OMNI_MODEL_EMBEDDED, value: nano}
{{- end }}
{{- end }}
{{- with .Values.worker.slots }}
- {name: OMNI_SERVICE_WORKER_SLOTS, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* The embedded model is made of packages, once for each pod. */}}
{{- define "omni.nano" -}}
{{- if not (or .root.Values.worker.model.path .root.Values.worker.fake) }}
- name: nano
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  command: [python, -m, core.nano_assets, /data/nano]
  securityContext: {{- include "omni.security" .root | nindent 4 }}
  volumeMounts: {{- include "omni.mounts" .root | nindent 4 }}
{{- end }}
{{- end }}

{{- define "omni.worker.resources" -}}
requests: {{- toYaml .Values.worker.resources.requests | nindent 2 }}
limits:
  {{- toYaml .Values.worker.resources.limits | nindent 2 }}
  {{- with .Values.worker.gpus }}
  nvidia.com/gpu: {{ . }}
  {{- end }}
{{- end }}

{{/* The programs write below /data and /tmp alone. */}}
{{- define "omni.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if .Values.recordings.sharedClaim }}
- {name: sessions, mountPath: /data/sessions}
{{- end }}
{{- end }}

{{- define "omni.volumes" -}}
- {name: tmp, emptyDir: {}}
- name: workers
  secret: {secretName: {{ include "omni.secret" . }}, defaultMode: 0440}
{{- if .Values.recordings.sharedClaim }}
- {name: sessions, persistentVolumeClaim: {claimName: {{ .Values.recordings.sharedClaim }}}}
{{- end }}
{{- end }}
