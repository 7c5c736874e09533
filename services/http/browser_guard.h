// Keeps pages of other sites, which a user's browser shows, away from this server.
//
// A page may send requests to any address that its browser reaches. Under a name that its site has
// made to mean this machine (DNS rebinding) it could read the answers, too: so the Host must be one
// that this server is called by. A form or a simple fetch needs nobody's leave to be sent: so
// bodies must be declared as JSON, which does need it, and requests that a page makes, as their
// Origin says, are refused where they would start work. Other clients send no Origin.

#ifndef TANDEM_SERVICES_HTTP_BROWSER_GUARD_H_
#define TANDEM_SERVICES_HTTP_BROWSER_GUARD_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/http/http_server.h"

namespace tandem {

struct BrowserGuardOptions {
  ListenAddress address;
  // Host names beside localhost and loopback addresses. Beyond loopback, where nobody knows by
  // which names a server is called, the Host is looked at only if some are given.
  std::vector<std::string> allowed_hosts;
  bool takes_names = true;  // There is a flag for them, which whoever is refused is told of.
  // "https://chat.example": pages that may use this server from a browser (CORS).
  std::vector<std::string> cors_origins;
};

struct GuardRefusal {
  int status = 0;
  std::string message;
};

// Immutable; any thread.
class BrowserGuard {
 public:
  explicit BrowserGuard(const BrowserGuardOptions& options);

  // For any request. 400 or 403.
  std::optional<GuardRefusal> CheckHost(const HttpRequest& request) const;
  // For one that has a body and starts work. 403 or 415.
  std::optional<GuardRefusal> CheckPost(const HttpRequest& request) const;

  // The exchange, or one around it that tells the browser of a configured page that the page may
  // read the answer.
  std::shared_ptr<HttpExchange> ForOrigin(const HttpRequest& request,
                                          std::shared_ptr<HttpExchange> exchange) const;
  // What a browser asks before a configured page's request ("preflight"); false if it is no such
  // question, and nothing was answered.
  bool AnswerPreflight(const HttpRequest& request, std::string_view method,
                       HttpExchange* exchange) const;

 private:
  bool IsConfigured(std::string_view origin) const;

  const bool loopback_;
  const bool takes_names_;
  std::vector<std::string> hosts_;  // Lower case, without a port.
  const std::vector<std::string> origins_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_BROWSER_GUARD_H_
