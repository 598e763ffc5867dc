{{/* What answers HTTP: the server, or in a fleet the gateways. */}}
{{- define "kvstitch.api" -}}
{{- if .Values.fleet.enabled -}}gateway{{- else -}}server{{- end -}}
{{- end -}}

{{/* What HPA and KEDA scale for requests: (dict of scaleTargetRef). */}}
{{- define "kvstitch.scaled" -}}
apiVersion: apps/v1
{{- if .Values.fleet.enabled }}
kind: Deployment
name: {{ include "kvstitch.fullname" . }}-gateway
{{- else }}
kind: StatefulSet
name: {{ include "kvstitch.fullname" . }}
{{- end }}
{{- end -}}

{{/* Whether this chart runs the workers as a StatefulSet; otherwise Ray starts them. */}}
{{- define "kvstitch.workerPods" -}}
{{- if and .Values.fleet.enabled (not .Values.ray.enabled) -}}true{{- end -}}
{{- end -}}

{{/* (dict "root" $ "device" "cuda"): the image of a part of the fleet. */}}
{{- define "kvstitch.deviceImage" -}}
{{- $tag := printf "%s-%s" .root.Chart.AppVersion .device -}}
{{- include "kvstitch.image" (dict "image" .root.Values.server.image "tag" $tag) -}}
{{- end -}}

{{- define "kvstitch.rayImage" -}}
{{- $tag := printf "%s-%s-ray" .root.Chart.AppVersion .device -}}
{{- include "kvstitch.image" (dict "image" .root.Values.ray.image "tag" $tag) -}}
{{- end -}}

{{/* A gateway finds Ray's actors by Ray itself. */}}
{{- define "kvstitch.gatewayImage" -}}
{{- $of := dict "root" . "device" "cpu" -}}
{{- if .Values.ray.enabled -}}{{ include "kvstitch.rayImage" $of }}{{- else -}}{{ include "kvstitch.deviceImage" $of }}{{- end -}}
{{- end -}}

{{- define "kvstitch.databaseSecretName" -}}
{{- if .Values.database.existingSecret -}}
{{- .Values.database.existingSecret -}}
{{- else if .Values.database.url -}}
{{- include "kvstitch.fullname" . -}}-database
{{- end -}}
{{- end -}}

{{- define "kvstitch.fleetSecretName" -}}
{{- default (printf "%s-fleet" (include "kvstitch.fullname" .)) .Values.fleet.secret.existingSecret -}}
{{- end -}}

{{/* Where gateways look for workers. */}}
{{- define "kvstitch.workerAddresses" -}}
{{- if .Values.ray.enabled -}}
ray://{{ include "kvstitch.fullname" . }}-ray-head-svc:{{ .Values.ray.clientPort }}
{{- else -}}
dns://{{ include "kvstitch.fullname" . }}-worker:{{ .Values.fleet.worker.port }}
{{- end -}}
{{- end -}}

{{/* Requests that may wait in a worker: as many as all gateways may send. */}}
{{- define "kvstitch.workerWaiting" -}}
{{- $gateways := .Values.fleet.gateway.replicas -}}
{{- range list .Values.autoscaling.hpa .Values.autoscaling.keda -}}
{{- if .enabled }}{{ $gateways = .maxReplicas }}{{ end -}}
{{- end -}}
{{- mul $gateways (default 256 .Values.settings.max_waiting) -}}
{{- end -}}

{{/* Seconds a worker has after SIGTERM. */}}
{{- define "kvstitch.drain" -}}
{{- int (default 30 .Values.settings.drain_timeout_s) -}}
{{- end -}}

{{/* Environment from Secrets that every part of the fleet has. */}}
{{- define "kvstitch.fleetEnv" -}}
- name: KVSTITCH_FLEET_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ include "kvstitch.fleetSecretName" . }}
      key: {{ .Values.fleet.secret.key }}
{{- with include "kvstitch.serverEnv" . }}
{{ trim . }}
{{- end }}
{{- end -}}

{{- define "kvstitch.databaseEnv" -}}
{{- with include "kvstitch.databaseSecretName" . }}
- name: KVSTITCH_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.database.key }}
{{- end }}
{{- end -}}

{{/* A container's resources with GPUs: (dict "resources" … "device" "cuda" "gpu" …). */}}
{{- define "kvstitch.resources" -}}
{{- $limits := deepCopy (default dict .resources.limits) }}
{{- if eq .device "cuda" }}
{{- $limits = set $limits .gpu.resource .gpu.count }}
{{- end }}
{{- toYaml (set (deepCopy .resources) "limits" $limits) }}
{{- end -}}

