#include "runtime/simulation/simulated_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/simulation/simulated_worker.h"
#include "runtime/simulation/virtual_network.h"
#include "runtime/simulation/wire_ranges.h"
#include "runtime/simulation/world.h"

namespace tandem {
namespace {

constexpr int64_t kDialEveryUs = 100'000;

}  // namespace

// Knows what must come, and compares.
class SimulatedRouter::Client final : public RequestSink {
 public:
  Client(World* world, SimulatedRouter* router, AskedRequest asked)
      : world_(world), router_(router), asked_(std::move(asked)) {
    choices_.resize(static_cast<size_t>(asked_.num_choices));
  }

  void OnPrompt(const PromptReport& prompt) override {
    if (ended_ || expected_ != nullptr) return Complain("a prompt report too many");
    router_->turns_.OnStarted(id_.counter);
    numerics_id_ = prompt.numerics_id;
    const uint64_t numerics = std::stoull(numerics_id_);
    expected_ = &world_->book()->Expect(&asked_, numerics);
    const int64_t most = world_->book()->MostCachedTokens(&asked_, numerics);
    if (prompt.cached_tokens > most) {
      Complain(absl::StrFormat("%d cached tokens, of which requests of its salt had %d",
                               prompt.cached_tokens, most));
    }
    const std::vector<SampledToken> logprobs(prompt.prompt_logprobs.begin(),
                                             prompt.prompt_logprobs.end());
    if (logprobs != expected_->prompt_logprobs) {
      Complain(absl::StrFormat("%d prompt logprobs that are not the %d of a fault-free run",
                               logprobs.size(), expected_->prompt_logprobs.size()));
    }
  }

  void OnDelta(const Delta& delta) override {
    ++router_->num_deltas_;
    world_->Log("client", "delta", id_.counter, static_cast<uint64_t>(delta.token->token));
    if (ended_ || expected_ == nullptr) return Complain("a delta at the wrong time");
    Choice& choice = choices_[static_cast<size_t>(delta.choice)];
    const ExpectedChoice& expected = expected_->choices[static_cast<size_t>(delta.choice)];
    if (choice.finished) return Complain("a delta after the choice's end");
    const auto next = static_cast<int64_t>(asked_.prompt.size() + choice.num_tokens);
    if (delta.position != next) {
      return Complain(absl::StrFormat("position %d comes where %d is next", delta.position, next));
    }
    if (choice.num_tokens >= expected.num_tokens ||
        *delta.token != expected.worker_tokens[choice.num_tokens]) {
      return Complain(absl::StrFormat("choice %d, position %d: token %d is not the fault-free one",
                                      delta.choice, delta.position, delta.token->token));
    }
    ++choice.num_tokens;
    choice.text += delta.text;
    if (!expected.text.starts_with(choice.text)) return Complain("text that must not be seen");
    const bool last = choice.num_tokens == expected.num_tokens;
    if (delta.finish != (last ? expected.finish : FinishReason::kNone)) {
      return Complain(absl::StrFormat("choice %d ends wrongly after %d of %d tokens", delta.choice,
                                      choice.num_tokens, expected.num_tokens));
    }
    if (!last) return;
    choice.finished = true;
    if (choice.text != expected.text) Complain("text is missing at the end");
  }

  void OnDone(const RequestReport& report) override {
    if (std::exchange(ended_, true)) return Complain("a second terminal event");
    if (asked_.deadly_position >= 0 &&
        asked_.deadly_position < static_cast<int32_t>(asked_.prompt.size())) {
      Complain("it is done although nobody can compute it");
    }
    int64_t tokens = 0;
    for (const Choice& choice : choices_) {
      if (!choice.finished) Complain("done with a choice unfinished");
      tokens += static_cast<int64_t>(choice.num_tokens);
    }
    if (report.completion_tokens != tokens) Complain("usage is not what was delivered");
    world_->Log("client", "done", id_.counter, static_cast<uint64_t>(tokens));
    world_->CountRequest(/*done=*/true, report.resumes);
  }

