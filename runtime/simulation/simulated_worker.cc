#include "runtime/simulation/simulated_worker.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/status_macros.h"
#include "runtime/simulation/virtual_network.h"
#include "runtime/simulation/wire_ranges.h"
#include "runtime/simulation/world.h"

namespace tandem {
namespace {

constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();
constexpr int64_t kDrainUs = 1'500'000;
constexpr int64_t kRestartUs = 300'000;
constexpr int64_t kTurnUs = 20;  // The least time that an engine's thread takes beside its device.
constexpr int64_t kAuditEvery = 8;        // Events of one worker.
constexpr double kLostDeviceShare = 0.1;  // of failing steps

}  // namespace

SimulatedWorker::SimulatedWorker(World* world, std::string address, std::string name,
                                 WorkerRole role, const WorkerShape& shape, uint64_t numerics,
                                 uint64_t kv_format, bool supervised)
    : world_(world),
      name_(std::move(name)),
      role_(role),
      shape_(shape),
      next_shape_(shape),
      numerics_(numerics),
      kv_format_(kv_format),
      supervised_(supervised) {
  process_.name = std::move(address);
}

SimulatedWorker::~SimulatedWorker() = default;

int64_t SimulatedWorker::Now() const { return process_.ClockAt(world_->now_us()); }

void SimulatedWorker::Start() {
  const SimulationOptions& o = world_->options();
  shape_ = next_shape_;
  world_->offers()->insert(shape_.offered_tokens());
  ++process_.life;
  process_.up = true;
  id_ = {.name = name_, .incarnation = world_->random()->Next()};
  life_ = std::make_unique<Life>();
  life_->executor = std::make_unique<SimulatedExecutor>(
      SimulatedExecutorOptions{.block_tokens = shape_.block_tokens,
                               .num_blocks = shape_.num_blocks,
                               .window = shape_.window,
                               .numerics = numerics_,
                               .kv_format = kv_format_,
                               .failing_token = o.faults.failing_token,
                               .deadly_payloads = world_->book()->deadly_payloads(),
                               .deadly_payloads_fail = o.poison_fails,
                               .max_drawn = shape_.max_drawn});
  if (o.masks) {
    life_->grammar = std::make_unique<SimulatedGrammar>(
        [world = world_] { return world->random()->Chance(world->network()->faults().late_mask); });
  }
  life_->receiver = std::make_unique<KvReceiver>(life_->executor->block_bytes());
  if (shape_.overlap_steps) life_->late = std::make_unique<LateExecutor>(life_->executor.get());
  Executor* const executor =
      life_->late ? life_->late.get() : static_cast<Executor*>(life_->executor.get());
  auto core = WorkerCore::Create(
      {.self = id_,
       .model = "simulated",
       .kv = life_->executor->kv(),
       .window = shape_.window,
       .max_sequences = shape_.max_sequences,
       .max_batched_tokens = shape_.max_batched_tokens,
       .max_model_tokens = shape_.max_model_tokens,
       .max_waiting_attempts = shape_.max_waiting_attempts,
       .vocab_size = SimulatedModel::kVocabulary + 1,  // With the deadly.
       .prefix_caching = o.prefix_caching,
       .max_frames_ahead = shape_.max_frames_ahead,
       .times = {}},
      executor, this, this, life_->receiver.get(), &life_->leases, life_->grammar.get());
  TANDEM_CHECK(core.ok()) << core.status().ToString();
  life_->core = *std::move(core);
  life_->newcomers = std::make_unique<NewcomerJudge>(shape_);
  life_->step_at_us = kNoStep;
  life_->last_step_us = world_->now_us();
  world_->Log(process_.name, "start", id_.incarnation, numerics_);
  Heartbeat();
  RenewLeases();
}

void SimulatedWorker::Crash(EndCause cause) { End(/*with_host=*/false, cause); }
void SimulatedWorker::LoseHost() { End(/*with_host=*/true, EndCause::kOutside); }

void SimulatedWorker::End(bool with_host, EndCause cause) {
  world_->Log(process_.name, with_host ? "host lost" : "crash", static_cast<uint64_t>(cause));
  const bool told = supervised_ && !with_host;
  world_->book()->CountDeath(id_.incarnation, life_->said,
                             /*blameless=*/told && cause == EndCause::kOutside, world_->now_us());
  if (!told) ended_lives_.clear();
  if (ended_lives_.size() == kMaxEndedLives) ended_lives_.erase(ended_lives_.begin());
  if (told) ended_lives_.push_back({.incarnation = id_.incarnation, .cause = cause});
  process_.up = false;
  process_.paused_until_us = 0;
  ++process_.life;
  stalled_until_us_ = 0;
  if (with_host) {
    world_->network()->BreakLinksOf(&process_);
  } else {
    world_->network()->EndLinksOf(&process_);
  }
  life_.reset();
}

void SimulatedWorker::Drain() {
  if (!process_.up || life_->core->engine().draining()) return;
  world_->Log(process_.name, "drain");
  world_->network()->InProcess(&process_, 0, [this] { Post(DrainEngine{}); });
  world_->network()->InProcess(&process_, kDrainUs, [this] { Replace(); });
}

void SimulatedWorker::Replace(EndCause cause) {
  Crash(cause);
  // Not in a process: there is none.
  world_->network()->events()->At(world_->now_us() + kRestartUs, [this] {
    if (!process_.up) Start();
  });
}

void SimulatedWorker::AfterEvent() {
  if (!process_.up) return;
  if (!life_->commands.empty()) {
    ScheduleStep(std::max({world_->now_us(), life_->next_step_us, stalled_until_us_}));
  }
  if (++life_->events % kAuditEvery != 0) return;
  const absl::Status status = life_->core->engine().Audit();
  if (!status.ok()) world_->Violate(absl::StrFormat("%s: %s", process_.name, status.message()));
}

void SimulatedWorker::ScheduleStep(int64_t at_us) {
  if (at_us >= life_->step_at_us) return;
  life_->step_at_us = at_us;
  const uint64_t token = ++life_->step_token;
  world_->network()->InProcess(&process_, at_us - world_->now_us(), [this, token] {
    if (life_->step_token != token) return;
    life_->step_at_us = kNoStep;
    if (stalled_until_us_ > world_->now_us()) {
      ScheduleStep(stalled_until_us_);
    } else {
      Step();
    }
  });
}

void SimulatedWorker::MayFailStep() {
  Random* const random = world_->random();
  const bool fails = random->Chance(world_->network()->faults().failed_step);
  if (!fails && sick_until_us_ <= world_->now_us()) return;
  life_->executor->FailNextStep(random->Chance(kLostDeviceShare)
                                    ? absl::DataLossError("the device is lost")
                                    : absl::InternalError("the step is to fail"));
}

void SimulatedWorker::Step() {
  if (shape_.overlap_steps) return StepOverlapping();
  for (const Command& command : std::exchange(life_->commands, {})) Apply(command);
  MayFailStep();
  life_->steps_executed = life_->executor->work_done();
  life_->in_step = true;
  const Engine& engine = life_->core->engine();
  const WorkerLoad before = engine.Load();
  const Engine::StepResult result = life_->core->Step(Now());
  const std::string unfair = life_->newcomers->OnStep(result, before, engine.Load());
  life_->in_step = false;
  if (!unfair.empty()) world_->Violate(process_.name + ": " + unfair);
  if (ReplaceIfBroken(result)) return;
  const int64_t now_us = world_->now_us();
  life_->next_step_us = now_us + shape_.host_us + DrawStepUs(result);
  life_->last_step_us = life_->next_step_us;  // Progress is stamped to its end.
  world_->CountPreemptions(result.preempted);
  if (life_->executor->work_done() == life_->steps_executed) {
    life_->core->Publish();
  } else {
    world_->network()->InProcess(&process_, life_->next_step_us - now_us, [this] {
      for (const auto& say : std::exchange(life_->held, {})) say();
      life_->core->Publish();
    });
  }
  if (result.again) {
    world_->Log(process_.name, "step", static_cast<uint64_t>(result.tokens),
                static_cast<uint64_t>(result.sequences));
    ScheduleStep(life_->next_step_us);
  } else if (result.next_wakeup_us < kNoStep / 2) {
    ScheduleStep(std::max(process_.WhenClockIs(result.next_wakeup_us), now_us + 1'000));
  }
  DrawKill(result, life_->next_step_us);
}

bool SimulatedWorker::ReplaceIfBroken(const Engine::StepResult& result) {
  const Engine& engine = life_->core->engine();
  if (engine.quarantine_is_stuck()) {
    world_->Log(process_.name, "quarantine is stuck", life_->stuck.size());
    world_->CountReplacement();
    Replace();
    return true;
  }
  if (engine.is_broken()) Drain();
  if (result.failed() && life_->executor->failed_by().has_value()) {
    world_->book()->CountKill(*life_->executor->failed_by(), id_.incarnation, life_->over);
  }
  if (dead()) {
    world_->book()->CountKill(*life_->executor->killed_by(), id_.incarnation, life_->over);
    Replace(world_->random()->Chance(0.3) ? EndCause::kMemory : EndCause::kCrash);
    return true;
  }
  return false;
}

int64_t SimulatedWorker::DrawStepUs(const Engine::StepResult& result) {
  Random* const random = world_->random();
  if (result.again && random->Chance(world_->network()->faults().long_step)) {
    return random->Between(3'000'000, 8'000'000);
  }
  return shape_.step_us + int64_t{shape_.token_us} * result.tokens;
}

void SimulatedWorker::DrawKill(const Engine::StepResult& result, int64_t end_us) {
  Random* const random = world_->random();
  const SimulatedFaults& faults = world_->network()->faults();
  const int64_t now_us = world_->now_us();
  const int64_t killed_us = now_us + random->Between(0, 2 * faults.kill_us);
  if (faults.kill_us > 0 && result.tokens > 0 && killed_us < end_us) {
    world_->network()->InProcess(&process_, killed_us - now_us, [this, random] {
      world_->CountKill();
      Crash(EndCause::kOutside);
      world_->network()->events()->At(world_->now_us() + random->Between(1'000, kRestartUs),
                                      [this] {
                                        if (!process_.up) Start();
                                      });
    });
  }
}

// ---- A device beside the engine's thread ----

// One turn of that thread: what has come, then what has ended, then what may begin.
void SimulatedWorker::StepOverlapping() {
  for (const Command& command : std::exchange(life_->commands, {})) Apply(command);
  const uint64_t life = process_.life;
  if (!life_->step_ends_us.empty() && life_->step_ends_us.front() <= world_->now_us()) {
    FinishOverlapping();
    if (process_.life != life) return;
  }
  int64_t wake_us = kNoStep;
  if (life_->core->engine().may_begin_step()) {
    wake_us = BeginOverlapping();
    if (process_.life != life) return;
  }
  life_->core->Publish();
  PlanTurn(wake_us);
}

void SimulatedWorker::FinishOverlapping() {
  MayFailStep();
  life_->step_ends_us.pop_front();
  life_->last_step_us = std::max(life_->last_step_us, world_->now_us());
  life_->finishing = true;
  const Engine::StepResult result = life_->core->FinishStep(Now());
  life_->finishing = false;
  ReplaceIfBroken(result);
}

// When to begin the next one, unless something comes or ends before.
int64_t SimulatedWorker::BeginOverlapping() {
  const int64_t now_us = world_->now_us();
  life_->last_step_us = std::max(life_->last_step_us, now_us);
  const Engine& engine = life_->core->engine();
  const WorkerLoad before = engine.Load();
  const Engine::StepResult result = life_->core->BeginStep(Now());
  const std::string unfair =
      result.sequences == 0 ? "" : life_->newcomers->OnStep(result, before, engine.Load());
  if (!unfair.empty()) world_->Violate(process_.name + ": " + unfair);
  if (ReplaceIfBroken(result)) return kNoStep;
  world_->CountPreemptions(result.preempted);
  if (result.sequences == 0) {
    if (!life_->step_ends_us.empty()) return kNoStep;
    if (result.again) return now_us + kTurnUs;
    return result.next_wakeup_us < kNoStep / 2
               ? std::max(process_.WhenClockIs(result.next_wakeup_us), now_us + 1'000)
               : kNoStep;
  }
  world_->Log(process_.name, "begin", static_cast<uint64_t>(result.tokens),
              static_cast<uint64_t>(result.sequences));
  life_->device_free_us =
      std::max(now_us + shape_.host_us, life_->device_free_us) + DrawStepUs(result);
  life_->step_ends_us.push_back(life_->device_free_us);
  life_->last_step_us = life_->device_free_us;  // Progress is stamped to its end.
  DrawKill(result, life_->device_free_us);
  return engine.may_begin_step() ? now_us : kNoStep;
}

void SimulatedWorker::PlanTurn(int64_t wake_us) {
  life_->next_step_us = world_->now_us() + std::max<int64_t>(kTurnUs, shape_.host_us);
  if (!life_->step_ends_us.empty()) wake_us = std::min(wake_us, life_->step_ends_us.front());
  if (wake_us < kNoStep) ScheduleStep(std::max(wake_us, life_->next_step_us));
}

void SimulatedWorker::Over(const AttemptId& attempt) {
  life_->newcomers->OnOver(attempt);
  if (!life_->in_step && !life_->finishing) life_->over.insert(attempt);
}

void SimulatedWorker::Say(std::function<void()> say) {
  const bool computed = life_->in_step && life_->executor->work_done() != life_->steps_executed;
  if (computed) {
    life_->held.push_back(std::move(say));
  } else {
    say();
  }
}

// ---- Commands ----

void SimulatedWorker::Apply(const Command& command) {
  const int64_t now_us = Now();
  const EngineCommand& what = command.what;
  NewcomerJudge* const newcomers = life_->newcomers.get();
  life_->misdirected |= command.misdirected;
  const Submit* submit = nullptr;
  std::optional<AttemptId> attempt;  // The one that may wait from now on.
  if (const auto* router = std::get_if<FromRouter>(&what)) {
    submit = std::get_if<Submit>(&router->message);
    if (submit != nullptr) {
      OnSubmitTaken(router->session, command.meant_for, *submit, now_us);
      attempt = submit->attempt;
    } else {
      const auto& cancel = std::get<Cancel>(router->message);
      world_->Log(process_.name, "cancel", cancel.attempt.request.counter, cancel.attempt.attempt);
      Watched& watched = life_->attempts[cancel.attempt];
      if (watched.forgotten_at_us == 0) watched.forgotten_at_us = now_us + cancel.time_left_us;
    }
  } else if (const auto* decode = std::get_if<FromDecode>(&what)) {
    OnPeerMessage(*decode);
    if (const auto* prompt = std::get_if<PrefillSubmit>(&decode->message))
      attempt = prompt->attempt;
  } else if (const auto* prefill = std::get_if<FromPrefill>(&what)) {
    LogPeer("from prefill", prefill->message);
  } else if (const auto* lost_router = std::get_if<RouterLost>(&what)) {
    newcomers->OnSessionLost(lost_router->session);
  } else if (const auto* lost_decode = std::get_if<DecodeLost>(&what)) {
    newcomers->OnSessionLost(lost_decode->session);
  }
  const Engine& engine = life_->core->engine();
  const int32_t waiting = engine.Load().waiting_sequences;
  life_->core->Apply(what, now_us);
  if (attempt.has_value() && engine.Load().waiting_sequences == waiting) {
    newcomers->OnOver(*attempt);
  }
}

void SimulatedWorker::OnSubmitTaken(SessionId router, uint64_t meant_for, const Submit& submit,
                                    int64_t now_us) {
  Watched& watched = life_->attempts[submit.attempt];
  if (watched.forgotten_at_us != 0 && now_us >= watched.forgotten_at_us) watched = {};
  if (watched.next_position.empty()) {
    watched.forgotten_at_us = now_us + submit.spec.time_left_us;
    for (int32_t choice : submit.spec.choices) {
      watched.next_position[choice] = static_cast<int64_t>(submit.spec.token_ids.size());
    }
  }
  if (meant_for != id_.incarnation) {
    life_->misdirected = true;
    if (AskedRequest* const asked = world_->book()->Find(submit.attempt.request)) {
      asked->misdirected = true;
    }
  }
  world_->Log(process_.name, "submit", submit.attempt.request.counter, submit.attempt.attempt);
  life_->newcomers->OnArrival(router, submit.attempt, submit.spec);
}

void SimulatedWorker::OnPeerMessage(const FromDecode& from) {
  LogPeer("from decode", from.message);
  if (const auto* submit = std::get_if<PrefillSubmit>(&from.message)) {
    life_->jobs[{from.session, submit->job}] = submit->attempt;
    life_->newcomers->OnArrival(from.session, submit->attempt, submit->spec);
  } else if (const auto* cancel = std::get_if<PrefillCancel>(&from.message)) {
    Over(life_->jobs[{from.session, cancel->job}]);
  }
}

// ---- Routers ----

std::vector<SessionId> SimulatedWorker::Routers() const {
  std::vector<SessionId> routers;
  for (const auto& [session, link] : life_->routers) routers.push_back(session);
  return routers;
}

void SimulatedWorker::SendBatch(SessionId router, const StepBatch& batch) {
  const auto link = life_->routers.find(router);
  if (link == life_->routers.end()) return;
  for (const RouterEvent& event : batch.events) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) life_->said.insert(token->attempt);
  }
  link->second->Send(1, [sink = life_->router_sinks.at(router), batch] { sink(batch); });
}

void SimulatedWorker::OnEvent(SessionId, const RouterEvent& event) {
  if (dead()) return;
  CheckWire(OutOfRange(event));
  Judge(event);
  life_->newcomers->OnOver(std::visit([](const auto& e) { return e.attempt; }, event));
}

// Before the step computes: whatever happens then, it is on its way.
void SimulatedWorker::OnChunks(std::span<const ChunkNotice> chunks) {
  world_->CountNewcomers(life_->newcomers->OnChunks(chunks));
  for (const ChunkNotice& notice : chunks) CheckWire(OutOfRange(notice.chunk));
}

PeerTerms SimulatedWorker::terms() const {
  return {.kv_class = absl::StrFormat("%d in %d", kv_format_, shape_.block_tokens),
          .numerics_id = std::to_string(numerics_),
          .transport = "simulated"};
}

WorkerRegistration SimulatedWorker::Registration() const {
  return {.worker = id_,
          .role = role_,
          .model = "simulated",
          .terms = terms(),
          .kv = life_->executor->kv(),
          .max_model_tokens = shape_.max_model_tokens,
          .max_sequences = shape_.max_sequences,
          .sequence_blocks = shape_.sequence_blocks(),
          .supervised = supervised_,
          .ended_lives = ended_lives_};
}

void SimulatedWorker::AcceptWatch(std::shared_ptr<VirtualLink> link, WatchSink sink) {
  PublishKvEvents();  // So that the snapshot and what follows it fit.
  CheckWire(OutOfRange(Registration()));
  link->Send(1, [on = sink.on_registration, r = Registration()] { on(r); });
  link->Send(1, [on = sink.on_events, e = life_->core->engine().SnapshotKvEvents()] { on(e); });
  life_->watchers.push_back({std::move(link), std::move(sink)});
}

void SimulatedWorker::PublishKvEvents() {
  const KvEvents events = life_->core->engine().TakeKvEvents();
  if (events.empty()) return;
  for (const Watcher& watcher : life_->watchers) {
    watcher.link->Send(1, [on = watcher.sink.on_events, events] { on(events); });
  }
}

void SimulatedWorker::Heartbeat() {
  std::erase_if(life_->watchers, [](const Watcher& w) { return w.link->broken(); });
  PublishKvEvents();
  WorkerLoad load = life_->core->engine().Load();
  load.has_work |= !life_->commands.empty();
  load.since_progress_us = SinceProgressUs();
  for (const Watcher& watcher : life_->watchers) {
    watcher.link->Send(1, [on = watcher.sink.on_heartbeat, load,
                           draining = life_->core->engine().draining()] { on(load, draining); });
  }
  world_->network()->InProcess(&process_, LivenessTimes{}.heartbeat_us, [this] { Heartbeat(); });
}

int64_t SimulatedWorker::SinceProgressUs() const {
  return std::max<int64_t>(0, world_->now_us() - life_->last_step_us);
}

SessionId SimulatedWorker::AcceptRouter(std::shared_ptr<VirtualLink> link,
                                        std::function<void(const StepBatch&)> on_batch) {
  const SessionId session = ++last_session_;
  life_->routers.emplace(session, std::move(link));
  life_->router_sinks.emplace(session, std::move(on_batch));
  return session;
}

SimulatedWorker::Push SimulatedWorker::TryPush(const AttemptId& attempt) {
  const bool full = world_->random()->Chance(world_->network()->faults().full_queue);
  const auto [entry, fresh] = life_->pushed.try_emplace(attempt, !full);
  return entry->second ? Push::kTaken : fresh ? Push::kRefused : Push::kIgnored;
}

void SimulatedWorker::OnSubmit(SessionId router, uint64_t meant_for, const Submit& submit) {
  const Push push = TryPush(submit.attempt);
  const auto link = life_->routers.find(router);
  if (push == Push::kRefused && link != life_->routers.end()) {
    StepBatch batch{.worker_incarnation = id_.incarnation,
                    .draining = life_->core->engine().draining()};
    batch.events.push_back(RefusedEvent{.attempt = submit.attempt,
                                        .status = absl::ResourceExhaustedError("no place left"),
                                        .retry_after_us = 100'000});
    link->second->Send(1, [sink = life_->router_sinks.at(router), batch] { sink(batch); });
  }
  if (push != Push::kTaken) return;
  Post(FromRouter{router, submit, {}}, meant_for);
}

void SimulatedWorker::OnCancel(SessionId router, const Cancel& cancel) {
  Post(FromRouter{router, cancel, {}});
}

void SimulatedWorker::OnRouterLost(SessionId router) {
  world_->Log(process_.name, "router lost", router);
  life_->routers.erase(router);
  life_->router_sinks.erase(router);
  Post(RouterLost{router, {}});
}

// ---- Peers ----

template <typename Message>
void SimulatedWorker::LogPeer(std::string_view from, const Message& message) {
  const JobId job = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.job; }) {
          return m.job;
        } else {
          return m.jobs.empty() ? JobId() : m.jobs.front();
        }
      },
      message);
  world_->Log(process_.name, absl::StrFormat("%s, kind %d", from, message.index()), job);
}

SessionId SimulatedWorker::AcceptDecode(std::shared_ptr<VirtualLink> link,
                                        SimulatedWorker* decode) {
  const SessionId session = ++last_session_;
  life_->decodes.emplace(
      session,
      DecodeLink{.link = std::move(link), .decode = decode, .decode_life = decode->process_.life});
  return session;
}

void SimulatedWorker::OnDecodeLost(SessionId decode) {
  if (const auto link = life_->decodes.extract(decode)) {
    for (const DecodeLink::WaitingFrame& frame : link.mapped().waiting) {
      Post(FrameSent{frame.send_id, /*ok=*/false});
    }
  }
  Post(DecodeLost{decode, {}});
}

void SimulatedWorker::ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) {
  if (dead()) return;
  if (const auto* grant = std::get_if<Grant>(&message)) {
    life_->granted[grant->reservation] = grant->job;
  } else if (const auto* submit = std::get_if<PrefillSubmit>(&message)) {
    life_->newcomers->OnOver(submit->attempt);
  }
  Say([this, prefill, message = std::move(message)] {
    PeerLink& peer = life_->prefills[prefill.worker];
    if (peer.link != nullptr) return SendToPrefill(&peer, message);
    peer.waiting.push_back(message);
    if (peer.dial != 0) return;
    peer.dial = ++last_dial_;
    world_->network()->InProcess(&process_, kDialUs + world_->network()->Delay(),
                                 [this, prefill, dial = peer.dial] { Dial(prefill, dial); });
  });
}

