#include "tests/support/engine_fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/simulation/simulated_grammar.h"

namespace tandem {
namespace {

std::string KindOf(const DecodeToPrefill& message) {
  static constexpr const char* kNames[] = {"Submit",    "Grant",  "Resend",
                                           "Committed", "Cancel", "Renew"};
  return kNames[message.index()];
}

std::string KindOf(const PrefillToDecode& message) {
  static constexpr const char* kNames[] = {"Start",      "Refused", "Progress",
                                           "FirstToken", "Done",    "Renew"};
  return kNames[message.index()];
}

// Ends of an event that no lost session can take away.
constexpr int kNobody = -1;

int IndexOf(const std::string& name) { return std::stoi(name.substr(1)); }

class SimulatedFleetExecutor final : public FleetExecutor {
 public:
  explicit SimulatedFleetExecutor(const SimulatedExecutorOptions& options) : executor_(options) {}

  SimulatedExecutor& executor() override { return executor_; }
  int64_t block_bytes() const override { return executor_.block_bytes(); }
  std::span<uint8_t> BlockBytes(BlockId block) override { return executor_.BlockBytes(block); }

 private:
  SimulatedExecutor executor_;
};

}  // namespace

struct EngineFleet::Worker final : RouterLinks, PeerOutbox {
  EngineFleet* fleet = nullptr;
  int index = 0;
  WorkerId id;
  std::unique_ptr<FleetExecutor> executor;
  std::unique_ptr<LateExecutor> late;  // Where steps overlap.
  std::unique_ptr<KvReceiver> receiver;
  LeaseKeeper leases;
  std::unique_ptr<WorkerCore> core;
  bool dirty = true;  // Has had an input since its last step.
  bool paused = false;
  int64_t wakeup_us = 0;

  void Tell(const EngineCommand& command) {
    dirty = true;
    core->Apply(command, fleet->now_us_);
  }

  Engine::StepResult AfterStep(const Engine::StepResult& result) {
    core->Publish();
    fleet->preemptions_ += result.preempted;
    fleet->failed_steps_ += result.failed() ? 1 : 0;
    dirty = result.again;
    wakeup_us = result.next_wakeup_us;
    return result;
  }

  std::vector<SessionId> Routers() const override { return {}; }
  void SendBatch(SessionId, const StepBatch&) override {}
  void WaitUntilSent(std::span<const SessionId>) override {}
  void OnEvent(SessionId router, const RouterEvent& event) override {
    fleet->Record(router, event);
  }
  void OnChunks(std::span<const ChunkNotice> chunks) override {
    for (const ChunkNotice& notice : chunks) fleet->notices_.emplace_back(index, notice);
  }

  void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) override {
    const auto* cancel = std::get_if<PrefillCancel>(&message);
    TANDEM_CHECK(cancel == nullptr || cancel->time_left_us >= 0) << "no wire takes this";
    // The clock began long before any deadline's length.
    TANDEM_CHECK(cancel == nullptr || cancel->time_left_us < fleet->now_us_ / 2)
        << cancel->time_left_us << " us is no duration";
    if (cancel != nullptr) fleet->prefill_cancels_.push_back(cancel->job);
    const int to = IndexOf(prefill.address);
    Worker* const peer = fleet->workers_[static_cast<size_t>(to)].get();
    fleet->Send(KindOf(message), {.from = index, .to = to, .deliver = [this, peer, message] {
                                    peer->Tell(FromDecode{fleet->SessionOf(index), message, {}});
                                  }});
  }

  void ToDecode(SessionId decode, PrefillToDecode message) override {
    const int to = static_cast<int>(decode - fleet->SessionOf(0));
    Worker* const peer = fleet->workers_[static_cast<size_t>(to)].get();
    fleet->Send(KindOf(message), {.from = index, .to = to, .deliver = [this, peer, message] {
                                    peer->Tell(FromPrefill{id, message, {}});
                                  }});
  }