  void OnError(const absl::Status& status, const RequestReport& report) override {
    if (std::exchange(ended_, true)) return Complain("a second terminal event");
    router_->turns_.OnStarted(id_.counter);
    world_->Log("client", "error", id_.counter, static_cast<uint64_t>(status.code()));
    if (!Explained(status, report)) {
      Complain(absl::StrFormat("ends with %s; it killed %d workers, %d as its router saw",
                               status.ToString(), asked_.kills, asked_.NumSeenKills()));
    }
    world_->CountRequest(/*done=*/false, report.resumes);
    if (absl::IsInvalidArgument(status)) world_->CountTooLong();
  }

  // What computes as it began, or holds all of it, is gone.
  bool NobodyCanGoOn() const {
    if (expected_ == nullptr) return false;
    const size_t total = asked_.prompt.size() + static_cast<size_t>(asked_.sampling.max_tokens);
    return std::none_of(
        world_->workers().begin(), world_->workers().end(), [&](const auto& worker) {
          const bool known = !world_->options().namesakes || router_->Knows(*worker);
          return known && worker->accepting() && worker->terms().numerics_id == numerics_id_ &&
                 worker->shape().offered_tokens() >= static_cast<int64_t>(total);
        });
  }

  bool ended() const { return ended_; }
  bool abandoned = false;  // The router is gone.
  bool left = false;       // The client itself.
  void set_id(const RequestId& id) { id_ = id; }
  void Refuse() { ended_ = true; }
  const RequestId& id() const { return id_; }
  AskedRequest* asked() { return &asked_; }

 private:
  struct Choice {
    size_t num_tokens = 0;
    std::string text;
    bool finished = false;
  };

  bool Explained(const absl::Status& status, const RequestReport& report) const {
    const SimulationOptions& o = world_->options();
    switch (status.code()) {
      case absl::StatusCode::kCancelled:
        return left;
      case absl::StatusCode::kDeadlineExceeded:
        if (world_->now_us() < ends_us_ && o.faults.clock_jump_us == 0) return false;
        return asked_.short_deadline || NobodyCanGoOn();
      case absl::StatusCode::kUnavailable:  // Nobody was there for too long.
        return report.completion_tokens == 0 &&
               (o.poison || o.faults.sick_us > 0 || o.faults.TakeWorkersAway());
      case absl::StatusCode::kInternal: {
        const std::string what(status.message());
        if (what.starts_with("the run failed: token")) return o.faults.failing_token >= 0;
        if (what.find("workers in a row were lost") == std::string::npos) return false;
        return (asked_.deadly_position >= 0 && KilledEnough()) || MayBeBlamed();
      }
      case absl::StatusCode::kInvalidArgument:
        return report.completion_tokens == 0 && FitsNobody();
      default:
        return false;
    }
  }
  // What kills whoever computes it must have done so as often as it takes, unless others did whose
  // reason nobody tells.
  bool KilledEnough() const {
    const bool only_it = !world_->options().faults.TouchProcesses() && world_->ends_are_told();
    return asked_.kills >= (only_it ? kDeathsBeforePoison : 1);
  }
  // An innocent: where workers die whose end nobody tells, or that seem to.
  bool MayBeBlamed() const {
    const SimulatedFaults& f = world_->options().faults;
    // They seem to die, or to hang, although they have been told to go on.
    if (f.pause_us + f.stall_us + f.hang_us + f.clock_jump_us > 0) return true;
    // Another of its name comes, and has nothing to tell of it.
    if (world_->options().namesakes) return true;
    if (f.TouchProcesses() && !world_->ends_are_told()) return true;
    // One whose earlier life its router still believes in. (Real sessions begin with a greeting
    // that names the incarnation.)
    return asked_.misdirected || asked_.MayBeBlamed();
  }
  void Complain(const std::string& what) {
    world_->Violate(absl::StrFormat("request %d: %s", id_.counter, what));
  }

