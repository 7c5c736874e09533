#include "services/server/followed_files.h"

#include "runtime/base/small_file.h"

namespace tandem {

void FollowedFiles::Follow(std::chrono::milliseconds period) {
  follower_.emplace("files", period, [this] { Look(); });
}

void FollowedFiles::Look() {
  absl::StatusOr<Texts> texts{Texts{}};
  for (const std::string& path : paths_) {
    absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFollowedBytes);
    if (!text.ok()) {
      texts = text.status();
      break;
    }
    texts->push_back(*std::move(text));
  }
  if (settled_.has_value() && *settled_ == texts) return;
  settled_.reset();
  if (on_change_(texts)) settled_ = std::move(texts);
}

}  // namespace tandem
