{{- define "omni.ray.cluster" -}}
{{ include "omni.name" . }}-ray
{{- end }}

{{/* The head's service, which KubeRay makes; its certificate has to name it. */}}
{{- define "omni.ray.head" -}}
{{ include "omni.ray.cluster" . }}-head-svc.{{ .Release.Namespace }}.svc.{{ .Values.kuberay.clusterDomain }}
{{- end }}

{{/* Bytes of Ray's object store in each pod, which no conversation passes through. */}}
{{- define "omni.ray.store" -}}
100000000
{{- end }}

{{/*
What launcher.ray_variables prints for a machine, but for how long machines wait for a head that went
away: nothing outlives the head here, and pods that end after Ray's own minute are started again.
*/}}
{{- define "omni.ray.environment" -}}
- {name: HOME, value: /data} # caches of libraries
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "omni.secret" . }}, key: auth_token}}
- {name: RAY_USE_TLS, value: "1"}
- {name: RAY_TLS_SERVER_CERT, value: /cluster/node.pem}
- {name: RAY_TLS_SERVER_KEY, value: /cluster/node.key}
- {name: RAY_TLS_CA_CERT, value: /cluster/ca.pem}
- {name: RAY_health_check_period_ms, value: "2000"}
- {name: RAY_health_check_timeout_ms, value: "3000"}
- {name: RAY_health_check_failure_threshold, value: "4"}
- {name: RAY_memory_monitor_refresh_ms, value: "0"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- end }}

{{/* A certificate for this pod's address; the CA's key stays out of Ray's containers. */}}
{{- define "omni.ray.certificate" -}}
- name: certificate
  image: {{ .Values.images.ray }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command:
    - sh
    - -c
    - >-
      cp /ca/ca_and_key.pem /cluster/ &&
      python -m launcher.ray_variables /cluster --host node --name "$POD_IP"
      --name {{ include "omni.ray.head" . }} &&
      rm /cluster/ca_and_key.pem /cluster/token
  env:
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
  securityContext: {{- include "omni.security" . | nindent 4 }}
  volumeMounts:
    - {name: cluster, mountPath: /cluster}
    - {name: ca, mountPath: /ca, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "omni.ray.mounts" -}}
- {name: cluster, mountPath: /cluster}
{{ include "omni.mounts" . }}
{{- end }}

{{- define "omni.ray.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: cluster, emptyDir: {medium: Memory}}
- name: ca
  secret:
    secretName: {{ include "omni.secret" . }}
    defaultMode: 0440
    items: [{key: ca_and_key.pem, path: ca_and_key.pem}]
{{- if .Values.recordings.sharedClaim }}
- {name: sessions, persistentVolumeClaim: {claimName: {{ .Values.recordings.sharedClaim }}}}
{{- end }}
{{- end }}

{{/* A pod that joins Ray without resources, as a driver must be on one of its machines, and runs the launcher. */}}
{{- define "omni.ray.launcher" -}}
{{- $ := .root }}
{{- include "omni.pod" $ }}
initContainers:
  {{- include "omni.ray.certificate" $ | nindent 2 }}
containers:
  - name: launcher
    image: {{ $.Values.images.ray }}
    imagePullPolicy: {{ $.Values.images.pullPolicy }}
    command:
      - bash
      - -c
      - >-
        ray start --address={{ include "omni.ray.head" $ }}:6379 --num-cpus=0 --num-gpus=0
        --object-store-memory={{ include "omni.ray.store" $ }} &&
        exec python -P -m launcher --ray auto {{ .arguments }}
    env:
      {{- include "omni.ray.environment" $ | nindent 6 }}
      - name: OMNI_SECURITY_ADMIN_TOKEN
        valueFrom: {secretKeyRef: {name: {{ include "omni.secret" $ }}, key: admin_token}}
      - name: OMNI_SECURITY_TICKET_SECRET
        valueFrom: {secretKeyRef: {name: {{ include "omni.secret" $ }}, key: ticket_secret}}
      - name: OMNI_SECURITY_ALLOWED_HOSTS
        value: {{ append $.Values.hosts (printf "%s-gateway" (include "omni.name" $)) | join "," }}
      - {name: OMNI_SERVICE_HTTPS, value: {{ $.Values.gateway.https | quote }}}
      {{- include "omni.settings" $ | nindent 6 }}
      {{- include "omni.model" $ | nindent 6 }}
    securityContext: {{- include "omni.security" $ | nindent 6 }}
    resources: {requests: {cpu: 100m, memory: 512Mi}, limits: {memory: 2Gi}}
    volumeMounts:
      - {name: cluster, mountPath: /cluster}
      - {name: data, mountPath: /data}
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: data, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  - {name: cluster, emptyDir: {medium: Memory}}
  - name: ca
    secret:
      secretName: {{ include "omni.secret" $ }}
      defaultMode: 0440
      items: [{key: ca_and_key.pem, path: ca_and_key.pem}]
{{- end }}
