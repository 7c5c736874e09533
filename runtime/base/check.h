// TANDEM_CHECK(condition) << "numbers": stops the process when only our own bug can have made the
// condition false. Stays on in release builds. What peers, clients or machines can cause is a
// Status instead.

#ifndef TANDEM_RUNTIME_BASE_CHECK_H_
#define TANDEM_RUNTIME_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace tandem::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    message_ << file << ":" << line << ": check failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", message_.str().c_str());
    std::fflush(stderr);
    std::abort();
  }
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace tandem::internal

#define TANDEM_CHECK(condition)                     \
  __builtin_expect(static_cast<bool>(condition), 1) \
      ? static_cast<void>(0)                        \
      : ::tandem::internal::Voidify() &             \
            ::tandem::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // TANDEM_RUNTIME_BASE_CHECK_H_