  // It has less room than this at every worker that its router knows as it is now.
  bool FitsNobody() const {
    const size_t least =
        asked_.prompt.size() + (asked_.open_ended ? 1 : asked_.sampling.max_tokens);
    return std::none_of(world_->workers().begin(), world_->workers().end(),
                        [&](const auto& worker) {
                          return router_->Knows(*worker) &&
                                 worker->shape().offered_tokens() >= static_cast<int64_t>(least);
                        });
  }

  World* const world_;
  SimulatedRouter* const router_;
  AskedRequest asked_;
  RequestId id_;
  // By the fastest clock.
  const int64_t ends_us_ =
      world_->now_us() + static_cast<int64_t>(static_cast<double>(asked_.time_left_us) *
                                              (1 - 2 * world_->options().clock_drift));
  const ExpectedRequest* expected_ = nullptr;
  std::string numerics_id_;  // With which it began.
  std::vector<Choice> choices_;
  bool ended_ = false;
};

SimulatedRouter::SimulatedRouter(World* world, std::string name) : world_(world) {
  process_.name = std::move(name);
}

SimulatedRouter::~SimulatedRouter() = default;

int64_t SimulatedRouter::Now() const { return process_.ClockAt(world_->now_us()); }

void SimulatedRouter::Start() {
  ++process_.life;
  process_.up = true;
  started_us_ = world_->now_us();
  incarnation_ = world_->random()->Next() | 1;
  RequestOwnerOptions options;
  options.router_incarnation = incarnation_;
  options.disaggregate = world_->options().disaggregate;
  auto owner =
      RequestOwner::Create(options, CreateLeastLoadedPrefixPolicy(world_->random()->Next()), this);
  TANDEM_CHECK(owner.ok()) << owner.status().ToString();
  owner_ = *std::move(owner);
  std::vector<std::string> addresses;
  for (const auto& worker : world_->workers()) addresses.push_back(worker->address());
  owner_->ExpectWorkers(addresses);
  world_->Log(process_.name, "start", incarnation_);
  DialAll();
  Tick();
}

void SimulatedRouter::Crash() {
  world_->Log(process_.name, "crash");
  process_.up = false;
  process_.paused_until_us = 0;
  ++process_.life;
  world_->network()->BreakLinksOf(&process_);
  connections_.clear();
  live_.clear();
  turns_.Clear();
  last_asked_ = 0;
  UpdateBook();
  owner_.reset();
  for (const auto& client : clients_) client->abandoned = true;
}

void SimulatedRouter::Ask(AskedRequest asked, std::optional<int64_t> leaves_after_us) {
  clients_.push_back(std::make_unique<Client>(world_, this, std::move(asked)));
  Client* const client = clients_.back().get();
  turns_.OnAsked(++last_asked_, client->asked()->client, KindOf(*client->asked()));
  ClientRequest request;
  request.client = client->asked()->client;
  request.spec = SpecOfPrompt(client->asked()->prompt, client->asked()->num_choices);
  request.spec.sampling = client->asked()->sampling;
  request.spec.time_left_us = client->asked()->time_left_us;
  request.spec.hash_root = RequestBook::Root(*client->asked());
  request.open_ended = client->asked()->open_ended;
  request.stop_strings = client->asked()->stop_strings;
  request.make_detokenizer = RequestBook::MakeDetokenizer();
  request.model = "simulated";
  request.sink = client;
  const auto id = owner_->Start(std::move(request), Now());
  if (!id.ok()) {
    client->Refuse();
    world_->Violate("a request is refused: " + id.status().ToString());
    return;
  }
  world_->Log(process_.name, "ask", id->counter, client->asked()->prompt.size());
  TANDEM_CHECK(id->counter == last_asked_) << id->counter;
  client->set_id(*id);
  world_->book()->Name(*id, client->asked());
  UpdateBook();
  if (!leaves_after_us.has_value()) return;
  world_->network()->InProcess(&process_, *leaves_after_us, [this, client] {
    if (client->ended()) return;
    client->left = true;
    owner_->Cancel(client->id(), Now());
    if (!client->ended()) world_->Violate("a cancelled request goes on");
  });
}

bool SimulatedRouter::idle() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const auto& client) { return client->ended() || client->abandoned; });
}

