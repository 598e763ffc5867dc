{{/* Environment of everything that is part of the Ray cluster or drives it. */}}
{{- define "kvstitch.rayEnv" -}}
envFrom:
  - configMapRef:
      name: {{ include "kvstitch.fullname" . }}
  {{- with .Values.server.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: RAY_USAGE_STATS_ENABLED
    value: "0"
  {{- include "kvstitch.databaseEnv" . | trim | nindent 2 }}
  {{- include "kvstitch.fleetEnv" . | trim | nindent 2 }}
{{- end -}}

{{- define "kvstitch.rayVolumes" -}}
{{- with .Values.fleet.worker }}
- name: data
  emptyDir:
    sizeLimit: {{ .dataSize }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .temporary.tmpSize }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .temporary.sharedMemorySize }}
{{- end }}
{{- with .Values.model.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end -}}

{{/* A Job that drives the cluster: (dict "root" $ "name" … "job" … "part" .Values.… "args" (list …)).
     Its name changes with what it does, because a Job cannot be changed. */}}
{{- define "kvstitch.rayJob" }}
{{- $pod := dict "root" .root "component" "ray" "part" .part }}
{{- $ray := .root.Values.ray }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  labels:
    {{- include "kvstitch.labels" $pod | nindent 4 }}
spec:
  backoffLimit: {{ .part.backoffLimit }}
  template:
    metadata:
      {{- include "kvstitch.podMetadata" $pod | nindent 6 }}
    spec:
      restartPolicy: OnFailure
      {{- include "kvstitch.podCommon" $pod | nindent 6 }}
      containers:
        - name: {{ .job }}
          image: {{ include "kvstitch.rayImage" (dict "root" .root "device" .root.Values.fleet.worker.device) }}
          imagePullPolicy: {{ $ray.image.pullPolicy }}
          # A node of the cluster on which nothing is placed: Ray Data needs one beside its driver.
          args:
            - sh
            - -c
            - |
              ray start --num-cpus=0 --num-gpus=0 --object-store-memory={{ int64 $ray.objectStoreBytes }} \
                --address={{ include "kvstitch.fullname" .root }}-ray-head-svc:{{ $ray.port }} &&
              exec "$@"
            - sh
            {{- toYaml .args | nindent 12 }}
          securityContext:
            {{- include "kvstitch.containerSecurity" .root | nindent 12 }}
          {{- include "kvstitch.rayEnv" .root | nindent 10 }}
          resources:
            {{- toYaml .part.resources | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /var/lib/kvstitch}
            - {name: tmp, mountPath: /tmp}
            - {name: shm, mountPath: /dev/shm}
            {{- with .root.Values.model }}
            {{- if .existingClaim }}
            - {name: models, mountPath: {{ .mountPath }}, readOnly: true}
            {{- end }}
            {{- end }}
      volumes:
        {{- include "kvstitch.rayVolumes" .root | nindent 8 }}
{{- end -}}
