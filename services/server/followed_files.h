// Small files whose contents a process follows while it runs, so that an operator, or Kubernetes
// with a ConfigMap or a Secret, changes them without a restart.

#ifndef TANDEM_SERVICES_SERVER_FOLLOWED_FILES_H_
#define TANDEM_SERVICES_SERVER_FOLLOWED_FILES_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/periodic_thread.h"

namespace tandem {

inline constexpr std::chrono::milliseconds kFollowPeriod{2'000};
inline constexpr size_t kMaxFollowedBytes = size_t{1} << 20;

class FollowedFiles {
 public:
  using Texts = std::vector<std::string>;  // As many as paths, in their order.
  // True: it is told of the next change. False: at the next look again.
  using OnChange = std::function<bool(const absl::StatusOr<Texts>& texts)>;

  FollowedFiles(std::vector<std::string> paths, OnChange on_change)
      : paths_(std::move(paths)), on_change_(std::move(on_change)) {}

  // Reads them, and tells what is in there, or why one cannot be read, unless that is what an
  // earlier look has told for good.
  void Look();
  // Looks in every `period` from now on, on a thread of its own. Once.
  void Follow(std::chrono::milliseconds period = kFollowPeriod);

 private:
  const std::vector<std::string> paths_;
  const OnChange on_change_;
  std::optional<absl::StatusOr<Texts>> settled_;
  std::optional<PeriodicThread> follower_;  // Last: uses the rest.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FOLLOWED_FILES_H_
