// The keys of clients, of which a process knows hashes alone.
//
// A file has a line "NAME HASH" for each: whose key it is, and the key's SHA-256 in hex (`tandem
// key NAME` draws a key and prints its line, which may be in the file with the "line:" before it).
// Lines may be added and removed while the process runs. A file that cannot be understood changes
// nothing, which the log says.

#ifndef TANDEM_SERVICES_SERVER_API_KEYS_H_
#define TANDEM_SERVICES_SERVER_API_KEYS_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "services/server/followed_files.h"

namespace tandem {

inline constexpr char kApiKeyVariable[] = "TANDEM_API_KEY";  // A client's key.

class ApiKeys {
 public:
  // Follows `path` from now on. InvalidArgument, with the line, if it is not what it should be now.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Open(
      const std::string& path, std::chrono::milliseconds period = kFollowPeriod);

  // Unauthenticated unless `authorization` is "Bearer KEY" with one of the keys. As slow for every
  // key, known or not. Any thread.
  absl::Status Check(std::string_view authorization) const EXCLUDES(mu_);

  // For tests: at once.
  void Look() { file_.Look(); }

 private:
  explicit ApiKeys(const std::string& path);
  void Take(const absl::StatusOr<FollowedFiles::Texts>& texts) EXCLUDES(mu_);

  const std::string path_;
  mutable Mutex mu_;
  std::vector<std::string> hashes_ GUARDED_BY(mu_);  // In hex.
  absl::Status first_;  // What the first look at the file came to; Open returns it.
  FollowedFiles file_;
};

// A fresh key, and the line of it for a file.
std::string MakeApiKey();
std::string ApiKeyLine(std::string_view name, std::string_view key);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_API_KEYS_H_
