{{/* Short enough that the names of pods, which queries look for, are not cut. A release may be called 7b or
qwen2.5: a service has no dots in its name and begins with a letter. */}}
{{- define "tandem.fullname" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- $name := ternary $release (printf "%s-tandem" $release) (contains "tandem" $release) -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "tandem-%s" $release }}{{ end -}}
{{- regexReplaceAll "-+$" (.Values.fullnameOverride | default $name | trunc 30) "" -}}
{{- end -}}

{{/* What selects the objects of a release; those of a component have app.kubernetes.io/component, too. */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The image of a program, from {root, program, own}. */}}
{{- define "tandem.image" -}}
{{- with .own }}{{ . }}{{ else }}{{ with .root.Values.image.repository }}{{ . }}/{{ end }}{{ .program }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* Every pool, with what it does not say taken from workers, of config flag by flag. */}}
{{- define "tandem.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.pools -}}
{{- $pool := deepCopy $.Values.workers -}}
{{- range $key, $value := omit $own "config" }}{{ $_ := set $pool $key $value }}{{ end -}}
{{- range $flag, $value := $own.config }}{{ $_ := set $pool.config $flag $value }}{{ end -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{/* Bytes of a Kubernetes quantity. */}}
{{- define "tandem.bytes" -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $factors := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (float64 $number) (get $factors (trimPrefix $number .)) | int64 -}}
{{- end -}}

{{/* Any quantity in thousandths; empty: it is none. */}}
{{- define "tandem.milli" -}}
{{- $quantity := toString . -}}
{{- if regexMatch "^[0-9.]+m$" $quantity -}}
{{- trimSuffix "m" $quantity | float64 | int64 -}}
{{- else if regexMatch "^[0-9.]+([kMGT]i?)?$" $quantity -}}
{{- $number := regexFind "^[0-9.]+" $quantity -}}
{{- $whole := include "tandem.bytes" (trimPrefix $number $quantity | printf "1%s") | float64 -}}
{{- mulf (float64 $number) $whole 1000 | int64 -}}
{{- end -}}
{{- end -}}

{{/* Names of Secrets with certificates; empty: no TLS. */}}
{{- define "tandem.clientsTls" -}}
{{- with .Values.tls.clients }}{{ if or .secret .issuer }}{{ .secret | default (printf "%s-clients-tls" (include "tandem.fullname" $)) }}{{ end }}{{ end -}}
{{- end -}}
{{- define "tandem.clientsTlsName" -}}
{{- .Values.tls.clients.name | default (printf "%s-router.%s.svc" (include "tandem.fullname" .) .Release.Namespace) -}}
{{- end -}}
{{- define "tandem.fleetTls" -}}
{{- with .Values.tls.fleet }}{{ if or .secret .issuer }}{{ .secret | default (printf "%s-fleet-tls" (include "tandem.fullname" $)) }}{{ end }}{{ end -}}
{{- end -}}
{{- define "tandem.fleetTlsName" -}}
{{- .Values.tls.fleet.name | default (printf "%s-workers.%s.svc" (include "tandem.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{/* Whether routers, and workers, may listen for others without being told to all the same. */}}
{{- define "tandem.routerIsSecure" -}}
{{- if and (include "tandem.clientsTls" .) (or .Values.apiKeys.secret .Values.tls.clients.clientCaSecret) }}true{{ end -}}
{{- end -}}
{{- define "tandem.workersAreSecure" -}}
{{- if or (include "tandem.fleetTls" .) .Values.fleetSecret.secret }}true{{ end -}}
{{- end -}}

{{/* Whether `tandem bench` can ask: it has a key if it is given one, no certificate of its own and no cache_salt, and
finds the service by no name but its own. */}}
{{- define "tandem.canBeTested" -}}
{{- $tls := .Values.tls.clients -}}
{{- $believed := or (not (include "tandem.clientsTls" .)) (and $tls.privateCa (not $tls.name) (not $tls.clientCaSecret)) -}}
{{- $known := or (not .Values.apiKeys.secret) .Values.test.apiKeySecret -}}
{{- if and $believed $known (not (get .Values.router.config "isolate-cache")) }}true{{ end -}}
{{- end -}}

{{/* A list of all names that clients call routers by. */}}
{{- define "tandem.routerNames" -}}
{{- $service := printf "%s-router" (include "tandem.fullname" .) -}}
{{- $local := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) -}}
{{- concat $local (compact (list .Values.tls.clients.name)) .Values.routes.httpHostnames .Values.routes.grpcHostnames .Values.router.allowedHosts | uniq | toJson -}}
{{- end -}}

{{/* What every pod has. */}}
{{- define "tandem.podDefaults" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tandem.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where the pods of a component may run: of {root, spec, labels}. */}}
{{- define "tandem.placement" -}}
{{- with .spec.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spec.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spec.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spec.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .spec.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- if .spec.topologySpread }}
topologySpreadConstraints:
  {{- range .spec.topologySpread }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- $.labels | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{/* startup, liveness and readiness; .startupSeconds: until it listens. */}}
{{- define "tandem.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" .tls -}}
# It listens once the model is loaded.
startupProbe:
  httpGet: {path: /health, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 5
  failureThreshold: {{ divf .startupSeconds 5 | ceil | int }}
# 503 when nothing has moved on for long.
livenessProbe:
  httpGet: {path: /health, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /ready, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* The model in a pod at /model, of {root, weights}: its volumes, its mount, and who copies it. */}}
{{- define "tandem.modelVolumes" -}}
{{- with .root.Values.model -}}
- name: model
  {{- if .existingClaim }}
  persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
  {{- else if .hostPath }}
  hostPath: {path: {{ .hostPath }}, type: Directory}
  {{- else }}
  emptyDir: {sizeLimit: {{ .copy.size }}}
  {{- end }}
{{- if and .copy.image .copy.volume }}
- name: model-source
  {{- toYaml .copy.volume | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
{{- define "tandem.modelMount" -}}
- name: model
  mountPath: /model
  readOnly: true
  {{- with .Values.model.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end -}}
{{- define "tandem.modelCopy" -}}
{{- with .root.Values.model.copy -}}
{{- if .image -}}
initContainers:
  - name: copy-model
    image: {{ .image }}
    imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
    {{- include "tandem.containerSecurity" $ | nindent 4 }}
    # A router reads tokenizer, template and configuration alone.
    command:
      - sh
      - -ec
      - |
        cd "$0"
        for file in *; do
          case $file in {{ if not $.weights }}*.safetensors|{{ end }}*.bin|*.pth|*.gguf) ;; *) cp -RL "$file" "$1/" ;; esac
        done
      - {{ .path }}
      - /copy-of-model  # Where no image has its own.
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - {name: model, mountPath: /copy-of-model}
      {{- if .volume }}
      - {name: model-source, mountPath: {{ .path }}, readOnly: true}
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Files of every pod, of {root, router}, under /etc/tandem. */}}
{{- define "tandem.files" -}}
{{- $files := dict "config" "" -}}
{{- $fullname := include "tandem.fullname" .root -}}
{{- with .root.Values.fleetSecret.secret }}{{ $_ := set $files "fleet-secret" . }}{{ end -}}
{{- with include "tandem.fleetTls" .root }}{{ $_ := set $files "fleet-tls" . }}{{ end -}}
{{- with .root.Values.tls.fleet.caSecret }}{{ $_ := set $files "fleet-ca" . }}{{ end -}}
{{- if .router -}}
{{- with .root.Values.apiKeys.secret }}{{ $_ := set $files "api-keys" . }}{{ end -}}
{{- with include "tandem.clientsTls" .root }}{{ $_ := set $files "clients-tls" . }}{{ end -}}
{{- with .root.Values.tls.clients.clientCaSecret }}{{ $_ := set $files "client-ca" . }}{{ end -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}
{{- define "tandem.fileVolumes" -}}
{{- range $name, $secret := include "tandem.files" . | fromYaml }}
- name: {{ $name }}
  {{- if $secret }}
  secret: {secretName: {{ $secret }}, defaultMode: 0440}
  {{- else }}
  configMap: {name: {{ include "tandem.fullname" $.root }}}
  {{- end }}
{{- end }}
{{- end -}}
{{- define "tandem.fileMounts" -}}
{{- range $name, $secret := include "tandem.files" . | fromYaml }}
- {name: {{ $name }}, mountPath: /etc/tandem/{{ $name }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* Flags of routers and workers alike. */}}
{{- define "tandem.commonArgs" -}}
- --model=/model
- --served-model-name={{ .Values.model.servedName }}
- --admin={{ .Values.listenAddress }}:9090
- --log-level-file=/etc/tandem/config/log-level.yaml
{{- with .Values.fleetSecret }}{{ if .secret }}
- --fleet-secret-file=/etc/tandem/fleet-secret/{{ .key }}
{{- end }}{{ end }}
{{- if include "tandem.fleetTls" . }}
- --fleet-tls-cert=/etc/tandem/fleet-tls/tls.crt
- --fleet-tls-key=/etc/tandem/fleet-tls/tls.key
- --fleet-tls-ca=/etc/tandem/fleet-{{ ternary "ca" "tls" (ne .Values.tls.fleet.caSecret "") }}/ca.crt
- --fleet-tls-name={{ include "tandem.fleetTlsName" . }}
{{- end }}
{{- end -}}

{{/* A budget for disruptions, of {root, name, spec, labels}. */}}
{{- define "tandem.disruptionBudget" -}}
{{- if ne (toString .spec.maxUnavailable) "" }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "tandem.labels" .root | nindent 4 }}
spec:
  maxUnavailable: {{ .spec.maxUnavailable }}
  selector:
    matchLabels: {{- .labels | nindent 6 }}
{{- end }}
{{- end -}}
