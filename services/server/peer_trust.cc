#include "services/server/peer_trust.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/ip_address.h"

namespace tandem {
namespace {

constexpr size_t kMaxNameBytes = 253;
constexpr size_t kMaxLabelBytes = 63;
constexpr unsigned kExactly = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS |
                              X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS;

void AskFor(const std::string& name, X509_VERIFY_PARAM* asked) {
  X509_VERIFY_PARAM_set_hostflags(asked, kExactly);
  if (IsIpAddress(name)) {
    X509_VERIFY_PARAM_set1_ip_asc(asked, name.c_str());
  } else if (!name.empty()) {
    X509_VERIFY_PARAM_set1_host(asked, name.data(), name.size());
  }
}

}  // namespace

absl::Status CheckPeerName(const std::string& name) {
  if (IsIpAddress(name)) return absl::OkStatus();
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DNS name has 1 to ", kMaxNameBytes, " characters, this has ", name.size()));
  }
  for (const absl::string_view label : absl::StrSplit(name, '.')) {
    const bool plain = std::all_of(label.begin(), label.end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_';
    });
    if (plain && !label.empty() && label.size() <= kMaxLabelBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name, "\" is neither an IP address nor a DNS name: between dots there are 1 to ",
        kMaxLabelBytes, " letters, digits, '-' and '_', no wildcards"));
  }
  return absl::OkStatus();
}

void AskForName(const std::string& name, SSL_CTX* context) {
  AskFor(name, SSL_CTX_get0_param(context));
}

absl::Status JudgeChain(const Certificates& chain, SSL_CTX* believer, ShownAs shown_as,
                        const std::string& name, int64_t at_s) {
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> others(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others.get(), chain[i].get());
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> verifying(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509* const first = chain.front().get();
  X509_STORE_CTX_init(verifying.get(), SSL_CTX_get_cert_store(believer), first, others.get());
  X509_STORE_CTX_set_default(verifying.get(),
                             shown_as == ShownAs::kClient ? "ssl_client" : "ssl_server");
  X509_VERIFY_PARAM* const asked = X509_STORE_CTX_get0_param(verifying.get());
  X509_VERIFY_PARAM_set_auth_level(asked, SSL_CTX_get_security_level(believer));
  X509_VERIFY_PARAM_set_time(asked, at_s);
  AskFor(name, asked);
  const bool believed = X509_verify_cert(verifying.get()) == 1;
  ERR_clear_error();
  if (believed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(first), ", as a ",
                                                 shown_as == ShownAs::kClient ? "client" : "server",
                                                 "'s: ", WhyNotVerified(verifying.get())));
}

std::string WhyNotVerified(const X509_STORE_CTX* verified) {
  const std::string why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(verified));
  const X509* const at = X509_STORE_CTX_get_current_cert(verified);
  if (at == nullptr || X509_STORE_CTX_get_error_depth(verified) == 0) return why;
  return absl::StrCat(why, " (", Describe(at), ")");
}

}  // namespace tandem
