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

namespace tandem {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  HealthService(std::set<std::string> services, std::function<bool()> ready);
  ~HealthService() override;

  // Ends every Watch; later ones end at once.
  void Stop() EXCLUDES(mu_);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;

  bool Knows(const std::string& service) const {
    return service.empty() || services_.count(service) > 0;
  }
  void Poll() EXCLUDES(mu_);

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
