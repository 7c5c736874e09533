#include "services/server/tls_metrics.h"

#include <functional>
#include <utility>

namespace tandem {
namespace {

void ShowLifetime(const std::string& use, std::function<TlsLifetime()> lifetime,
                  MetricsRegistry* registry) {
  prometheus::Gauge& expiry = registry->Gauge("tandem_certificate_expiry_timestamp_seconds",
                                              "When the certificate that is shown to clients, or "
                                              "to the fleet, expires, or what is believed "
                                              "of them (clients_authorities, fleet_authorities): "
                                              "Unix time, of the first of its chain, or of "
                                              "its file.",
                                              {{"use", use}});
  prometheus::Gauge& start = registry->Gauge(
      "tandem_certificate_start_timestamp_seconds",
      "When what tandem_certificate_expiry_timestamp_seconds tells of began to be valid.",
      {{"use", use}});
  registry->AddRefresh([&expiry, &start, lifetime = std::move(lifetime)] {
    const TlsLifetime now = lifetime();
    start.Set(static_cast<double>(now.starts_s));
    expiry.Set(static_cast<double>(now.ends_s));
  });
}

}  // namespace

void ShowInMetrics(const std::string& use, TlsIdentity* identity, MetricsRegistry* registry) {
  ShowLifetime(
      use, [identity] { return identity->lifetime(); }, registry);
  if (identity->has_authorities()) {
    ShowLifetime(
        use + "_authorities", [identity] { return identity->authorities_lifetime(); }, registry);
  }
  prometheus::Gauge& refused =
      registry->Gauge("tandem_certificate_refused",
                      "1 while the files of a certificate hold what is not taken; the log says why "
                      "it stays as it is.",
                      {{"use", use}});
  registry->AddRefresh([&refused, identity] { refused.Set(identity->refused() ? 1 : 0); });
  const auto count = [&](const char* result) -> prometheus::Counter& {
    return registry->Counter("tandem_tls_handshakes_total",
                             "Connections that came for TLS. Why a certificate was refused is a "
                             "warning, why else one failed a debug line.",
                             {{"use", use}, {"result", result}});
  };
  prometheus::Counter& ok = count("ok");
  prometheus::Counter& failed = count("failed");
  identity->SetOnHandshake(
      [&ok, &failed](bool succeeded) { (succeeded ? ok : failed).Increment(); });
}

}  // namespace tandem