  void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                 uint64_t send_id) override {
    const int to = static_cast<int>(decode - fleet->SessionOf(0));
    const auto sent = [this, send_id](bool ok) { Tell(FrameSent{send_id, ok}); };
    fleet->Send("Frame", {.from = index,
                          .to = to,
                          .deliver =
                              [this, to, header, block, sent] {
                                if (fleet->lost_frame_ && fleet->lost_frame_()) return sent(true);
                                fleet->workers_[static_cast<size_t>(to)]->Begin(this, header, block,
                                                                                sent);
                              },
                          .fail = [sent] { sent(false); },
                          .send_id = send_id});
  }

  void WithdrawFrame(SessionId, uint64_t send_id) override {
    if (!fleet->queue_frames_) return;
    std::vector<Event>& held = fleet->held_frames_;
    const auto frame = std::find_if(held.begin(), held.end(), [&](const Event& event) {
      return event.from == index && event.send_id == send_id;
    });
    if (frame == held.end()) return;
    fleet->network_.push_back({.from = kNobody, .to = kNobody, .deliver = frame->fail});
    held.erase(frame);
  }

  void OnPromptComputed(int64_t arrived_us, int64_t begun_us) override {
    fleet->prompts_computed_.push_back({index, arrived_us, begun_us});
  }
  void OnTransferred(int64_t) override {}
  void OnPeerPaused(const WorkerId&, PauseReason reason, const std::string& detail) override {
    fleet->last_pause_ = detail;
    fleet->pauses_.push_back(reason);
  }

  // The frame's bytes land one event after their place was given out.
  void Begin(Worker* source, const FrameHeader& header, BlockId block,
             std::function<void(bool)> sent) {
    const std::optional<KvReceiver::Place> place = receiver->Begin(header);
    if (!place.has_value()) {
      sent(true);
      return;
    }
    const auto finish = [this, place, header](bool ok) {
      const auto bytes = executor->BlockBytes(place->block);
      Tell(FrameArrived{receiver->Finish(*place, ok, Crc32c(bytes.data(), bytes.size()))});
    };
    fleet->network_.push_back({.from = source->index,
                               .to = index,
                               .deliver =
                                   [this, source, place, block, sent, finish] {
                                     Land(source, block, place->block);
                                     finish(true);
                                     sent(true);
                                   },
                               .fail =
                                   [sent, finish] {
                                     finish(false);
                                     sent(false);
                                   }});
  }

  void Land(Worker* source, BlockId from, BlockId to) {
    const auto bytes = source->executor->BlockBytes(from);
    const auto target = executor->BlockBytes(to);
    std::copy(bytes.begin(), bytes.end(), target.begin());
    if (fleet->frames_to_corrupt_ > 0) {
      --fleet->frames_to_corrupt_;
      target[3] ^= 0x10;
    }
    ++fleet->frames_delivered_;
  }
};

EngineFleet::EngineFleet() = default;
EngineFleet::~EngineFleet() = default;

int EngineFleet::AddWorker(WorkerOptions options) {
  auto worker = std::make_unique<Worker>();
  worker->fleet = this;
  worker->index = static_cast<int>(workers_.size());
  worker->id = {.name = absl::StrFormat("w%d", worker->index), .incarnation = 77 + workers_.size()};
  worker->executor = std::move(options.executor);
  if (worker->executor == nullptr) {
    worker->executor = std::make_unique<SimulatedFleetExecutor>(
        SimulatedExecutorOptions{.block_tokens = options.engine.kv.block_tokens,
                                 .num_blocks = options.engine.kv.num_blocks,
                                 .window = static_cast<int32_t>(options.engine.window),
                                 .failing_token = options.failing_token,
                                 .max_drawn = options.max_drawn});
  }
  worker->receiver = std::make_unique<KvReceiver>(worker->executor->block_bytes());
  options.engine.self = worker->id;
  max_model_tokens_ = std::max(max_model_tokens_, options.engine.max_model_tokens);
  window_ = static_cast<int32_t>(options.engine.window);
  options.engine.kv.block_bytes = worker->executor->block_bytes();
  Executor* executor = &worker->executor->executor();
  if (options.overlap_steps && worker->executor->overlapping() != nullptr) {
    executor = worker->executor->overlapping();
  } else if (options.overlap_steps) {
    worker->late = std::make_unique<LateExecutor>(&worker->executor->executor());
    executor = worker->late.get();
  }
  auto core = WorkerCore::Create(options.engine, executor, worker.get(), worker.get(),
                                 worker->receiver.get(), &worker->leases, options.masker);
  masks_ |= options.masker != nullptr;
  TANDEM_CHECK(core.ok()) << core.status().ToString();
  worker->core = *std::move(core);
  workers_.push_back(std::move(worker));
  return static_cast<int>(workers_.size()) - 1;
}

Engine& EngineFleet::engine(int worker) {
  return workers_[static_cast<size_t>(worker)]->core->engine();
}

SimulatedExecutor& EngineFleet::executor(int worker) {
  auto* const simulated = dynamic_cast<SimulatedExecutor*>(
      &workers_[static_cast<size_t>(worker)]->executor->executor());
  TANDEM_CHECK(simulated != nullptr) << "worker " << worker << " has an executor of its own";
  return *simulated;
}

