{{/* What values.schema.json cannot say. */}}
{{- define "tandem.check" -}}
{{- $v := .Values -}}
{{- $sources := compact (list $v.model.existingClaim $v.model.hostPath $v.model.copy.image) -}}
{{- if ne (len $sources) 1 }}{{ fail (printf "model: want exactly one of existingClaim, hostPath and copy.image, there are %d" (len $sources)) }}{{ end -}}
{{- if and $v.model.subPath (not $v.model.existingClaim) }}{{ fail "model.subPath is of existingClaim" }}{{ end -}}
{{- $decodes := false -}}
{{- $some := false -}}
{{- range $name, $pool := include "tandem.pools" . | fromYaml -}}
{{- if ne $pool.role "prefill" -}}
{{- $decodes = true -}}
{{- if or $pool.autoscaling (gt (int $pool.replicas) 0) }}{{ $some = true }}{{ end -}}
{{- end -}}
{{- $limit := dig "limits" "memory" "" $pool.resources -}}
{{- if not $limit }}{{ fail (printf "pools.%s: resources.limits.memory is missing, from which the KV pool's size comes" $name) }}{{ end -}}
{{- if eq $pool.transport "ucx" -}}
{{- if not $pool.ucxDevices }}{{ fail (printf "pools.%s: transport ucx needs ucxDevices, since pods share no /dev/shm" $name) }}{{ end -}}
{{- if and (include "tandem.fleetTls" $) (not $v.tls.fleet.allowPlainUcx) }}{{ fail (printf "pools.%s: transport ucx sends KV blocks in plain text beside tls.fleet; choose grpc, or set tls.fleet.allowPlainUcx" $name) }}{{ end -}}
{{- if and $pool.sharedMemory (gt (include "tandem.bytes" $pool.sharedMemory | int64) (include "tandem.bytes" $limit | int64)) }}{{ fail (printf "pools.%s: sharedMemory of %s is more than the memory's limit of %s" $name $pool.sharedMemory $limit) }}{{ end -}}
{{- end -}}
{{- $kv := div (mul (include "tandem.bytes" $limit | int64) $pool.kvMemoryPercent) 100 -}}
{{- $shm := $pool.sharedMemory | default $limit -}}
{{- if and (eq $pool.transport "ucx") (gt (add $kv (include "tandem.bytes" "64Mi")) (include "tandem.bytes" $shm | int64)) }}{{ fail (printf "pools.%s: transport ucx has %d%% of %s for KV in %s of shared memory, of which 64Mi stay reserved" $name (int $pool.kvMemoryPercent) $limit $shm) }}{{ end -}}
{{- $sequences := get $pool.config "max-num-seqs" | int | default 64 -}}
{{- $tokens := get $pool.config "max-batched-tokens" | int -}}
{{- if and $tokens (le $tokens $sequences) }}{{ fail (printf "pools.%s.config: max-batched-tokens of %d must be more than max-num-seqs of %d" $name $tokens $sequences) }}{{ end -}}
{{- with $pool.rollout }}{{ if and (has (toString .maxSurge) (list "0" "0%")) (has (toString .maxUnavailable) (list "0" "0%")) }}{{ fail (printf "pools.%s.rollout: maxSurge and maxUnavailable are both 0, so nothing could be replaced" $name) }}{{ end }}{{ end -}}
{{- include "tandem.checkDevice" (dict "name" (printf "pools.%s" $name) "pool" $pool) -}}
{{- include "tandem.checkMemory" (dict "name" (printf "pools.%s" $name) "spec" $pool) -}}
{{- include "tandem.checkResources" (dict "name" (printf "pools.%s" $name) "resources" $pool.resources) -}}
{{- include "tandem.checkScaling" (dict "name" (printf "pools.%s" $name) "autoscaling" $pool.autoscaling) -}}
{{- end -}}
{{- include "tandem.checkPairs" (include "tandem.pools" . | fromYaml) -}}
{{- if not $decodes }}{{ fail "pools: none has the role decode or hybrid" }}{{ end -}}
{{- if not $some }}{{ fail "pools: all that decode have replicas of 0, so that no request could be served; helm uninstall, or kubectl scale, stops a fleet" }}{{ end -}}
{{- if not (or $v.router.autoscaling (gt (int $v.router.replicas) 0)) }}{{ fail "router: replicas of 0, so that no request could be served; helm uninstall, or kubectl scale, stops a fleet" }}{{ end -}}
{{- include "tandem.checkMemory" (dict "name" "router" "spec" $v.router) -}}
{{- include "tandem.checkResources" (dict "name" "router" "resources" $v.router.resources) -}}
{{- include "tandem.checkScaling" (dict "name" "router" "autoscaling" $v.router.autoscaling) -}}
{{- if and (eq $v.autoscaling.kind "keda") (not $v.autoscaling.prometheusAddress) }}{{ fail "autoscaling: keda needs prometheusAddress" }}{{ end -}}
{{- if and $v.tls.clients.clientCaSecret (not (include "tandem.clientsTls" .)) }}{{ fail "tls.clients: clientCaSecret needs secret or issuer" }}{{ end -}}
{{- if and $v.tls.fleet.caSecret (not (include "tandem.fleetTls" .)) }}{{ fail "tls.fleet: caSecret needs secret or issuer" }}{{ end -}}
{{- range $name, $tls := $v.tls }}{{ if and $tls.secret $tls.issuer }}{{ fail (printf "tls.%s: issuer would write into the Secret %s; name one of the two" $name $tls.secret) }}{{ end }}{{ end -}}
{{- if not (or $v.insecure.router (include "tandem.routerIsSecure" .)) }}{{ fail "routers would listen without TLS, or know no client: give tls.clients, and apiKeys or tls.clients.clientCaSecret; or set insecure.router" }}{{ end -}}
{{- if not (or $v.insecure.workers (include "tandem.workersAreSecure" .)) }}{{ fail "workers would listen to whoever reaches them: give fleetSecret or tls.fleet; or set insecure.workers" }}{{ end -}}
{{- $ports := splitList "-" $v.networkPolicy.ucxPorts -}}
{{- if or (gt (int (first $ports)) (int (last $ports))) (gt (int (last $ports)) 65535) }}{{ fail (printf "networkPolicy.ucxPorts: %s, want a first port and one that is no less, to 65535" $v.networkPolicy.ucxPorts) }}{{ end -}}
{{- if and (ne $v.router.serviceType "ClusterIP") $v.networkPolicy.enabled -}}
{{- $outside := false -}}
{{- range $v.networkPolicy.clients }}{{ if hasKey . "ipBlock" }}{{ $outside = true }}{{ end }}{{ end -}}
{{- if not $outside }}{{ fail (printf "router.serviceType %s is for clients from outside, whom networkPolicy.clients does not let in: name an ipBlock" $v.router.serviceType) }}{{ end -}}
{{- end -}}
{{- if and $v.routes.parentRefs $v.tls.clients.clientCaSecret }}{{ fail "routes: a gateway has no certificate of tls.clients.clientCaSecret to show" }}{{ end -}}
{{- if not $v.routes.parentRefs }}{{ range $key := list "httpHostnames" "grpcHostnames" }}{{ if get $v.routes $key }}{{ fail (printf "routes: %s without parentRefs, which name the gateways, make no route; names of an Ingress belong into router.allowedHosts" $key) }}{{ end }}{{ end }}{{ end -}}
{{- range $v.routes.httpHostnames }}{{ if has . $v.routes.grpcHostnames }}{{ fail (printf "routes: %s is in httpHostnames and in grpcHostnames; a gateway takes one of the two" .) }}{{ end }}{{ end -}}
{{- end -}}

