// Generate and GenerateStream: one reactor a call, which hands text work to the pool and writes
// what the call puts out, one message under way.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
#define TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_

#include <atomic>

#include "services/router/call_starter.h"
#include "services/router/text_pool.h"
#include "services/server/early_reactor.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {

class InferenceService final : public EarlyService {
 public:
  // Borrows all.
  InferenceService(CallStarter* starter, TextPool* pool, OpenCalls* calls, Admission admission);

  // Calls that have sent their request.
  int num_calls() const { return num_calls_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> num_calls_{0};
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
