// The routes of the HTTP address: OpenAI's API, probes and metrics. What is not in the table does
// not exist.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_
#define TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_

#include <functional>
#include <memory>
#include <string>

#include "services/router/generator.h"
#include "services/router/http/browser_guard.h"
#include "services/router/http/http_server.h"
#include "services/router/text_pool.h"

namespace tandem {

struct HttpApiParts {
  Generator* generator = nullptr;
  TextPool* pool = nullptr;
  BrowserGuardOptions guard;
  std::function<bool()> ready;
  // Calls back once, on any thread, with the text exposition of everybody's metrics.
  std::function<void(std::function<void(std::shared_ptr<const std::string>)>)> collect_metrics;
};

class HttpApi final : public HttpHandler {
 public:
  explicit HttpApi(HttpApiParts parts);  // What it points to outlives it.
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;

 private:
  void ServeReady(HttpExchange* exchange);
  void ServeModel(const std::string& name, HttpExchange* exchange);
  std::string ModelCard() const;
  void Generate(HttpRequest request, std::shared_ptr<HttpExchange> exchange, bool chat);

  const HttpApiParts parts_;
  const BrowserGuard guard_;
  const int64_t started_s_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_HTTP_API_H_
