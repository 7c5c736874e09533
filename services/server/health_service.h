// grpc.health.v1, whose calls begin at their headers.

#ifndef TANDEM_SERVICES_SERVER_HEALTH_SERVICE_H_
#define TANDEM_SERVICES_SERVER_HEALTH_SERVICE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "runtime/base/mutex.h"
#include "runtime/base/periodic_thread.h"
#include "services/server/early_reactor.h"

namespace tandem {

class HealthService final : public EarlyService {
 public:
  using Ready = std::function<bool()>;  // Any thread.

  // Borrows `calls`. `services` by name, "" for the server as a whole, say whether they serve.
  HealthService(std::map<std::string, Ready> services, OpenCalls* calls);
  ~HealthService() override;

  // Ends every Watch; later ones end at once.
  void Stop() EXCLUDES(mu_);

 private:
  class Watcher;

  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  const Ready* Find(const std::string& service) const;  // Null: no service of ours.
  static Status StatusNow(const Ready* ready);
  Watcher* BeginWatch(grpc::CallbackServerContext* context) EXCLUDES(mu_);
  void Show() EXCLUDES(mu_);  // The poll's thread.

  const std::map<std::string, Ready> services_;
  Mutex mu_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Watcher>> watchers_ GUARDED_BY(mu_);
  PeriodicThread poll_;  // Last: uses the rest.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_HEALTH_SERVICE_H_
