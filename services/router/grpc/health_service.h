// grpc.health.v1: the server as a whole and each of its services serve when the router is ready.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_HEALTH_SERVICE_H_
#define TANDEM_SERVICES_ROUTER_GRPC_HEALTH_SERVICE_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "runtime/base/mutex.h"
#include "services/server/early_reactor.h"

namespace tandem {

class HealthService final : public EarlyService {
 public:
  // Borrows `calls`.
  HealthService(std::set<std::string> services, std::function<bool()> ready, OpenCalls* calls);
  ~HealthService() override;

  // Ends every Watch; later ones end at once.
  void Stop() EXCLUDES(mu_);

 private:
  class Watcher;

  bool Knows(const std::string& service) const {
    return service.empty() || services_.count(service) > 0;
  }
  grpc::health::v1::HealthCheckResponse::ServingStatus StatusNow() const;
  void Poll() EXCLUDES(mu_);

  OpenCalls* const calls_;
  const std::set<std::string> services_;
  const std::function<bool()> ready_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Watcher>> watchers_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_HEALTH_SERVICE_H_
