// The device's memory while a launch may not touch it: before its threads have waited for the
// launch before (WaitForLaunchBefore), which a GPU may still be running. Then it is closed, by the
// pages' protection: nothing may be written, and read only what the host has uploaded, as no launch
// writes weights, tables and sequences. Whatever else is touched is noted, and the memory opened.
//
// A page that the host has uploaded a part of counts as uploaded.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_EARLY_MEMORY_H_
#define TANDEM_KERNELS_CUDA_EMULATED_EARLY_MEMORY_H_

#include <cstddef>

namespace tandem::emulated {

// ---- for the runtime; any thread ----

// Whole pages.
void AddDeviceMemory(void* base, size_t size_bytes);
void RemoveDeviceMemory(void* base);
void NoteUpload(const void* to, size_t size_bytes);

// ---- for blocks ----

// Closes the memory for this thread, which goes on with kernels until it opens it again. Another
// thread that touches it meanwhile, or closes it, waits until then.
void CloseDeviceMemory();
void OpenDeviceMemory();
// Whether this thread has touched what it had closed, since the last call.
bool TouchedClosedMemory();
// Whether what is read there would be closed.
bool WouldBeClosed(const void* from, size_t size_bytes);

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_EARLY_MEMORY_H_
