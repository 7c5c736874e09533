// The one place that names the backends.

#ifndef TANDEM_KERNELS_CREATE_BACKEND_H_
#define TANDEM_KERNELS_CREATE_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

// What --isa takes: "auto" (the best that this machine has; on a GPU "tensor"), one of the cpu's
// (KnownIsas), or one of a GPU: products of bf16 on the tensor cores ("tensor", or "mma" for
// the same bits by a warp's products alone) or those of the cpu's class ("fma").
std::vector<std::string> IsaChoices();

struct BackendOptions {
  // "auto": a GPU where this was built with CUDA, there is one and `isa` is none of a cpu; else the
  // cpu. One that is there and cannot be used is an error; without CUDA, if `isa` is "auto", too, a
  // warning. "cpu". "cuda", the process's first GPU;
  // "cuda:N", the N-th of those that it sees, or "cuda:UUID", one of the machine's, for both of
  // which this process must not have used a GPU before. For tests "reference", plain scalar code,
  // the specification, "fenced", the cpu as a device whose memory is elsewhere, and "fenced_pool",
  // where that is so of its pool, too.
  std::string device = "cpu";
  std::string isa = "auto";  // Not of the reference: of IsaChoices.
  int num_threads = 1;       // The cpu has 1 to 1,024, the calling thread included.
  // With one, all threads are others than the calling one, and so many levels (nice(2)) above it.
  int niceness = 0;
  std::string root = "/";  // Where the machine's files are, by which "auto" finds GPUs.
};

// InvalidArgument for what names no device. Looks for none.
absl::Status CheckDevice(const std::string& device);

// The GPUs that there are for processes of that device and instruction set, as this process sees
// them, each as a device by its UUID; none where one is named already, or the cpu is, or no GPU can
// be used. Who has looked cannot fork and use one.
std::vector<std::string> ListGpus(const BackendOptions& options);

// InvalidArgument for an unknown name, an instruction set of the other kind of device or a thread
// count out of range; FailedPrecondition if this machine lacks the device or the instruction set.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CREATE_BACKEND_H_