PrefillPeer EngineFleet::peer(int worker) const {
  const Worker& w = *workers_[static_cast<size_t>(worker)];
  return {.worker = w.id, .address = w.id.name};
}

void EngineFleet::Submit(int worker, const struct Submit& submit, SessionId router,
                         CommandCharge charge) {
  workers_[static_cast<size_t>(worker)]->Tell(FromRouter{router, submit, std::move(charge)});
}

void EngineFleet::Cancel(int worker, AttemptId attempt, int64_t time_left_us, SessionId router) {
  const struct Cancel cancel { .attempt = attempt, .time_left_us = time_left_us };
  workers_[static_cast<size_t>(worker)]->Tell(FromRouter{router, cancel, {}});
}

void EngineFleet::Send(const std::string& kind, Event event) {
  if (lost_ && lost_(kind)) {
    // A frame's completion always comes, later.
    if (event.fail) network_.push_back({.from = kNobody, .to = kNobody, .deliver = event.fail});
    return;
  }
  ++messages_[kind];
  if (hold_frames_ && kind == "Frame") {
    held_frames_.push_back(std::move(event));
  } else {
    network_.push_back(std::move(event));
  }
}

void EngineFleet::ReleaseFrames() {
  hold_frames_ = queue_frames_ = false;
  for (Event& frame : std::exchange(held_frames_, {})) network_.push_back(std::move(frame));
}

bool EngineFleet::Deliver() {
  if (network_.empty()) return false;
  Event event = std::move(network_.front());
  network_.pop_front();
  event.deliver();
  return true;
}

bool EngineFleet::RunOne() {
  if (fast_network_ && Deliver()) return true;
  // Workers and network take turns, so that steps and messages interleave.
  for (size_t i = 0; i <= workers_.size(); ++i) {
    const size_t turn = next_worker_++ % (workers_.size() + 1);
    if (turn == workers_.size()) {
      if (Deliver()) return true;
      continue;
    }
    Worker& worker = *workers_[turn];
    if (worker.paused || (!worker.dirty && worker.wakeup_us > now_us_)) continue;
    worker.AfterStep(worker.core->Step(now_us_));
    return true;
  }
  return false;
}

Engine::StepResult EngineFleet::BeginStep(int worker) {
  Worker& of = *workers_[static_cast<size_t>(worker)];
  return of.AfterStep(of.core->BeginStep(now_us_));
}

Engine::StepResult EngineFleet::FinishStep(int worker) {
  Worker& of = *workers_[static_cast<size_t>(worker)];
  return of.AfterStep(of.core->FinishStep(now_us_));
}

void EngineFleet::Tick(int events) {
  now_us_ += 10;
  if (events % 1'000 == 999) Renew();
}

bool EngineFleet::RunUntilQuiet(int limit) {
  for (int i = 0; i < limit; ++i) {
    if (!RunOne()) return true;
    Tick(i);
  }
  return false;
}

void EngineFleet::RunUntil(const std::function<bool()>& done) {
  for (int i = 0; !done() && RunOne(); ++i) Tick(i);
}

void EngineFleet::Pause(int worker, bool paused) {
  workers_[static_cast<size_t>(worker)]->paused = paused;
}

void EngineFleet::Renew(int64_t since_progress_us) {
  for (const auto& worker : workers_) {
    const Renewals due = worker->core->RenewalsDue(since_progress_us);
    for (const auto& [prefill, renew] : due.leases) {
      worker->ToPrefill({.worker = prefill, .address = prefill.name}, renew);
    }
    for (const auto& [decode, renew] : due.reservations) worker->ToDecode(decode, renew);
  }
}

void EngineFleet::BreakSession(int decode, int prefill, const absl::Status& why) {
  std::deque<Event> events;
  events.swap(network_);
  for (Event& event : events) {
    const bool theirs = (event.from == decode && event.to == prefill) ||
                        (event.from == prefill && event.to == decode);
    if (!theirs) {
      network_.push_back(std::move(event));
    } else if (event.fail) {
      network_.push_back({.from = kNobody, .to = kNobody, .deliver = event.fail});
    }
  }
  Worker& d = *workers_[static_cast<size_t>(decode)];
  Worker& p = *workers_[static_cast<size_t>(prefill)];
  p.Tell(DecodeLost{SessionOf(decode), {}});
  d.Tell(PrefillLost{p.id, why});
}

void EngineFleet::Rename(int worker) { ++workers_[static_cast<size_t>(worker)]->id.incarnation; }

void EngineFleet::ForgetRecords() {
  records_.clear();
  notices_ = {};
  prompts_computed_ = {};
  pauses_ = {};
  prefill_cancels_ = {};
}

void EngineFleet::Record(SessionId router, const RouterEvent& event) {
  AttemptRecord& record =
      records_[{router, std::visit([](const auto& e) { return e.attempt; }, event)}];
  if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    record.prompts.push_back(*prompt);
  } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
    if (record.finish.contains(token->choice) || !record.ended.empty()) {
      record.token_after_end = true;
    }
    const auto [next, first] = record.next_position.try_emplace(token->choice, token->position);
    if (next->second != token->position) record.position_gap = true;
    next->second = token->position + 1;
    record.tokens[token->choice].push_back(token->token);
    if (token->finish != FinishReason::kNone) record.finish[token->choice] = token->finish;
  } else if (const auto* refused = std::get_if<RefusedEvent>(&event)) {
    record.refused.push_back(refused->status);
    record.by_prefill = refused->by_prefill;
    record.retry_after_us = refused->retry_after_us;
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    record.ended.push_back(ended->status);
    record.by_prefill = ended->by_prefill;
  } else if (const auto* abort = std::get_if<AbortReply>(&event)) {
    record.aborts.push_back(abort->outcome);
  }
}

