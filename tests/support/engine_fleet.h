// Engines connected back to back: what one sends is queued and reaches the other one event at a
// time, so that a test can interfere at every point. Block contents move as a transport would move
// them, late: a source block reused too early, or a write into a block given to someone else,
// changes tokens.

#ifndef TANDEM_TESTS_SUPPORT_ENGINE_FLEET_H_
#define TANDEM_TESTS_SUPPORT_ENGINE_FLEET_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/simulation/late_executor.h"
#include "runtime/simulation/simulated_executor.h"
#include "runtime/worker/worker_core.h"

namespace tandem {

// What a router has heard of one attempt.
struct AttemptRecord {
  std::map<int32_t, std::vector<SampledToken>> tokens;  // By choice.
  std::map<int32_t, FinishReason> finish;
  std::map<int32_t, int32_t> next_position;
  std::vector<PromptEvent> prompts;
  std::vector<absl::Status> refused;
  std::vector<absl::Status> ended;
  bool by_prefill = false;     // As the last refusal or end said.
  int64_t retry_after_us = 0;  // As the last refusal said.
  std::vector<AbortOutcome> aborts;
  bool token_after_end = false;  // A choice went on after its terminal event.
  bool position_gap = false;
};

// What a worker computes with, and the blocks that frames are read from and written to.
class FleetExecutor {
 public:
  virtual ~FleetExecutor() = default;
  virtual SynchronousExecutor& executor() = 0;
  // The same, overlapping steps; null if it cannot.
  virtual Executor* overlapping() { return nullptr; }
  virtual int64_t block_bytes() const = 0;
  virtual std::span<uint8_t> BlockBytes(BlockId block) = 0;
};

class EngineFleet {
 public:
  static constexpr SessionId kRouter = 1;

  struct WorkerOptions {
    EngineOptions engine;  // self, block_bytes: filled in.
    int32_t failing_token = -1;
    int32_t max_drawn = 1;
    std::unique_ptr<FleetExecutor> executor;  // Null: a SimulatedExecutor.
    bool overlap_steps = false;               // Where `executor` cannot, by a LateExecutor.
    TokenMasker* masker = nullptr;            // Outlives the fleet.
  };

  EngineFleet();
  ~EngineFleet();
  // Workers are numbered from 0. Names are "w0", "w1", ...; w<i> is dialled at address "w<i>".
  int AddWorker(WorkerOptions options);
  int num_workers() const { return static_cast<int>(workers_.size()); }

  Engine& engine(int worker);
  SimulatedExecutor& executor(int worker);  // Only a worker that has a simulated one.
  PrefillPeer peer(int worker) const;
  int64_t now_us() const { return now_us_; }
  void Advance(int64_t duration_us) { now_us_ += duration_us; }

  void Submit(int worker, const struct Submit& submit, SessionId router = kRouter,
              CommandCharge charge = nullptr);
  void Cancel(int worker, AttemptId attempt, int64_t time_left_us = 60'000'000,
              SessionId router = kRouter);

