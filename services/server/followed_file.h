// A small file whose content a process follows while it runs, so that an operator, or Kubernetes
// with a ConfigMap or a Secret, changes it without a restart.

#ifndef TANDEM_SERVICES_SERVER_FOLLOWED_FILE_H_
#define TANDEM_SERVICES_SERVER_FOLLOWED_FILE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"

namespace tandem {

inline constexpr std::chrono::milliseconds kFollowPeriod{2'000};
inline constexpr size_t kMaxFollowedBytes = size_t{1} << 20;

class FollowedFile {
 public:
  using OnChange = std::function<void(const absl::StatusOr<std::string>& text)>;

  FollowedFile(std::string path, OnChange on_change)
      : path_(std::move(path)), on_change_(std::move(on_change)) {}
  ~FollowedFile();

  // Reads it, and tells what is in there, or why it cannot be read, unless that is what the last
  // look saw.
  void Look();
  // Looks in every `period` from now on, on a thread of its own. Once.
  void Follow(std::chrono::milliseconds period = kFollowPeriod);

  const std::string& path() const { return path_; }

 private:
  void Run(std::chrono::milliseconds period) EXCLUDES(mu_);

  const std::string path_;
  const OnChange on_change_;
  std::optional<absl::StatusOr<std::string>> seen_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FOLLOWED_FILE_H_