void SimulatedWorker::Dial(const PrefillPeer& prefill, uint64_t dial) {
  const auto found = life_->prefills.find(prefill.worker);
  if (found == life_->prefills.end() || found->second.dial != dial) return;
  SimulatedWorker* const target = world_->FindWorker(prefill.address);
  if (target == nullptr || !target->accepting() || target->id() != prefill.worker) {
    return PrefillLost(prefill.worker, absl::UnavailableError("nobody answers"));
  }
  if (absl::Status status = CheckPeerTerms(terms(), target->terms()); !status.ok()) {
    return PrefillLost(prefill.worker, status);
  }
  PeerLink& peer = found->second;
  peer.peer = target;
  auto session = std::make_shared<SessionId>(0);
  const WorkerId worker = prefill.worker;
  peer.link = world_->network()->Connect(
      {.process = &process_,
       .life = process_.life,
       .on_lost =
           [this, worker, dial] {
             const auto lost = life_->prefills.find(worker);
             if (lost == life_->prefills.end() || lost->second.dial != dial) return;
             PrefillLost(worker, absl::UnavailableError("the session broke"));
           }},
      {.process = &target->process_, .life = target->process_.life, .on_lost = [target, session] {
         target->OnDecodeLost(*session);
       }});
  peer.session = *session = target->AcceptDecode(peer.link, this);
  for (const DecodeToPrefill& message : std::exchange(peer.waiting, {})) {
    SendToPrefill(&peer, message);
  }
}