  // Delivers the oldest message, or steps the next worker that has something to do. False: quiet.
  bool RunOne();
  // The halves of a step of one worker.
  Engine::StepResult BeginStep(int worker);
  Engine::StepResult FinishStep(int worker);
  // Until quiet; at most `limit` events. True if it became quiet.
  bool RunUntilQuiet(int limit = 200'000);
  // Until `done` or quiet.
  void RunUntil(const std::function<bool()>& done);
  // A paused worker receives but does not step; its messages wait.
  void Pause(int worker, bool paused);
  // Everything sent is delivered before the next step: a network that is never the slowest.
  void SetFastNetwork(bool fast) { fast_network_ = fast; }
  // Renews as the timer threads would, of engines that made progress so long ago.
  void Renew(int64_t since_progress_us = 0);

  // Messages and frames from now on for which `lost` is true vanish (frames as failed sends).
  void DropMessages(std::function<bool(const std::string& kind)> lost) { lost_ = std::move(lost); }
  // Frames from now on for which `lost` is true vanish, and their sender hears that they went.
  void LoseFrames(std::function<bool()> lost) { lost_frame_ = std::move(lost); }
  // Frames from now on are neither sent nor given up: a transport that does not come back.
  void HoldFrames() { hold_frames_ = true; }
  // Frames from now on wait for a link that is busy: they can still be withdrawn.
  void QueueFrames() { hold_frames_ = queue_frames_ = true; }
  // What was held goes out.
  void ReleaseFrames();
  int64_t frames_held() const { return static_cast<int64_t>(held_frames_.size()); }
  // The workers that computed prompts, when each came and was begun, in order.
  struct PromptComputed {
    int worker;
    int64_t arrived_us, begun_us;
    bool operator==(const PromptComputed&) const = default;
  };
  const std::vector<PromptComputed>& prompts_computed() const { return prompts_computed_; }
  // Why decode workers have paused prefill workers, in order.
  const std::vector<PauseReason>& pauses() const { return pauses_; }
  // What was said of the last one.
  const std::string& last_pause() const { return last_pause_; }
  // What decode workers have cancelled at prefill workers, in order.
  const std::vector<JobId>& prefill_cancels() const { return prefill_cancels_; }
  // The next `count` frames arrive with a flipped bit.
  void CorruptFrames(int count) { frames_to_corrupt_ = count; }
  // Tells both sides that their session is lost; undelivered messages vanish, frames fail.
  void BreakSession(int decode, int prefill,
                    const absl::Status& why = absl::UnavailableError("the session broke"));
  // From now on its peers take it for another process, which they have no session with.
  void Rename(int worker);
  // What was recorded so far.
  void ForgetRecords();

  const AttemptRecord& record(AttemptId attempt, SessionId router = kRouter) {
    return records_[{router, attempt}];
  }
  int64_t frames_delivered() const { return frames_delivered_; }
  // The workers that said which chunk they begin, in order.
  const std::vector<std::pair<int, ChunkNotice>>& notices() const { return notices_; }
  int64_t messages(const std::string& kind) const;
  // As the steps of all workers said.
  int64_t preemptions() const { return preemptions_; }
  int64_t failed_steps() const { return failed_steps_; }

  // Empty if `record` is a fault-free run of every choice of `submit` by simulated executors, with
  // the masks of a SimulatedGrammar if a worker has a masker; otherwise what is wrong.
  std::string CheckFinished(const struct Submit& submit, SessionId router = kRouter) const;

  // Engine::Audit of every worker: empty, or what is wrong.
  std::string Audit() const;
  // And nothing is left: no block held, no sequence, no work.
  std::string AuditQuiet() const;

 private:
  struct Worker;
  struct Event {
    int from = 0;
    int to = 0;
    std::function<void()> deliver;
    std::function<void()> fail;  // Instead of deliver, when the session is lost.
    uint64_t send_id = 0;        // A frame's name; 0: no frame.
  };

  void Record(SessionId router, const RouterEvent& event);
  bool Deliver();
  void Tick(int events);
  void Send(const std::string& kind, Event event);
  SessionId SessionOf(int decode) const { return 100 + static_cast<SessionId>(decode); }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::deque<Event> network_;
  size_t next_worker_ = 0;
  bool fast_network_ = false;
  int64_t now_us_ = 3'600'000'000'000;  // No clock begins at zero: a duration is no point in time.
  std::map<std::pair<SessionId, AttemptId>, AttemptRecord> records_;
  std::map<std::string, int64_t> messages_;
  std::vector<std::pair<int, ChunkNotice>> notices_;
  std::function<bool(const std::string&)> lost_;
  std::function<bool()> lost_frame_;
  int32_t max_model_tokens_ = 0;
  int32_t window_ = 0;  // Every worker's model has it; 0: none.
  bool masks_ = false;
  bool hold_frames_ = false;
  bool queue_frames_ = false;
  std::vector<Event> held_frames_;
  std::vector<PromptComputed> prompts_computed_;
  std::vector<PauseReason> pauses_;
  std::string last_pause_;
  std::vector<JobId> prefill_cancels_;
  int frames_to_corrupt_ = 0;
  int64_t frames_delivered_ = 0;
  int64_t preemptions_ = 0;
  int64_t failed_steps_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_ENGINE_FLEET_H_
