// The one place that names the backends.

#ifndef TANDEM_KERNELS_CREATE_BACKEND_H_
#define TANDEM_KERNELS_CREATE_BACKEND_H_

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

// The cpu's instruction sets that "auto" takes, best first; all but "generic" are of one numerics
// class (docs/numerics.md).
#if defined(__aarch64__)
inline constexpr const char* kIsas[] = {"neondot", "neon", "generic"};
#else
inline constexpr const char* kIsas[] = {"avx512bf16", "avx512vnni", "avx512",
                                        "avx2vnni",   "avx2",       "generic"};
#endif

// What --isa takes: "auto" (the best of kIsas that this machine has), one of kIsas, or one that is
// a class of its own, which "auto" leaves alone.
inline std::vector<std::string> IsaChoices() {
  std::vector<std::string> choices = {"auto"};
  choices.insert(choices.end(), std::begin(kIsas), std::end(kIsas));
#if !defined(__aarch64__)
  choices.emplace_back("amx");
#endif
  return choices;
}

struct BackendOptions {
  // "cpu"; "cuda", the process's first GPU (CUDA_VISIBLE_DEVICES says which that is), where this
  // was built with CUDA; for tests "reference", plain scalar code, the specification, "fenced", the
  // cpu as a device whose memory is elsewhere, and "fenced_pool", where that is so of its pool,
  // too.
  std::string device = "cpu";
  // Not of the reference: of IsaChoices; of a GPU "tensor" (which "auto" is), products of bf16 on
  // the tensor cores, or "fma", those of the cpu's class.
  std::string isa = "auto";
  int num_threads = 1;  // Not of the reference: 1 to 1,024, the calling thread included.
  // With one, all threads are others than the calling one, and so many levels (nice(2)) above it.
  int niceness = 0;
};

// InvalidArgument for an unknown name or a thread count out of range; FailedPrecondition if this
// machine lacks the instruction set.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CREATE_BACKEND_H_