std::string SimulatedRouter::Unfinished(bool only_servable) const {
  std::string list;
  for (const auto& client : clients_) {
    if (client->ended() || client->abandoned) continue;
    if (only_servable && client->NobodyCanGoOn()) continue;
    list += absl::StrFormat("%s %d", list.empty() ? "" : ",", client->id().counter);
  }
  return list;
}

absl::Status SimulatedRouter::AuditQuiet() const {
  if (!process_.up) return absl::InternalError(process_.name + " is not up at the end");
  for (const auto& [name, worker] : owner_->fleet().workers()) {
    if (const LiveWork& live = worker.live; live != LiveWork()) {
      return absl::InternalError(absl::StrFormat(
          "%s counts %d attempts, %d sequences, %d prompts and %d prompt tokens at %s",
          process_.name, live.attempts, live.sequences, live.prompts, live.prompt_tokens, name));
    }
  }
  const RequestCounters& counters = owner_->counters();
  if (counters.refusals > MostRefusals()) {
    return absl::InternalError(absl::StrFormat("%s was refused %d times for %d attempts",
                                               process_.name, counters.refusals,
                                               counters.attempts()));
  }
  if (counters.determinism_violations + counters.protocol_errors > 0) {
    return absl::InternalError(
        absl::StrFormat("%s counts %d determinism violations, %d protocol errors", process_.name,
                        counters.determinism_violations, counters.protocol_errors));
  }
  if (owner_->num_requests() == 0 && owner_->num_waiting() == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s has %d requests, %d streams wait", process_.name,
                                             owner_->num_requests(), owner_->num_waiting()));
}

// A worker is filled once before it is known, and then asked again ever more rarely; a queue that
// is full by chance refuses its share; a drain refuses what is on its way.
uint64_t SimulatedRouter::MostRefusals() const {
  const SimulatedFaults& faults = world_->options().faults;
  if (faults.TakeWorkersAway() || faults.full_queue > 0) return UINT64_MAX;
  const RequestCounters& counters = owner_->counters();
  uint64_t most = (counters.attempts() - counters.refusals) / 10;
  const int64_t elapsed_us = world_->now_us() - started_us_;
  // In a long step it refuses nothing, so that with each heartbeat it seems to take more.
  const int64_t once_in_us = faults.long_step > 0 ? LivenessTimes{}.heartbeat_us : 1'000'000;
  for (const auto& worker : world_->workers()) {
    most += 4 * static_cast<uint64_t>(worker->shape().max_sequences);
    most += 16 + static_cast<uint64_t>(elapsed_us / once_in_us);
  }
  return most;
}

