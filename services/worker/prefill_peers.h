// The sessions that this worker, which decodes, holds with prefill workers. It dials one at the
// first message to it. Routers name them: past kMaxPrefillPeers the one that was used least lately
// is lost.

#ifndef TANDEM_SERVICES_WORKER_PREFILL_PEERS_H_
#define TANDEM_SERVICES_WORKER_PREFILL_PEERS_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>

#include "runtime/base/fleet_secret.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/kv_transport.h"
#include "services/server/convert.h"
#include "services/server/fleet_tls.h"
#include "services/worker/command_queue.h"

namespace tandem {

inline constexpr size_t kMaxPrefillPeers = 512;

class PrefillPeers {
 public:
  // `self` without a transport address. The pointers outlive this.
  PrefillPeers(PrefillHello self, const FleetSecret* secret, const FleetTls* tls,
               int64_t vocab_size, double liveness_scale, MemoryBudget* budget,
               KvTransport* transport, CommandQueue* commands)
      : self_(std::move(self)),
        secret_(secret),
        tls_(tls),
        vocab_size_(vocab_size),
        liveness_scale_(liveness_scale),
        budget_(budget),
        transport_(transport),
        commands_(commands) {}
  ~PrefillPeers();  // Ends all sessions and waits for them.

  // Engine thread. A peer that cannot be reached or does not fit comes back as one PrefillLost;
  // what is sent to it before Forget is dropped.
  void Send(const PrefillPeer& peer, const DecodeToPrefill& message) EXCLUDES(mu_);
  // Engine thread, at PrefillLost: the next Send dials again.
  void Forget(const WorkerId& worker) EXCLUDES(mu_);

  // Timer thread. Dials nobody.
  void Renew(const WorkerId& worker, const tandem::Renew& renew) EXCLUDES(mu_);

  bool Flushed() const EXCLUDES(mu_);

 private:
  class Session;
  std::shared_ptr<Session> Dial(const PrefillPeer& peer) EXCLUDES(mu_);
  void MakeRoom() EXCLUDES(mu_);
  void SessionEnded() EXCLUDES(mu_);

  const PrefillHello self_;
  const FleetSecret* const secret_;
  const FleetTls* const tls_;  // Null: in the clear.
  const int64_t vocab_size_;
  const double liveness_scale_;
  MemoryBudget* const budget_;
  KvTransport* const transport_;
  CommandQueue* const commands_;
  mutable Mutex mu_;
  CondVar session_ended_;
  int live_sessions_ GUARDED_BY(mu_) = 0;
  std::map<WorkerId, std::shared_ptr<Session>> sessions_ GUARDED_BY(mu_);
  uint64_t num_sent_ = 0;  // Engine thread only.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_PREFILL_PEERS_H_
