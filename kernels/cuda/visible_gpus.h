// Which GPUs a process sees: those of CUDA_VISIBLE_DEVICES, which CUDA reads when it is first used.
//
// CUDA's programming guide says of it: unset, all GPUs are seen, and empty, none. An entry is an
// index or a UUID, or as much of its beginning as no other GPU shares; GPUs are seen in the order
// of the entries, and behind an index that is invalid, -1 say, none is. It does not say what comes
// of an empty entry or of one that is no number and no UUID, which end the list here as well; that
// spaces beside an entry do not count; nor that a GPU named twice leaves none to be seen, as CUDA
// has it.
//
// CUDA itself is asked wherever that can be. Only who is to see one GPU of several reads the list,
// since afterwards CUDA would not read it again. Whether the entries before are GPUs of this
// machine, or one GPU by two names, is then unknown: "0,9,1" on a machine with two has GPU 1 as
// number 2, where CUDA sees GPU 0 alone.

#ifndef TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_
#define TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// The name of number `number` of those that `visible` lists, or its number where that is null, as
// the variable has it. InvalidArgument, with both, if there are not so many, or one is there twice.
absl::StatusOr<std::string> NameOfGpu(const char* visible, int number);

// Its UUID as NVIDIA's tools write it ("GPU-1234abcd-..."), of the 16 bytes that CUDA gives.
std::string UuidOfGpu(std::string_view bytes);

// The UUIDs of those that the process sees, in their order: the same cards whatever becomes of
// numbers. None if CUDA cannot be used.
std::vector<std::string> VisibleGpus();

// From now on, of those that the process sees, that one alone, on all of its threads; it has not
// used CUDA yet. Errors of NameOfGpu.
absl::Status SeeOneGpu(int number);
// The same for one of the machine's by its UUID, whatever this process was to see.
// FailedPrecondition if it is not there.
absl::Status SeeOneGpu(const std::string& uuid);

// What "auto" does where no GPU can be used, and `why` says so. OK: the CPU computes, as the
// machine has none of NVIDIA's or CUDA_VISIBLE_DEVICES names none. Else `why` with what shows that
// one is there and what to do: nobody asked for a CPU's speed. `root` ends in "/": where the
// machine's files are. A GPU is a display controller on the PCI bus, whether or not its driver is
// loaded, or the driver's file in /dev, which is all that some containers are shown.
absl::Status MayDoWithoutGpu(const absl::Status& why, const std::string& root);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_