{{/* Every pool that computes prompts for others needs one that can take its blocks over. */}}
{{- define "tandem.checkPairs" -}}
{{- range $name, $prefill := . -}}
{{- $complaints := list -}}
{{- $paired := ne $prefill.role "prefill" -}}
{{- range $other, $decode := $ -}}
{{- if and (not $paired) (ne $decode.role "prefill") -}}
{{- $differ := list -}}
{{- range $term, $ours := include "tandem.terms" $prefill | fromYaml -}}
{{- $theirs := get (include "tandem.terms" $decode | fromYaml) $term -}}
{{- $common := false -}}
{{- range splitList " or " $ours }}{{ if has . (splitList " or " $theirs) }}{{ $common = true }}{{ end }}{{ end -}}
{{- if not $common }}{{ $differ = append $differ (printf "%s (%s, not %s)" $term $theirs $ours) }}{{ end -}}
{{- end -}}
{{- if $differ }}{{ $complaints = append $complaints (printf "%s has another %s" $other (join ", " $differ)) }}{{ else }}{{ $paired = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and $complaints (not $paired) }}{{ fail (printf "pools.%s: nobody who decodes could take its blocks: %s" $name (join "; " $complaints)) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* What two pools must have in common to exchange blocks (docs/numerics.md has the classes of isa); one of several
where each machine or checkpoint has its own. */}}
{{- define "tandem.terms" -}}
{{- $gpu := include "tandem.onGpu" . -}}
{{- $isas := dict "auto" (ternary "tensor" "fma or generic" (ne $gpu "")) "generic" "generic" "amx" "amx" "tensor" "tensor" "mma" "tensor" -}}
transport: {{ ternary "ucx of GPUs" .transport (and (ne $gpu "") (eq .transport "ucx")) }}
block-size: {{ get .config "block-size" | default 16 | toString | quote }}
load-format: {{ get .config "load-format" | default "auto" }}
dtype: {{ get .config "dtype" | default "auto" | replace "auto" "f32 or bf16" }}
weights: {{ get .config "weights" | default "auto" }}
output-weights: {{ get .config "output-weights" | default "auto" }}
int8-outliers: {{ get .config "int8-outliers" | default 0 | toString | quote }}
kv-dtype: {{ get .config "kv-dtype" | default "auto" }}
isa: {{ get $isas (get .config "isa" | default "auto") | default "fma" }}
{{- end -}}

