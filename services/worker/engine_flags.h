// How workers compute: the flags that tandem-worker and `tandem serve`, which hands them on, have
// in common.

#ifndef TANDEM_SERVICES_WORKER_ENGINE_FLAGS_H_
#define TANDEM_SERVICES_WORKER_ENGINE_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/flags.h"

namespace tandem {

struct EngineFlags {
  std::string served_model_name;
  std::string transport = "grpc";
  std::string ucx_devices;
  ByteSize kv_memory;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_batched_tokens = 0;
  int32_t block_size = 16;
  std::string device = "auto";
  double gpu_memory_utilization = 0.9;
  int32_t threads = 0;
  std::string dtype = "auto";
  std::string weights = "auto";
  std::string output_weights = "auto";
  double int8_outliers = 0;
  std::string kv_dtype = "auto";
  std::string isa = "auto";
  std::string load_format = "auto";
  std::string cache_dir;
  double liveness_scale = 1;

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
  // InvalidArgument, with the flag's name, if one has a value that cannot be meant.
  absl::Status Check() const;
  // As on a command line.
  std::vector<std::string> Arguments() const;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ENGINE_FLAGS_H_
