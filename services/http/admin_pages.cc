#include "services/http/admin_pages.h"

#include <optional>
#include <utility>

#include "services/http/http_error.h"

namespace tandem {
namespace {

constexpr std::string_view kJson = "application/json";

void SendError(int status, std::string_view message, HttpExchange* exchange,
               HttpExchange::Headers headers = {}) {
  exchange->Send(status, kJson, ErrorJson(status, message), std::move(headers));
}

}  // namespace

void SendProbe(const ProbeAnswer& answer, HttpExchange* exchange) {
  exchange->Send(answer.ok ? 200 : 503, kJson, answer.json);
}

void SendVersion(HttpExchange* exchange) {
  exchange->Send(200, kJson, "{\"version\":\"" TANDEM_VERSION "\"}");
}

void SendMetrics(const MetricsSource& source, const std::shared_ptr<HttpExchange>& exchange) {
  // Copied on the strand, where the copy is charged at once.
  source([exchange](const std::shared_ptr<const std::string>& page) {
    exchange->Post([exchange, page] {
      exchange->Send(200, "text/plain; version=0.0.4; charset=utf-8", *page);
    });
  });
}

AdminPages::AdminPages(AdminPagesParts parts)
    : parts_(std::move(parts)),
      guard_({.address = parts_.address,
              .allowed_hosts = {},
              .takes_names = false,
              .cors_origins = {}}) {}

void AdminPages::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (const std::optional<GuardRefusal> refusal = guard_.CheckHost(request)) {
    return SendError(refusal->status, refusal->message, exchange.get());
  }
  const bool fleet = request.path == "/metrics/fleet" && parts_.fleet_metrics != nullptr;
  const bool known = request.path == "/health" || request.path == "/ready" ||
                     request.path == "/metrics" || request.path == "/version" || fleet;
  if (!known) return SendError(404, NoSuchRoute(request.path), exchange.get());
  if (request.method != "GET" && request.method != "HEAD") {
    return SendError(405, request.path + " takes GET", exchange.get(), {{"Allow", "GET, HEAD"}});
  }
  if (request.path == "/health") return SendProbe(parts_.health(), exchange.get());
  if (request.path == "/ready") return SendProbe(parts_.ready(), exchange.get());
  if (request.path == "/version") return SendVersion(exchange.get());
  SendMetrics(fleet ? parts_.fleet_metrics : parts_.metrics, exchange);
}

}  // namespace tandem