{{/* Whether a pool computes on GPUs: without one in resources, auto finds none. */}}
{{- define "tandem.onGpu" -}}
{{- if hasPrefix "cuda" (get .config "device" | default "auto") }}true{{ end -}}
{{- end -}}

{{/* For {name, pool}: who has a GPU says cuda, as with auto the CPU's image would leave it idle; and what a GPU's
worker would refuse, or take for another than was meant. */}}
{{- define "tandem.checkDevice" -}}
{{- $config := .pool.config -}}
{{- $device := get $config "device" | default "auto" -}}
{{- $isa := get $config "isa" | default "auto" -}}
{{- $ofGpus := has $isa (list "tensor" "mma" "fma") -}}
{{- $onGpu := include "tandem.onGpu" .pool -}}
{{- $found := list -}}
{{- range $resource, $number := .pool.resources.limits -}}
{{- if and (regexMatch "^nvidia[.]com/(gpu([.]shared)?|mig-.+)$" $resource) (ne (toString $number) "0") -}}
{{- $found = append $found $resource -}}
{{- if not $onGpu }}{{ fail (printf "%s: resources.limits has %s of %v, but config.device is %s, and cuda alone never leaves it idle; set config.device to cuda, or take %s out" $.name $resource $number $device $resource) }}{{ end -}}
{{- if ne (toString $number) "1" }}{{ fail (printf "%s: resources.limits has %s of %v, but a worker computes on one GPU; set it to 1, and replicas to the number of GPUs" $.name $resource $number) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if gt (len $found) 1 }}{{ fail (printf "%s: resources.limits has %s, but a worker computes on one GPU; leave one of them" .name (join " and " $found)) }}{{ end -}}
{{- if and $onGpu (regexMatch "^cuda:0*[1-9]" $device) }}{{ fail (printf "%s: config.device is %s, but a container sees one GPU, which is cuda:0; set config.device to cuda" .name $device) }}{{ end -}}
{{- if and $onGpu (not $found) }}{{ fail (printf "%s: config.device is %s, but resources.limits has no GPU; set resources.limits.nvidia.com/gpu to 1, or config.device to cpu" .name $device) }}{{ end -}}
{{- if and $ofGpus (not $onGpu) }}{{ fail (printf "%s: config.isa of %s is of GPUs, but config.device is %s; set config.device to cuda, or config.isa to auto" .name $isa $device) }}{{ end -}}
{{- if $onGpu -}}
{{- if not (or $ofGpus (eq $isa "auto")) }}{{ fail (printf "%s: config.isa of %s is the CPU's, but config.device is %s; set config.isa to auto, tensor, mma or fma" .name $isa $device) }}{{ end -}}
{{- if .pool.kvMemoryPercent }}{{ fail (printf "%s: kvMemoryPercent of %d is of the pod's memory, but config.device is %s, whose KV is in the GPU's; set kvMemoryPercent to 0, and config.gpu-memory-utilization to what the worker may take of the GPU" .name (int .pool.kvMemoryPercent) $device) }}{{ end -}}
{{- with get $config "int8-outliers" }}{{ fail (printf "%s: config.int8-outliers of %v is for CPUs, but config.device is %s; set config.int8-outliers to 0" $.name . $device) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkMemory" -}}
{{- with get .spec.config "memory-limit" -}}
{{- $bytes := include "tandem.bytes" (trimSuffix "B" .) | int64 -}}
{{- $limit := $.spec.resources.limits.memory -}}
{{- if or (lt $bytes (include "tandem.bytes" "32Mi" | int64)) (ge $bytes (include "tandem.bytes" $limit | int64)) }}{{ fail (printf "%s.config: memory-limit of %s, want 32MiB or more, and less than the memory's limit of %s" $.name . $limit) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes would refuse every pod of it, long after the release has been installed. */}}
{{- define "tandem.checkResources" -}}
{{- range $resource, $asked := .resources.requests -}}
{{- $limit := get ($.resources.limits | default dict) $resource -}}
{{- $has := include "tandem.milli" $limit -}}
{{- if and $has (gt (include "tandem.milli" $asked | int64) (int64 $has)) }}{{ fail (printf "%s.resources: requests.%s of %v is more than limits.%s of %v" $.name $resource $asked $resource $limit) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkScaling" -}}
{{- with .autoscaling }}{{ if gt (int .minReplicas) (int .maxReplicas) }}{{ fail (printf "%s.autoscaling: minReplicas of %d is more than maxReplicas of %d" $.name (int .minReplicas) (int .maxReplicas)) }}{{ end }}{{ end -}}
{{- end -}}
