#include "runtime/base/fleet_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/entropy.h"
#include "runtime/base/sha256.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kMinSecretBytes = 32;
constexpr size_t kMaxSecrets = 2;
constexpr size_t kMaxFileBytes = 4096;

// Each with its length before it, so that no two lists of words read the same.
std::string Joined(FleetSecret::Words words) {
  std::string out;
  for (const std::string_view word : words) {
    const auto size = static_cast<uint32_t>(word.size());
    out.append(reinterpret_cast<const char*>(&size), sizeof(size));
    out.append(word);
  }
  return out;
}

// Orchestrators hand secrets out as links, and readable by a group: both are somebody's decision.
absl::Status CheckSecretFile(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return absl::OkStatus();  // Reading says why.
  constexpr mode_t kTooMuch = S_IWGRP | S_IRWXO;
  if ((info.st_mode & kTooMuch) != 0 || (info.st_uid != ::geteuid() && info.st_uid != 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: mode %04o of user %d; a secret is this user's (%d) or root's, and others neither read "
        "nor write it: chmod 600",
        path, info.st_mode & 07777, info.st_uid, ::geteuid()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FleetSecret> FleetSecret::Parse(std::string_view text) {
  FleetSecret secret;
  secret.configured_ = true;
  secret.keys_ = absl::StrSplit(absl::string_view(text.data(), text.size()),
                                absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  if (secret.keys_.empty() || secret.keys_.size() > kMaxSecrets) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d fleet secrets, want one, or two while one replaces the other", secret.keys_.size()));
  }
  for (const std::string& key : secret.keys_) {
    if (key.size() < kMinSecretBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a fleet secret of %d characters, want %d or more: openssl rand -hex 32",
                          key.size(), kMinSecretBytes));
    }
  }
  return secret;
}

absl::StatusOr<FleetSecret> FleetSecret::Read(const std::string& file) {
  if (!file.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckSecretFile(file));
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(file, kMaxFileBytes));
    return Parse(text);
  }
  const char* const text = std::getenv(kFleetSecretVariable);
  if (text == nullptr) return FleetSecret();
  return Parse(text);
}

std::string FleetSecret::Make() {
  const std::string bytes = RandomBytes(kMinSecretBytes);
  return HexOf(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string FleetSecret::Prove(Words words, size_t key) const {
  const Sha256Digest digest = HmacSha256(keys_[key], Joined(words));
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

std::optional<size_t> FleetSecret::Check(Words words, std::string_view proof) const {
  for (size_t key = 0; key < keys_.size(); ++key) {
    if (EqualInConstantTime(Prove(words, key), proof)) return key;
  }
  return std::nullopt;
}

}  // namespace tandem
