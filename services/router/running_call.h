// One call of a client: some prompts with n choices each, as one stream of outputs. Each prompt is
// a request of its own at the request owner; the choices of prompt p are numbered p * n to p * n +
// n-1.
//
// Until a prompt has its first token it is charged to the client, and gives way to others' memory.
// Outputs wait here until the front end takes them, which costs memory only while it does not: past
// kMaxPendingBytes, or without room in the budget, the call is cancelled and what waited is
// dropped.

#ifndef TANDEM_SERVICES_ROUTER_RUNNING_CALL_H_
#define TANDEM_SERVICES_ROUTER_RUNNING_CALL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/clock.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/request/request_owner.h"
#include "services/router/router_metrics.h"

namespace tandem {

class RouterCore;

// What a prompt is charged for until its first token: each token, kept twice and hashed, each
// choice and each token with a bias; stop strings beside.
inline constexpr int64_t kQueuedTokenBytes = 12;
inline constexpr int64_t kQueuedChoiceBytes = 512;
inline constexpr int64_t kQueuedBiasBytes = sizeof(TokenBias);

// Once per prompt, before its first token.
struct PromptOutput {
  int prompt = 0;
  int32_t cached_tokens = 0;
  std::vector<SampledToken> prompt_logprobs;
  std::string numerics_id;
};

// One token of one choice, and the text that became certain with it.
struct ChoiceOutput {
  int choice = 0;  // Over all prompts.
  SampledToken token;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  // Where finish is kStop: the stop token, or the stop string; neither for an end token.
  bool stopped_by_eos = false;
  int32_t stop_token = -1;
  std::string stop_string;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// The last output: all choices have finished, or the call failed.
struct CallEnd {
  absl::Status status;
  Usage usage;
};

using CallOutput = std::variant<PromptOutput, ChoiceOutput, CallEnd>;

class RunningCall : public std::enable_shared_from_this<RunningCall> {
 public:
  static constexpr int64_t kMaxPendingBytes = int64_t{8} << 20;

  // `on_output` is called whenever Take() has something new after it had nothing: on the router's
  // thread, or on that of Start, Cancel or Abort; it must not block. Not called again after
  // Detach(). The pointers outlive this. `client` is whom the budget is to name for what waits,
  // `label` the client's id, for logs; `arrived_us` is when the call came, by `clock`.
  RunningCall(RouterCore* core, RouterMetrics* metrics, MemoryBudget* budget, const Clock* clock,
              std::string client, std::string label, int64_t arrived_us,
              std::function<void()> on_output);
  ~RunningCall();

  // One request of the call; before any starts, by the thread that makes the call. `asked.sink` is
  // set here. `eos_token_ids` are those of the stop tokens that are the model's own.
  // ResourceExhausted, with the numbers, if there is no room: then it is not started.
  absl::Status AddPrompt(ClientRequest asked, std::vector<int32_t> eos_token_ids) EXCLUDES(mu_);
  // Hands all prompts to the router's thread.
  void Start();

  // ---- Any thread ----

  // The oldest, at most so many.
  std::vector<CallOutput> Take(size_t most = SIZE_MAX) EXCLUDES(mu_);
  // What the front end keeps of the outputs it took for an answer that is not streamed, and what
  // writing it will take; 0 once it is written. Charged beyond 64 KiB: an answer that finds no room
  // ends the call with ResourceExhausted and the numbers, as one does that has to give way to
  // others.
  void KeepAnswer(int64_t bytes) EXCLUDES(mu_);
  // Ends it: requests that still run are cancelled, and CallEnd comes with `why` if none has come.
  void Cancel(const absl::Status& why) EXCLUDES(mu_);
  // The front end is gone: no more on_output; running requests are cancelled.
  void Detach() EXCLUDES(mu_);

  // It was cancelled because too much waited.
  bool overflowed() const EXCLUDES(mu_);
  int num_prompts() const { return static_cast<int>(prompts_.size()); }
  const std::vector<int32_t>& prompt_token_ids(int prompt) const;

 private:
  class PromptSink;

  void Deliver(CallOutput output) EXCLUDES(mu_);
  void OnPromptEnded(const absl::Status& status, const RequestReport& report) EXCLUDES(mu_);
  void OnPromptUnqueued(int64_t bytes) EXCLUDES(mu_);
  void OnCut();
  bool MayWait(const CallOutput& output) REQUIRES(mu_);
  void Forget() REQUIRES(mu_);
  void CancelRequests();  // Once, and not before all of them have started.

  RouterCore* const core_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  const std::string label_;
  const int64_t arrived_us_;
  std::vector<std::shared_ptr<PromptSink>> prompts_;  // Set before Start.

  mutable Mutex mu_;
  MemoryBudget::Holding pending_charge_ GUARDED_BY(mu_);  // For pending_.
  int64_t pending_bytes_ GUARDED_BY(mu_) = 0;
  int64_t charged_bytes_ GUARDED_BY(mu_) = 0;  // In pending_charge_.
  std::function<void()> on_output_ GUARDED_BY(mu_);
  std::deque<CallOutput> pending_ GUARDED_BY(mu_);
  int num_running_ GUARDED_BY(mu_) = 0;
  bool ended_ GUARDED_BY(mu_) = false;  // CallEnd was delivered.
  bool overflowed_ GUARDED_BY(mu_) = false;
  Usage usage_ GUARDED_BY(mu_);
  std::atomic<bool> started_{false}, cut_{false}, cancel_{false}, cancelled_{false};
  int64_t queued_bytes_ GUARDED_BY(mu_) = 0;      // For prompts that have no token yet.
  int64_t answer_bytes_ GUARDED_BY(mu_) = 0;      // As charged.
  MemoryBudget::Holding charge_ GUARDED_BY(mu_);  // For both. Goes first: nothing is cut then.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_RUNNING_CALL_H_
