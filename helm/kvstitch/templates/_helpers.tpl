{{- define "kvstitch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that what is appended fits into the 63 of a label. */}}
{{- define "kvstitch.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "kvstitch.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component: (dict "root" $ "component" "server"). Never changes. */}}
{{- define "kvstitch.selector" -}}
app.kubernetes.io/name: {{ include "kvstitch.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "kvstitch.labels" -}}
{{ include "kvstitch.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kvstitch
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvstitch.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvstitch.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* (dict "image" .Values.x.image "tag" "default tag") */}}
{{- define "kvstitch.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kvstitch.serverImage" -}}
{{- $tag := printf "%s-%s" .Chart.AppVersion .Values.server.device -}}
{{- include "kvstitch.image" (dict "image" .Values.server.image "tag" $tag) -}}
{{- end -}}

{{- define "kvstitch.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .gid }}
fsGroup: {{ .gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kvstitch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where a pod may run: the same keys in every component. */}}
{{- define "kvstitch.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The Secret of the chart itself holds only what is given as a value. */}}
{{- define "kvstitch.tenantSecretName" -}}
{{- if .Values.tenantSecret.existingSecret -}}
{{- .Values.tenantSecret.existingSecret -}}
{{- else if .Values.tenantSecret.value -}}
{{- include "kvstitch.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "kvstitch.hubTokenName" -}}
{{- if .Values.model.hubToken.existingSecret -}}
{{- .Values.model.hubToken.existingSecret -}}
{{- else if .Values.model.hubToken.value -}}
{{- include "kvstitch.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "kvstitch.redisAuth" -}}
{{- if and (eq .Values.redis.mode "bundled") .Values.redis.auth.enabled -}}true{{- end -}}
{{- end -}}

{{- define "kvstitch.redisSecretName" -}}
{{- default (printf "%s-redis" (include "kvstitch.fullname" .)) .Values.redis.auth.existingSecret -}}
{{- end -}}

{{/* Scaling beyond one replica, fixed or automatic. */}}
{{- define "kvstitch.many" -}}
{{- if or (gt (int .Values.server.replicas) 1) .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}true{{- end -}}
{{- end -}}

{{/* A value as the environment wants it: YAML's integers come as floats, 1048576 as 1.048576e+06. */}}
{{- define "kvstitch.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "kvstitch.validate" -}}
{{- if and (include "kvstitch.many" .) (not .Values.corpus.enabled) (not .Values.server.allowSeparateCorpora) (not (include "kvstitch.databaseSecretName" .)) (not .Values.fleet.enabled) -}}
{{- fail "several replicas: each keeps documents of its own, so an answer would depend on which one is asked. Set database, which they then share, corpus.enabled, so that every replica ingests the same documents before it is ready, or server.allowSeparateCorpora=true if you ingest into every pod yourself" -}}
{{- end -}}
{{- if and .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}
{{- fail "autoscaling.hpa and autoscaling.keda would fight over the same StatefulSet: enable one" -}}
{{- end -}}
{{- if and .Values.autoscaling.keda.enabled (not .Values.autoscaling.keda.prometheusAddress) -}}
{{- fail "autoscaling.keda needs prometheusAddress, e.g. http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and .Values.corpus.enabled (eq (empty .Values.corpus.existingClaim) (empty .Values.corpus.configMap)) -}}
{{- fail "corpus.enabled needs either corpus.existingClaim or corpus.configMap" -}}
{{- end -}}
{{- if and (eq .Values.redis.mode "external") (eq (empty .Values.redis.external.url) (empty .Values.redis.external.existingSecret)) -}}
{{- fail "redis.mode=external needs either redis.external.url or redis.external.existingSecret" -}}
{{- end -}}
{{- if and .Values.model.existingClaim (not (hasPrefix .Values.model.mountPath .Values.model.source)) -}}
{{- fail "model.existingClaim: model.source must be a folder below model.mountPath" -}}
{{- end -}}
{{- if and .Values.model.source (not .Values.model.existingClaim) (not .Values.model.download) -}}
{{- fail "model.source: give model.existingClaim with the folder, or model.download=true for a Hugging Face id" -}}
{{- end -}}
{{- if and .Values.vllm.enabled (or .Values.fleet.enabled (not .Values.model.existingClaim)) -}}
{{- fail "vllm.enabled: it is in the server's pod, so without fleet.enabled, and reads the same folder: set model.existingClaim and model.source" -}}
{{- end -}}
{{- end -}}

{{/* Environment from Secrets, and the operator's own. */}}
{{- define "kvstitch.serverEnv" -}}
{{- if include "kvstitch.redisAuth" . }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "kvstitch.redisSecretName" . }}
      key: {{ .Values.redis.auth.key }}
- name: KVSTITCH_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "kvstitch.fullname" . }}-redis:6379/0
{{- else if and (eq .Values.redis.mode "external") .Values.redis.external.existingSecret }}
- name: KVSTITCH_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.external.existingSecret }}
      key: {{ .Values.redis.external.key }}
{{- end }}
{{- with include "kvstitch.tenantSecretName" . }}
- name: KVSTITCH_TENANT_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.tenantSecret.key }}
{{- end }}
{{- if not .Values.fleet.enabled }}
{{- with include "kvstitch.databaseEnv" . }}
{{ trim . }}
{{- end }}
{{- end }}
{{- with include "kvstitch.hubTokenName" . }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.model.hubToken.key }}
{{- end }}
{{- with .Values.server.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