void SimulatedRouter::Tick() {
  const int64_t next_us = process_.WhenClockIs(owner_->Tick(Now()));
  world_->network()->InProcess(&process_, std::max<int64_t>(next_us - world_->now_us(), 1'000),
                               [this] { Tick(); });
}

void SimulatedRouter::DialAll() {
  for (const auto& worker : world_->workers()) {
    Connection& connection = connections_[worker->address()];
    if (connection.watch == nullptr && !connection.dialling_watch) {
      DialWatch(&connection, worker);
    }
    if (connection.worker.has_value() && connection.session == nullptr &&
        !connection.dialling_session) {
      DialSession(&connection, worker);
    }
  }
  world_->network()->InProcess(&process_, kDialEveryUs, [this] { DialAll(); });
}

void SimulatedRouter::DialWatch(Connection* connection, SimulatedWorker* worker) {
  connection->dialling_watch = true;
  world_->network()->InProcess(
      &process_, kDialUs + world_->network()->Delay(), [this, connection, worker] {
        connection->dialling_watch = false;
        if (!worker->accepting()) return;
        // Callbacks of an earlier watch must not speak for a later one.
        auto id = std::make_shared<std::optional<WorkerId>>();
        const uint64_t worker_life = worker->process()->life;
        connection->watch = world_->network()->Connect(
            {.process = &process_,
             .life = process_.life,
             .on_lost =
                 [this, connection, id] {
                   connection->watch = nullptr;
                   if (id->has_value()) owner_->OnWatchLost(**id);
                 }},
            {.process = worker->process(), .life = worker_life, .on_lost = [] {}});
        worker->AcceptWatch(
            connection->watch,
            {.on_registration =
                 [this, connection, worker, id](const WorkerRegistration& registration) {
                   *id = registration.worker;
                   connection->worker = registration.worker;
                   const absl::Status status =
                       owner_->OnRegistration(worker->address(), registration, Now());
                   const bool refused =
                       absl::IsFailedPrecondition(status) && world_->options().namesakes;
                   if (!status.ok() && !refused) world_->Violate(status.ToString());
                   if (connection->session == nullptr && !connection->dialling_session) {
                     DialSession(connection, worker);
                   }
                 },
             .on_heartbeat =
                 [this, id](const WorkerLoad& load, bool draining) {
                   if (id->has_value()) owner_->OnHeartbeat(**id, load, draining, Now());
                 },
             .on_events =
                 [this, id](const KvEvents& events) {
                   if (id->has_value()) owner_->OnKvEvents(**id, events);
                 }});
      });
}

// The connection reaches whoever listens at the address now, which need not be who was registered.
void SimulatedRouter::DialSession(Connection* connection, SimulatedWorker* worker) {
  connection->dialling_session = true;
  world_->network()->InProcess(
      &process_, kDialUs + world_->network()->Delay(), [this, connection, worker] {
        connection->dialling_session = false;
        if (!worker->accepting() || connection->session != nullptr) return;
        const SessionId session = ++last_session_;
        auto worker_session = std::make_shared<SessionId>(0);
        auto link = world_->network()->Connect(
            {.process = &process_,
             .life = process_.life,
             .on_lost =
                 [this, session] {
                   SessionOver(session);
                   owner_->OnSessionLost(session, Now());
                 }},
            {.process = worker->process(),
             .life = worker->process()->life,
             .on_lost = [worker, worker_session] { worker->OnRouterLost(*worker_session); }});
        *worker_session = worker->AcceptRouter(
            link, [this, session](const StepBatch& batch) { OnBatch(session, batch); });
        connection->session = link;
        connection->session_id = session;
        connection->worker_session = *worker_session;
        connection->peer = worker;
        connection->peer_incarnation = connection->worker->incarnation;
        if (!owner_->OnSessionUp(*connection->worker, session, Now())) {
          connection->session = nullptr;
          connection->session_id = 0;
          link->Close(0);
        }
      });
}

SimulatedRouter::Connection* SimulatedRouter::Find(SessionId session) {
  for (auto& [address, connection] : connections_) {
    if (connection.session_id == session) return &connection;
  }
  return nullptr;
}

void SimulatedRouter::SessionOver(SessionId session) {
  if (Connection* connection = Find(session)) {
    connection->session = nullptr;
    connection->session_id = 0;
  }
  std::erase_if(live_, [&](const auto& entry) { return entry.second.session == session; });
  UpdateBook();
}

void SimulatedRouter::UpdateBook() {
  for (const auto& client : clients_) client->asked()->live_attempts.clear();
  for (const auto& [choice, live] : live_) {
    AskedRequest* const asked = world_->book()->Find(choice.first);
    if (asked == nullptr) continue;
    asked->live_attempts.insert(live.attempt.attempt);
    world_->book()->CountSent(asked, live.attempt.attempt, live.sent);
  }
}

void SimulatedRouter::NotLive(const AttemptId& attempt, SessionId session, int32_t choice) {
  std::erase_if(live_, [&](const auto& entry) {
    return entry.second.attempt == attempt && entry.second.session == session &&
           (choice < 0 || entry.first.second == choice);
  });
  UpdateBook();
}

void SimulatedRouter::OnBatch(SessionId session, const StepBatch& batch) {
  for (const RouterEvent& event : batch.events) {
    if (const auto* refused = std::get_if<RefusedEvent>(&event)) {
      NotLive(refused->attempt, session);
    } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
      AskedRequest* const asked = world_->book()->Find(ended->attempt.request);
      if (asked != nullptr && absl::IsAborted(ended->status)) {
        asked->CountFailedStep(ended->attempt.attempt, ended->by_prefill,
                               said_token_.contains(ended->attempt));
      } else if (asked != nullptr) {
        asked->CountLostTransfer(ended->attempt.attempt, world_->now_us());
      }
      NotLive(ended->attempt, session);
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      said_token_.insert(token->attempt);
      if (token->finish != FinishReason::kNone) NotLive(token->attempt, session, token->choice);
    }
  }
  const FleetWorker* const heard = owner_->fleet().FindSession(session);
  for (const ChunkBegun& chunk : batch.chunks) {
    // Else it believes none of it, or the request is another router's.
    if (heard == nullptr || heard->id().incarnation != batch.worker_incarnation) break;
    if (chunk.attempt.request.router_incarnation != incarnation_) continue;
    AskedRequest* const asked = world_->book()->Find(chunk.attempt.request);
    if (asked != nullptr) asked->CountChunk(batch.worker_incarnation, chunk);
  }
  const Connection* const connection = Find(session);
  const bool registered =
      connection != nullptr && connection->peer_incarnation == batch.worker_incarnation;
  const int64_t before = num_deltas_;
  owner_->OnStepBatch(session, batch, Now());
  if (!registered && num_deltas_ != before) {
    world_->Violate(process_.name + " delivers tokens of an incarnation that never registered");
  }
}

