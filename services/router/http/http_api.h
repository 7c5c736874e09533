// The routes of the HTTP address: OpenAI's API, probes and metrics. What is not in the table does
// not exist.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_
#define TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_

#include <functional>
#include <memory>
#include <string>

#include "services/http/admin_pages.h"
#include "services/http/browser_guard.h"
#include "services/http/http_server.h"
#include "services/router/call_starter.h"
#include "services/router/text_pool.h"
#include "services/server/api_keys.h"

namespace tandem {

struct HttpApiParts {
  CallStarter* starter = nullptr;
  TextPool* pool = nullptr;
  BrowserGuardOptions guard;
  const ApiKeys* keys = nullptr;  // Callers must have one, but for probes; null: they need none.
  Probe health, ready;
  MetricsSource metrics;  // The fleet's; null: they are nobody's business here.
};

class HttpApi final : public HttpHandler {
 public:
  explicit HttpApi(HttpApiParts parts);  // What it points to outlives it.
  bool RefusesAtHeader(const HttpRequest& header) const override;
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;

 private:
  absl::Status CheckKey(const HttpRequest& request) const;
  void ServeModel(const std::string& name, HttpExchange* exchange);
  std::string ModelCard() const;
  void Generate(HttpRequest request, std::shared_ptr<HttpExchange> exchange, bool chat);

  const HttpApiParts parts_;
  const BrowserGuard guard_;
  const int64_t started_s_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_