std::string EngineFleet::CheckFinished(const struct Submit& submit, SessionId router) const {
  const auto found = records_.find({router, submit.attempt});
  if (found == records_.end()) return "nothing heard";
  const AttemptRecord& record = found->second;
  for (const auto& status : record.refused) return "refused: " + status.ToString();
  for (const auto& status : record.ended) return "ended: " + status.ToString();
  if (record.position_gap || record.token_after_end) return "positions do not follow each other";
  if (record.prompts.size() != 1) {
    return absl::StrFormat("%d prompt events", record.prompts.size());
  }
  const SimulatedModel model(SimulatedModel::kVocabulary, /*numerics=*/0, window_);
  const std::span<const int32_t> tokens(submit.spec.token_ids);
  const size_t known = tokens.size() - static_cast<size_t>(submit.spec.prompt_tokens);
  // A resumed stream has had its prompt logprobs.
  const std::vector<SampledToken> logprobs =
      submit.spec.sampling.num_prompt_logprobs < 0 || known > 0
          ? std::vector<SampledToken>()
          : model.PromptLogprobs(tokens, submit.spec.sampling.num_prompt_logprobs);
  if (record.prompts.front().prompt_logprobs != logprobs) return "prompt logprobs differ";
  for (int32_t choice : submit.spec.choices) {
    if (!record.finish.contains(choice)) return absl::StrFormat("choice %d goes on", choice);
    const std::unique_ptr<SequenceMasks> masks =
        masks_ ? SimulatedGrammar().MasksOf(submit.spec) : nullptr;
    const std::vector<SampledToken> expected =
        model.Generate(tokens.first(static_cast<size_t>(submit.spec.prompt_tokens)), choice,
                       submit.spec.sampling, masks.get(), max_model_tokens_);
    const std::vector<SampledToken> rest(
        expected.begin() + static_cast<ptrdiff_t>(std::min(known, expected.size())),
        expected.end());
    if (record.tokens.at(choice) != rest) {
      return absl::StrFormat("choice %d: %d tokens, not the %d of a fault-free run", choice,
                             record.tokens.at(choice).size(), rest.size());
    }
  }
  return "";
}

int64_t EngineFleet::messages(const std::string& kind) const {
  const auto found = messages_.find(kind);
  return found == messages_.end() ? 0 : found->second;
}

std::string EngineFleet::Audit() const {
  for (const auto& worker : workers_) {
    const absl::Status status = worker->core->engine().Audit();
    if (!status.ok()) return absl::StrFormat("%s: %s", worker->id.name, status.message());
  }
  return "";
}

std::string EngineFleet::AuditQuiet() const {
  if (std::string broken = Audit(); !broken.empty()) return broken;
  for (const auto& worker : workers_) {
    const WorkerLoad load = worker->core->engine().Load();
    const BlockCounts& c = load.blocks;
    if (c.held == 0 && c.in_flight == 0 && c.quarantined == 0 && load.running_sequences == 0 &&
        load.waiting_sequences == 0 && !load.has_work && worker->leases.LeaseRenewals().empty() &&
        worker->leases.ReservationRenewals().empty()) {
      continue;
    }
    return absl::StrFormat(
        "%s: %d held, %d in flight, %d quarantined, %d running, %d waiting, work %d, leases of %d "
        "peers, reservations of %d",
        worker->id.name, c.held, c.in_flight, c.quarantined, load.running_sequences,
        load.waiting_sequences, load.has_work, worker->leases.LeaseRenewals().size(),
        worker->leases.ReservationRenewals().size());
  }
  return "";
}

}  // namespace tandem
