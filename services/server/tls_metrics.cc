#include "services/server/tls_metrics.h"

namespace tandem {

void ShowInMetrics(const std::string& use, TlsIdentity* identity, MetricsRegistry* registry) {
  prometheus::Gauge& expiry = registry->Gauge(
      "tandem_certificate_expiry_timestamp_seconds",
      "When the certificate that is shown to clients, or to the fleet, expires: Unix time, of the "
      "first of its chain.",
      {{"use", use}});
  registry->AddRefresh(
      [&expiry, identity] { expiry.Set(static_cast<double>(identity->expires_s())); });
  const auto count = [&](const char* result) -> prometheus::Counter& {
    return registry->Counter("tandem_tls_handshakes_total",
                             "Connections that came for TLS. Why one failed is a debug line.",
                             {{"use", use}, {"result", result}});
  };
  prometheus::Counter& ok = count("ok");
  prometheus::Counter& failed = count("failed");
  identity->SetOnHandshake(
      [&ok, &failed](bool succeeded) { (succeeded ? ok : failed).Increment(); });
}

}  // namespace tandem
