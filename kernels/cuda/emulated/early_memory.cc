#include "kernels/cuda/emulated/early_memory.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem::emulated {
namespace {

constexpr size_t kPageBytes = 4096;

struct Memory {
  std::vector<bool> uploaded;  // [page]

  uintptr_t size_bytes() const { return uploaded.size() * kPageBytes; }
};

struct Device {
  std::mutex closing;  // by whom the memory is closed
  std::mutex mutex;
  std::map<uintptr_t, Memory> memories;  // by their bases; with the lock
  struct sigaction before = {};          // who is asked about all other faults
};

thread_local bool closed = false;   // by this thread
thread_local bool touched = false;  // while it was

void Protect(uintptr_t at, size_t size_bytes, int protection) {
  ::mprotect(reinterpret_cast<void*>(at), size_bytes, protection);
}

Device& TheDevice() {
  static Device* const device = new Device;
  return *device;
}

// The memory that `at` is in, or none.
std::map<uintptr_t, Memory>::iterator Find(Device& device, uintptr_t at) {
  auto it = device.memories.upper_bound(at);
  if (it == device.memories.begin()) return device.memories.end();
  --it;
  return at - it->first < it->second.size_bytes() ? it : device.memories.end();
}

void OpenAll(Device& device) {
  const std::scoped_lock lock(device.mutex);
  for (const auto& [base, memory] : device.memories) {
    Protect(base, memory.size_bytes(), PROT_READ | PROT_WRITE);
  }
}

// What was touched is touched again once it returns. A kernel's access, or a copy's, is all that
// it interrupts: never one of the functions here.
void OnFault(int signal, siginfo_t* info, void* context) {
  Device& device = TheDevice();
  bool is_device;
  {
    const std::scoped_lock lock(device.mutex);
    is_device = Find(device, reinterpret_cast<uintptr_t>(info->si_addr)) != device.memories.end();
  }
  if (is_device && closed) {
    touched = true;
    OpenAll(device);
  } else if (is_device) {
    ::sched_yield();
  } else if ((device.before.sa_flags & SA_SIGINFO) != 0) {
    device.before.sa_sigaction(signal, info, context);
  } else {
    ::sigaction(SIGSEGV, &device.before, nullptr);
  }
}

void HandleFaults() {
  static const bool handled = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGSEGV, &action, &TheDevice().before) == 0;
  }();
  (void)handled;
}

}  // namespace

void AddDeviceMemory(void* base, size_t size_bytes) {
  Device& device = TheDevice();
  const std::scoped_lock lock(device.mutex);
  device.memories[reinterpret_cast<uintptr_t>(base)] = {
      .uploaded = std::vector<bool>(size_bytes / kPageBytes)};
}

void RemoveDeviceMemory(void* base) {
  Device& device = TheDevice();
  const std::scoped_lock lock(device.mutex);
  device.memories.erase(reinterpret_cast<uintptr_t>(base));
}

void NoteUpload(const void* to, size_t size_bytes) {
  Device& device = TheDevice();
  const auto begin = reinterpret_cast<uintptr_t>(to);
  const std::scoped_lock lock(device.mutex);
  const auto it = Find(device, begin);
  if (it == device.memories.end()) return;  // A test's, of the host.
  for (uintptr_t at = begin / kPageBytes; at * kPageBytes < begin + size_bytes; ++at) {
    it->second.uploaded[at - it->first / kPageBytes] = true;
  }
}

void CloseDeviceMemory() {
  HandleFaults();
  Device& device = TheDevice();
  device.closing.lock();
  const std::scoped_lock lock(device.mutex);
  for (const auto& [base, memory] : device.memories) {
    const std::vector<bool>& uploaded = memory.uploaded;
    for (size_t begin = 0, end; begin < uploaded.size(); begin = end) {
      for (end = begin + 1; end < uploaded.size() && uploaded[end] == uploaded[begin];) ++end;
      Protect(base + begin * kPageBytes, (end - begin) * kPageBytes,
              uploaded[begin] ? PROT_READ : PROT_NONE);
    }
  }
  closed = true;
}

void OpenDeviceMemory() {
  Device& device = TheDevice();
  closed = false;
  OpenAll(device);
  device.closing.unlock();
}

bool TouchedClosedMemory() { return std::exchange(touched, false); }

bool WouldBeClosed(const void* from, size_t size_bytes) {
  Device& device = TheDevice();
  const auto begin = reinterpret_cast<uintptr_t>(from);
  const std::scoped_lock lock(device.mutex);
  const auto it = Find(device, begin);
  if (it == device.memories.end()) return false;
  for (uintptr_t at = begin / kPageBytes; at * kPageBytes < begin + size_bytes; ++at) {
    const size_t page = at - it->first / kPageBytes;
    if (page < it->second.uploaded.size() && !it->second.uploaded[page]) return true;
  }
  return false;
}

}  // namespace tandem::emulated
