// Whether something is kept of each of many that come and go, wherever it is kept.

#ifndef TANDEM_TESTS_SUPPORT_GROWTH_H_
#define TANDEM_TESTS_SUPPORT_GROWTH_H_

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <functional>

// Sanitizers have it, and an allocator of their own; else it is null.
extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace tandem {

inline int64_t BytesInUse() {
  const bool sanitized = __sanitizer_get_current_allocated_bytes != nullptr;
  return static_cast<int64_t>(sanitized ? __sanitizer_get_current_allocated_bytes()
                                        : mallinfo2().uordblks);
}

// How many bytes more are in use after 200 calls of `come_and_go`, which follow on as many as it
// takes to have room everywhere. Numbers count from 1 and are never used twice.
inline int64_t Growth(const std::function<void(uint64_t number)>& come_and_go) {
  uint64_t number = 1;
  const auto bytes_after = [&](uint64_t end) {
    while (number <= end) come_and_go(number++);
    return BytesInUse();
  };
  const int64_t before = bytes_after(100);
  return bytes_after(300) - before;
}

inline constexpr int64_t kNoGrowth = 200 * 16;  // Less than an entry of each would take.

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_GROWTH_H_
