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

{{/* What gateway and workers are both told. */}}
{{- define "omni.environment" -}}
- name: OMNI_SECURITY_WORKER_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "omni.name" . }}-workers, key: secret}}
- {name: HOME, value: /data} # caches of libraries
- {name: OMNI_SECURITY_WORKER_TLS, value: "true"}
- {name: OMNI_SERVICE_DRAIN_TIMEOUT_S, value: {{ .Values.drainTimeoutS | quote }}}
{{- range $key, $value := .Values.settings }}
- {name: {{ $key }}, value: {{ $value | quote }}}
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
  secret: {secretName: {{ include "omni.name" . }}-workers, defaultMode: 0440}
{{- if .Values.recordings.sharedClaim }}
- {name: sessions, persistentVolumeClaim: {claimName: {{ .Values.recordings.sharedClaim }}}}
{{- end }}
{{- end }}
