// Named guards: every fence, lease, checksum and ordinal check that keeps one request's KV away
// from another is written as
//
//   if (!TANDEM_GUARD("reservation_generation", frame.generation == entry.generation)) return
//   Drop();
//
// The value is the condition, unless a test has switched the guard off by name: then it is true.
// Tests switch off one guard at a time and demand that an invariant catches the damage, which
// proves that the guard is needed and that the tests can see what it prevents.
//
// Guards register themselves before main(), so ListGuards() is complete. Any thread may evaluate
// a guard; SetGuardEnabled is for tests.

#ifndef TANDEM_RUNTIME_BASE_GUARD_H_
#define TANDEM_RUNTIME_BASE_GUARD_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

class Guard {
 public:
  explicit Guard(const char* name);  // `name` lives for ever. Registers.
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  bool Passes(bool condition) {
    if (__builtin_expect(condition, 1)) return true;
    rejections_.fetch_add(1, std::memory_order_relaxed);
    return !enabled_.load(std::memory_order_relaxed);
  }

  std::string_view name() const { return name_; }
  uint64_t rejections() const { return rejections_.load(std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void set_enabled(bool enabled) { enabled_.store(enabled, std::memory_order_relaxed); }

 private:
  const char* const name_;
  std::atomic<bool> enabled_{true};
  std::atomic<uint64_t> rejections_{0};
};

// All guards of the process, sorted by name.
std::vector<Guard*> ListGuards();
// Null if no guard has that name.
Guard* FindGuard(std::string_view name);

namespace internal {

template <size_t N>
struct GuardName {
  constexpr GuardName(const char (&text)[N]) { std::copy_n(text, N, value); }
  char value[N];
};

template <GuardName kName>
struct GuardSite {
  static inline Guard guard{kName.value};
};

}  // namespace internal
}  // namespace tandem

#define TANDEM_GUARD(name, condition) \
  (::tandem::internal::GuardSite<name>::guard.Passes(static_cast<bool>(condition)))

#endif  // TANDEM_RUNTIME_BASE_GUARD_H_
