// What a process's metrics say of its certificates.

#ifndef TANDEM_SERVICES_SERVER_TLS_METRICS_H_
#define TANDEM_SERVICES_SERVER_TLS_METRICS_H_

#include <string>

#include "services/server/metrics_registry.h"
#include "services/server/tls_identity.h"

namespace tandem {

// `use`: who sees the certificate, "clients" or "fleet". Both outlive the listeners. Once.
void ShowInMetrics(const std::string& use, TlsIdentity* identity, MetricsRegistry* registry);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_TLS_METRICS_H_
