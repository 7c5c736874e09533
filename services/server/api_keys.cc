#include "services/server/api_keys.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kHashHexBytes = 2 * sizeof(Sha256Digest);
constexpr size_t kKeyBytes = 32;
constexpr char kKeyPrefix[] = "tandem-";  // So that scanners of leaked secrets can tell it.

std::string HashOf(std::string_view key) {
  const Sha256Digest digest = Sha256Of(key);
  return HexOf(digest.data(), digest.size());
}

bool IsHash(const std::string& text) {
  return text.size() == kHashHexBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsKey(const std::string& text) {
  return text.starts_with(kKeyPrefix) && text.size() == sizeof(kKeyPrefix) - 1 + 2 * kKeyBytes;
}

absl::StatusOr<std::vector<std::string>> Parse(const std::string& text) {
  std::vector<std::string> hashes;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    std::vector<std::string> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words[0] == "line:" && words.size() == 3) words.erase(words.begin());  // As it was printed.
    if (std::any_of(words.begin(), words.end(), IsKey)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d: a key itself, whose place is with its client alone; here want its name and "
          "hash: what `tandem key NAME` prints after line:",
          number));
    }
    if (words.size() != 2 || !IsHash(words[1])) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d: want a name and %d digits of hex: what `tandem key NAME` prints after line:",
          number, kHashHexBytes));
    }
    hashes.push_back(words[1]);
  }
  if (hashes.empty()) {
    return absl::InvalidArgumentError("no key is in it, so that nobody could call");
  }
  return hashes;
}

}  // namespace

ApiKeys::ApiKeys(const std::string& path)
    : path_(path), file_({path}, [this](const auto& texts) {
        Take(texts);
        return true;
      }) {}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Open(const std::string& path,
                                                       std::chrono::milliseconds period) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(path));
  keys->file_.Look();
  TANDEM_RETURN_IF_ERROR(keys->first_);
  keys->file_.Follow(period);
  return keys;
}

void ApiKeys::Take(const absl::StatusOr<FollowedFiles::Texts>& texts) {
  absl::StatusOr<std::vector<std::string>> hashes =
      texts.ok() ? Parse(texts->front()) : absl::StatusOr<std::vector<std::string>>(texts.status());
  const MutexLock lock(&mu_);
  const bool first = hashes_.empty();
  if (!hashes.ok()) {
    const std::string why(hashes.status().message());
    if (first) {
      first_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", why));
    } else {
      LogWarning("the keys stay as they are", {{"file", path_}, {"why", why}});
    }
    return;
  }
  hashes_ = *std::move(hashes);
  if (!first) LogInfo("the keys change", {{"file", path_}, {"keys", hashes_.size()}});
}

absl::Status ApiKeys::Check(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  const std::string scheme = absl::AsciiStrToLower(
      absl::string_view(authorization.data(), std::min(authorization.size(), kScheme.size())));
  const bool has_key = scheme == kScheme;
  const std::string hash = HashOf(has_key ? authorization.substr(kScheme.size()) : "");
  bool known = false;
  {
    const MutexLock lock(&mu_);
    for (const std::string& good : hashes_) known |= EqualInConstantTime(hash, good);
  }
  if (known && has_key) return absl::OkStatus();
  return absl::UnauthenticatedError(has_key ? "the API key is not known here"
                                            : "an API key is needed: Authorization: Bearer KEY");
}

std::string MakeApiKey() {
  const std::string bytes = RandomBytes(kKeyBytes);
  return kKeyPrefix + HexOf(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string ApiKeyLine(std::string_view name, std::string_view key) {
  return absl::StrCat(std::string(name), " ", HashOf(key));
}

}  // namespace tandem
