// A worker without an engine: speaks the Worker service and makes up tokens, the same for the same
// prompt and seed, wherever a stream is taken up. For tests of routers.

#ifndef TANDEM_TESTS_SUPPORT_FAKE_WORKER_H_
#define TANDEM_TESTS_SUPPORT_FAKE_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/fleet_secret.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

struct FakeWorkerOptions {
  std::string name = "fake-0";
  std::string model = "demo_model";
  WorkerRole role = WorkerRole::kHybrid;
  std::string numerics_id = "fake-numerics";
  int32_t max_model_tokens = 1024;
  int port = 0;
  FleetSecret secret;                 // None: believes everybody, and proves nothing.
  bool proves_watch_only = false;     // Other calls as if it had none.
  bool stalled = false;               // Heartbeats tell of work, and of no progress.
  bool holds_metrics = false;         // Until who asks for them gives up.
  int32_t hold_after_tokens = -1;     // A sequence stops there until ReleaseHeld().
  bool choice_0_begins_last = false;  // Once the last choice has.
  std::vector<BlockHash> cached;      // From the start, in this order.
  // What no worker of ours does.
  bool renames = false;          // Every Watch has another name.
  bool ends_watches = false;     // Once the registration has been said.
  bool registers_last = false;   // A Watch begins with a heartbeat.
  bool registers_again = false;  // With every heartbeat.
  bool reads_no_commands = false;
  bool other_incarnation = false;  // Sessions are of another than the Watch told of.
  bool silent_sessions = false;    // They begin with nothing.
  int64_t metrics_bytes = 0;       // So many of labels once it was given something.
  int num_full_snapshots = 0;      // Instead of `cached`, of kMaxHashesPerEvent.
  int32_t vocab_first = 4, vocab_size = 4096;
  // Instead of the made-up ones, for choice 0; then made-up ones.
  std::vector<int32_t> script;
};

// The token at `position` of prompt + generated.
int32_t FakeToken(const FakeWorkerOptions& options, const std::vector<int32_t>& prompt,
                  uint64_t seed, int32_t choice, int32_t position);

class FakeWorker {
 public:
  explicit FakeWorker(const FakeWorkerOptions& options);
  ~FakeWorker();  // Dies: connections break, nothing is said.

  int port() const;
  std::string address() const;
  void ReleaseHeld();
  void EndStall();  // From now on what `stalled` says of heartbeats is not so.
  // So far.
  int num_watches() const;
  int num_snapshots() const;  // Full ones.
  int num_heartbeats() const;
  int num_sessions() const;
  int num_connections() const;  // Over which it was called.
  int num_submits() const;
  int num_cancels() const;
  int num_scrapes() const;  // How often its metrics were asked for.
  int num_running() const;  // Sequences that have not ended.
  Submit last_submit() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_FAKE_WORKER_H_
