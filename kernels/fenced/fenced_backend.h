// A device without a device, for tests: what is forgotten with memory that is elsewhere fails on
// it, on any machine. It computes with another backend, whose bits, tiles and packed weights it
// has, but
//
//   - a bit of its addresses is flipped: whoever follows one on the host, or hands the host's own
//     to an operation, faults;
//   - operations and copies run later, on a thread of its own, in the order of the calls, and only
//     once somebody has recorded an event after them or waits: a result that is read too early is
//     not there yet, an argument that is changed too early is seen changed;
//   - all memory is NaNs until something is written to it, and again once it is given back, blocks
//     that are discarded too; so is, until it arrives, what a download will write.

#ifndef TANDEM_KERNELS_FENCED_FENCED_BACKEND_H_
#define TANDEM_KERNELS_FENCED_FENCED_BACKEND_H_

#include <cstdint>
#include <memory>

#include "kernels/api/backend.h"

namespace tandem {

// No address of a process has it set, nor any that a machine would accept.
inline constexpr uintptr_t kFenceBit = uintptr_t{1} << 62;

// The other side's address of the same memory; null stays null.
template <typename T>
DevicePtr<T> AcrossFence(DevicePtr<T> pointer) {
  return pointer == nullptr ? pointer : DevicePtr<T>::At(pointer.address() ^ kFenceBit);
}

// `pool_kind`: its pool lies in memory of a transport, or in its own.
std::unique_ptr<Backend> CreateFencedBackend(std::unique_ptr<Backend> inner, MemoryKind pool_kind);

// When a fenced backend is asked to allocate or enqueue from now on, it refuses the `call`-th, 1
// being the next, with Internal: once. Anything after it, it does.
void FailCall(Backend* fenced, int64_t call);

}  // namespace tandem

#endif  // TANDEM_KERNELS_FENCED_FENCED_BACKEND_H_
