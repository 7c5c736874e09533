// What an operator's machines ask of a process, at an address of its own: /health (is it to be
// restarted), /ready (may it be sent work), /metrics, /version.

#ifndef TANDEM_SERVICES_HTTP_ADMIN_PAGES_H_
#define TANDEM_SERVICES_HTTP_ADMIN_PAGES_H_

#include <functional>
#include <memory>
#include <string>

#include "services/http/browser_guard.h"
#include "services/http/http_server.h"

namespace tandem {

struct ProbeAnswer {
  bool ok = false;
  std::string json;
};
using Probe = std::function<ProbeAnswer()>;  // Any thread.
// Calls back once, on any thread, with metrics in Prometheus' text format.
using MetricsSource = std::function<void(std::function<void(std::shared_ptr<const std::string>)>)>;

void SendProbe(const ProbeAnswer& answer, HttpExchange* exchange);  // 200 or 503.
void SendVersion(HttpExchange* exchange);
void SendMetrics(const MetricsSource& source, const std::shared_ptr<HttpExchange>& exchange);

struct AdminPagesParts {
  ListenAddress address;  // Where they are served.
  Probe health, ready;
  MetricsSource metrics;        // This process's.
  MetricsSource fleet_metrics;  // At /metrics/fleet; may be null.
};

class AdminPages final : public HttpHandler {
 public:
  explicit AdminPages(AdminPagesParts parts);  // What it points to outlives it.
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;

 private:
  const AdminPagesParts parts_;
  const BrowserGuard guard_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_ADMIN_PAGES_H_