{{- define "kvstitch.spread" -}}
{{- if .spread.enabled }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .spread.topologyKey }}
    whenUnsatisfiable: {{ .spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "kvstitch.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a pod of the fleet: (dict "root" $ "component" … "part" .Values.…). */}}
{{- define "kvstitch.podMetadata" -}}
labels:
  {{- include "kvstitch.labels" . | nindent 2 }}
  {{- with .part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
  {{- with .root.Values }}
  checksum/secrets: {{ list .tenantSecret .model.hubToken .redis.auth .database .fleet.secret | toJson | sha256sum }}
  {{- end }}
  {{- with .part.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What every pod of the fleet has alike: (dict "root" $ "part" .Values.…). */}}
{{- define "kvstitch.podCommon" -}}
serviceAccountName: {{ include "kvstitch.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "kvstitch.podSecurity" (dict "uid" 10001 "gid" 10001) | nindent 2 }}
{{- with include "kvstitch.placement" .part }}
{{- . }}
{{- end }}
{{- end -}}

{{- define "kvstitch.validateFleet" -}}
{{- $v := .Values -}}
{{- if and $v.database.url $v.database.existingSecret -}}
{{- fail "database: give either database.url or database.existingSecret" -}}
{{- end -}}
{{- if and $v.ray.enabled (not $v.fleet.enabled) -}}
{{- fail "ray.enabled starts the workers of a fleet: set fleet.enabled too" -}}
{{- end -}}
{{- if and $v.bulk.enabled (not (include "kvstitch.databaseSecretName" .)) -}}
{{- fail "bulk.enabled needs database.url or database.existingSecret: its ranges are rows there" -}}
{{- end -}}
{{- if and $v.bulk.enabled (not $v.ray.enabled) -}}
{{- fail "bulk.enabled needs ray.enabled: kvstitch bulk runs on the Ray cluster" -}}
{{- end -}}
{{- if and $v.bulk.enabled (not $v.bulk.args) -}}
{{- fail "bulk.enabled needs bulk.args: what to ingest, e.g. [--input, s3://bucket/documents]" -}}
{{- end -}}
{{- if $v.fleet.enabled -}}
{{- if not (include "kvstitch.databaseSecretName" .) -}}
{{- fail "fleet.enabled: gateways keep nothing themselves; give database.url or database.existingSecret, the PostgreSQL that they share (docs/fleet.md#several-gateways-over-postgresql)" -}}
{{- end -}}
{{- if and (eq $v.redis.mode "none") (not $v.settings.s3_url) -}}
{{- fail "fleet.enabled: workers share KV through Redis or S3; set redis.mode to bundled or external, or settings.s3_url" -}}
{{- end -}}
{{- if $v.corpus.enabled -}}
{{- fail "fleet.enabled: all gateways have the same documents, so corpus.enabled has nothing to do; ingest once through the Service" -}}
{{- end -}}
{{- if gt (int $v.server.replicas) 1 -}}
{{- fail "fleet.enabled: server.replicas is of the layout with one container; set fleet.gateway.replicas and fleet.worker.replicas" -}}
{{- end -}}
{{- if gt (int (default 1 $v.settings.workers)) 1 -}}
{{- fail "fleet.enabled: settings.workers is of a gateway that starts its workers itself; set fleet.worker.replicas" -}}
{{- end -}}
{{- if and $v.fleet.worker.keda.enabled (not $v.autoscaling.keda.prometheusAddress) -}}
{{- fail "fleet.worker.keda needs autoscaling.keda.prometheusAddress, e.g. http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and $v.fleet.worker.keda.enabled $v.ray.enabled -}}
{{- fail "fleet.worker.keda scales the chart's own worker pods, and ray.enabled replaces them: set fleet.worker.replicas, which kvstitch cluster up starts" -}}
{{- end -}}
{{- if and (eq $v.fleet.worker.ssd.type "hostPath") (not $v.fleet.worker.ssd.hostPath) -}}
{{- fail "fleet.worker.ssd.type=hostPath needs fleet.worker.ssd.hostPath, a folder of the node that user 10001 may write" -}}
{{- end -}}
{{- if and (eq $v.fleet.worker.device "cuda") (ne (int $v.fleet.worker.gpu.count) 1) -}}
{{- fail "fleet.worker.gpu.count must be 1: several GPUs are for as many workers (fleet.worker.replicas), or for vLLM (vllm.enabled)" -}}
{{- end -}}
{{- if lt (int $v.fleet.worker.terminationGracePeriodSeconds) (add (include "kvstitch.drain" . | int) 30) -}}
{{- fail "fleet.worker.terminationGracePeriodSeconds must exceed settings.drain_timeout_s by 30: a worker finishes its answers, then writes what it holds" -}}
{{- end -}}
{{- if and $v.fleet.secret.existingSecret $v.fleet.secret.value -}}
{{- fail "fleet.secret: give either value or existingSecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}
