// The sessions that decode workers hold with this worker, which prefills for them.

#ifndef TANDEM_SERVICES_WORKER_DECODE_SESSIONS_H_
#define TANDEM_SERVICES_WORKER_DECODE_SESSIONS_H_

#include <grpcpp/grpcpp.h>

#include "runtime/base/memory_budget.h"
#include "runtime/transport/kv_transport.h"
#include "services/server/convert.h"
#include "services/worker/command_queue.h"
#include "services/worker/stream_reactor.h"

namespace tandem {

// FailedPrecondition or Unavailable, with both values, if `theirs` cannot work with `ours`.
absl::Status CheckHello(const PrefillHello& theirs, const PrefillHello& ours);

class DecodeSessions {
 public:
  // `self` without a transport address. The pointers outlive this.
  DecodeSessions(PrefillHello self, OpenCalls* calls, MemoryBudget* prompts, KvTransport* transport,
                 CommandQueue* commands)
      : self_(std::move(self)),
        calls_(calls),
        prompts_(prompts),
        transport_(transport),
        commands_(commands) {}

  // The reactor of a new RPC.
  ServerReactor<proto::ToDecode>* Open(grpc::CallbackServerContext* context);

  // Any thread. A session that is gone drops the message; its frame completes, not ok.
  void Send(SessionId session, const PrefillToDecode& message);
  void SendFrame(SessionId session, const FrameHeader& header, int32_t block, uint64_t send_id);
  // Nothing to do for a session that is gone: all its frames complete anyway.
  void WithdrawFrame(SessionId session, uint64_t send_id);

  bool Flushed() const;  // Nothing waits to be written.
  void CloseAll(const absl::Status& why);

 private:
  class Session;

  const PrefillHello self_;
  OpenCalls* const calls_;
  MemoryBudget* const prompts_;
  KvTransport* const transport_;
  CommandQueue* const commands_;
  StreamRegistry<Session> sessions_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_DECODE_SESSIONS_H_