void SimulatedRouter::SendSubmit(SessionId session, const Submit& routed) {
  Connection* const connection = Find(session);
  Submit submit = routed;
  if (world_->options().any_peer) NameAnyPeer(*connection->peer, &submit);
  if (const std::string what = OutOfRange(submit); !what.empty()) {
    world_->Violate(process_.name + " says " + what);
  }
  CheckFits(*connection, submit);
  const std::string unfair = turns_.OnAttempt(submit.attempt.request.counter);
  if (!unfair.empty()) world_->Violate(process_.name + ": " + unfair);
  const SentAttempt sent{.choices = submit.spec.choices,
                         .tokens_known = static_cast<int32_t>(submit.spec.token_ids.size()),
                         .runs_alone = submit.spec.runs_alone,
                         .worker = connection->peer_incarnation,
                         .prefill = submit.prefill.worker.incarnation};
  for (int32_t choice : submit.spec.choices) {
    const auto [entry, fresh] = live_.try_emplace({submit.attempt.request, choice});
    if (!fresh) {
      world_->Violate(absl::StrFormat("request %d, choice %d: attempt %d begins while %d runs",
                                      submit.attempt.request.counter, choice,
                                      submit.attempt.attempt, entry->second.attempt.attempt));
    }
    entry->second = {.attempt = submit.attempt, .session = session, .sent = sent};
  }
  UpdateBook();
  if (connection->peer->id().incarnation != connection->peer_incarnation) {
    AskedFor(submit)->misdirected = true;  // Even if that life ends before it comes.
  }
  connection->session->Send(0, [worker = connection->peer, to = connection->worker_session,
                                meant_for = connection->peer_incarnation,
                                submit] { worker->OnSubmit(to, meant_for, submit); });
}

bool SimulatedRouter::Knows(const SimulatedWorker& worker) const {
  return worker.accepting() && owner_->fleet().Find(worker.id()) != nullptr;
}

int32_t SimulatedRouter::KindOf(const AskedRequest& asked) const {
  const SimulationOptions& options = world_->options();
  const int64_t tokens = static_cast<int64_t>(asked.prompt.size());
  const int64_t least = tokens + (asked.open_ended ? 2 : asked.sampling.max_tokens + 1);
  if (options.unequal || least > options.shape.offered_tokens()) return -1;
  const int32_t from = DisaggregateFromTokens(options.disaggregate);
  if (from == 0 || tokens < from) return 0;
  // A prompt that a window lets a smaller pool decode is computed for others by a larger one only.
  return tokens <= int64_t{options.shape.num_blocks} * options.shape.block_tokens ? 1 : -1;
}

