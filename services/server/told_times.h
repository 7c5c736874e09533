// How often something happened that others can bring about as often as they like, for a log that
// tells of the 1st time, the 2nd, the 4th and so on.

#ifndef TANDEM_SERVICES_SERVER_TOLD_TIMES_H_
#define TANDEM_SERVICES_SERVER_TOLD_TIMES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/mutex.h"

namespace tandem {

// Any thread.
class ToldTimes {
 public:
  static constexpr size_t kMaxKeys = 1024;  // What comes beyond them is counted together.

  // How often `key` has happened by now, if the log is to tell of that.
  std::optional<uint64_t> Happened(const std::string& key) EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    const auto known = times_.find(key);
    uint64_t& times = known != times_.end()      ? known->second
                      : times_.size() < kMaxKeys ? times_[key]
                                                 : times_of_others_;
    ++times;
    return std::has_single_bit(times) ? std::optional(times) : std::nullopt;
  }

 private:
  Mutex mu_;
  std::map<std::string, uint64_t> times_ GUARDED_BY(mu_);
  uint64_t times_of_others_ GUARDED_BY(mu_) = 0;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_TOLD_TIMES_H_