void SimulatedWorker::SendToPrefill(PeerLink* peer, const DecodeToPrefill& message) {
  CheckWire(OutOfRange(message));
  const bool overtake = std::holds_alternative<PrefillCancel>(message) &&
                        world_->random()->Chance(world_->network()->faults().overtaking_cancel);
  peer->link->Send(
      0,
      [target = peer->peer, session = peer->session, message, misdirected = life_->misdirected] {
        if (const auto* submit = std::get_if<PrefillSubmit>(&message)) {
          const Push push = target->TryPush(submit->attempt);
          if (push == Push::kRefused) {
            target->ToDecode(session, PrefillRefused{.job = submit->job,
                                                     .status = absl::ResourceExhaustedError("full"),
                                                     .retry_after_us = 100'000});
          }
          if (push != Push::kTaken) return;
        }
        target->Post(FromDecode{session, message, {}}, /*meant_for=*/0, misdirected);
      },
      overtake);
}

void SimulatedWorker::PrefillLost(const WorkerId& prefill, const absl::Status& why) {
  world_->Log(process_.name, "prefill lost");
  life_->prefills.erase(prefill);
  Post(tandem::PrefillLost{prefill, why});
}

void SimulatedWorker::RenewLeases() {
  const Renewals due = life_->core->RenewalsDue(SinceProgressUs());
  for (const auto& [worker, renew] : due.leases) {
    const auto peer = life_->prefills.find(worker);
    if (peer != life_->prefills.end() && peer->second.link != nullptr) {
      SendToPrefill(&peer->second, renew);
    }
  }
  for (const auto& [decode, renew] : due.reservations) ToDecode(decode, renew);
  world_->network()->InProcess(&process_, LivenessTimes{}.renew_us, [this] { RenewLeases(); });
}

void SimulatedWorker::ToDecode(SessionId decode, PrefillToDecode message) {
  if (dead()) return;
  CheckWire(OutOfRange(message));
  if (const auto* refused = std::get_if<PrefillRefused>(&message)) {
    Over(life_->jobs[{decode, refused->job}]);
  }
  Say([this, decode, message = std::move(message)] {
    const auto found = life_->decodes.find(decode);
    if (found == life_->decodes.end()) return;
    SimulatedWorker* const target = found->second.decode;
    found->second.link->Send(1, [target, self = id_, message] {
      target->Post(FromPrefill{self, message, {}});
    });
  });
}

void SimulatedWorker::CheckWire(const std::string& what) {
  if (!what.empty()) world_->Violate(absl::StrFormat("%s says %s", process_.name, what));
}

// ---- Audits ----

absl::Status SimulatedWorker::Audit() const {
  if (!process_.up) return absl::OkStatus();
  if (absl::Status status = life_->core->engine().Audit(); !status.ok()) return status;
  world_->book()->ExpectAll(numerics_);
  for (const NamedBlock& cached : life_->core->engine().CachedBlocks()) {
    const uint32_t expected =
        world_->book()->ExpectedBlock(numerics_, kv_format_, shape_.block_tokens, cached.name);
    if (expected == 0 && life_->misdirected) continue;
    const std::span<const uint8_t> bytes = life_->executor->BlockBytes(cached.block);
    if (Crc32c(bytes.data(), bytes.size()) != expected) {
      return absl::InternalError(absl::StrFormat(
          "%s: cached block %d does not hold what its name says", process_.name, cached.block));
    }
  }
  return absl::OkStatus();
}

absl::Status SimulatedWorker::AuditQuiet() const {
  if (!process_.up) return absl::InternalError(process_.name + " is not up at the end");
  const WorkerLoad load = life_->core->engine().Load();
  const BlockCounts& c = load.blocks;
  const bool only_stuck = c.quarantined == static_cast<int64_t>(life_->stuck.size());
  if (c.held + c.in_flight == 0 && only_stuck && !load.has_work && life_->commands.empty() &&
      load.running_sequences + load.waiting_sequences == 0 &&
      life_->leases.LeaseRenewals().empty() &&
      life_->receiver->num_in_flight() == life_->stuck_landings) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrFormat(
      "%s is not quiet at the end: %d blocks held, %d in flight, %d quarantined, %d sequences run, "
      "%d wait, work %d, %d peers leased, %d frames in flight",
      process_.name, c.held, c.in_flight, c.quarantined, load.running_sequences,
      load.waiting_sequences, load.has_work, life_->leases.LeaseRenewals().size(),
      life_->receiver->num_in_flight()));
}

}  // namespace tandem