AskedRequest* SimulatedRouter::AskedFor(const Submit& submit) {
  AskedRequest* asked = world_->book()->Find(submit.attempt.request);
  if (asked != nullptr) return asked;
  for (const auto& client : clients_) {  // It is sent before Ask has heard its number.
    if (client->id().counter == 0 && !client->ended()) asked = client->asked();
  }
  return asked;
}

void SimulatedRouter::CheckFits(const Connection& connection, const Submit& submit) {
  AskedRequest* const asked = AskedFor(submit);
  const auto complain = [&](const std::string& what) {
    world_->Violate(
        absl::StrFormat("%s, request %d: %s", process_.name, submit.attempt.request.counter, what));
  };
  const int64_t total = submit.spec.prompt_tokens + int64_t{submit.spec.sampling.max_tokens};
  if (asked->open_ended) {
    asked->open_ended = false;
    const bool known = world_->offers()->contains(static_cast<int32_t>(total));
    const int32_t fixed = submit.spec.sampling.max_tokens;
    if (fixed > asked->sampling.max_tokens || (fixed < asked->sampling.max_tokens && !known)) {
      complain(absl::StrFormat("its length is fixed to %d tokens", total));
    }
    asked->sampling.max_tokens = fixed;
    asked->sampling.min_tokens = submit.spec.sampling.min_tokens;
  }
  if (submit.spec.sampling.max_tokens != asked->sampling.max_tokens) {
    complain(absl::StrFormat("%d tokens were promised, %d are asked for",
                             asked->sampling.max_tokens, submit.spec.sampling.max_tokens));
  }
  const SimulatedWorker& worker = *connection.peer;
  if (worker.id().incarnation == connection.peer_incarnation &&
      worker.shape().offered_tokens() < total) {
    complain(absl::StrFormat("%d tokens go to %s, which holds %d", total, worker.address(),
                             worker.shape().offered_tokens()));
  }
}

void SimulatedRouter::NameAnyPeer(const SimulatedWorker& worker, Submit* submit) {
  const auto& workers = world_->workers();
  const SimulatedWorker& peer = *workers[world_->random()->Below(workers.size())];
  if (&peer == &worker || !peer.accepting() || !CheckPeerTerms(worker.terms(), peer.terms()).ok()) {
    return;
  }
  submit->prefill = {.worker = peer.id(), .address = peer.address()};
  submit->disaggregate_from_tokens = 1;
}

void SimulatedRouter::SendCancel(SessionId session, const tandem::Cancel& cancel) {
  NotLive(cancel.attempt, session);
  Connection* const connection = Find(session);
  if (connection == nullptr) return;
  if (const std::string what = OutOfRange(cancel); !what.empty()) {
    world_->Violate(process_.name + " says " + what);
  }
  const bool overtake = world_->random()->Chance(world_->network()->faults().overtaking_cancel);
  connection->session->Send(
      0,
      [worker = connection->peer, to = connection->worker_session, cancel] {
        worker->OnCancel(to, cancel);
      },
      overtake);
}

void SimulatedRouter::CloseSession(SessionId session, std::string_view why) {
  world_->Log(process_.name, why, session);
  Connection* const connection = Find(session);
  if (connection == nullptr) return;
  for (const auto& [choice, live] : live_) {
    AskedRequest* const asked = world_->book()->Find(choice.first);
    if (asked != nullptr && live.session == session) asked->cut_short.insert(live.attempt.attempt);
  }
  const auto link = connection->session;
  SessionOver(session);
  link->Close(0);
}

void SimulatedRouter::RestartWatch(const WorkerId& worker) {
  for (auto& [address, connection] : connections_) {
    if (connection.worker != worker || connection.watch == nullptr) continue;
    connection.watch->Close(0);
    connection.watch = nullptr;
    owner_->OnWatchLost(worker);
  }
}

}  // namespace tandem
