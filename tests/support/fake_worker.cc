#include "tests/support/fake_worker.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/base/random.h"
#include "services/server/channel.h"
#include "services/server/convert.h"
#include "services/server/fleet_auth.h"
#include "services/server/limits.h"
#include "services/server/metrics_registry.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/test_door.h"

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{50};
constexpr int64_t kLabelBytes = kMaxTextBytes;

SampledToken WithLogprobs(int32_t token, const SamplingParams& sampling) {
  SampledToken out{.token = token};
  if (sampling.num_logprobs < 0) return out;
  out.logprob = -0.125f * static_cast<float>(token % 7 + 1);
  out.rank = 1;
  for (int i = 0; i < sampling.num_logprobs; ++i) {
    out.top.push_back({.token = i == 0 ? token : 4 + i, .logprob = out.logprob - 0.5f * i});
  }
  return out;
}

}  // namespace

int32_t FakeToken(const FakeWorkerOptions& options, const std::vector<int32_t>& prompt,
                  uint64_t seed, int32_t choice, int32_t position) {
  const size_t generated = position - prompt.size();
  if (choice == 0 && generated < options.script.size()) return options.script[generated];
  uint64_t hash = Mix64(seed + 31 * choice + 1);
  for (const int32_t id : prompt) hash = Mix64(hash ^ static_cast<uint64_t>(id));
  hash = Mix64(hash + static_cast<uint64_t>(position));
  const uint64_t range = options.vocab_size - options.vocab_first;
  return options.vocab_first + static_cast<int32_t>(hash % range);
}

class FakeWorker::Impl final : public v1::Worker::Service {
 public:
  explicit Impl(const FakeWorkerOptions& options)
      : options_(options),
        incarnation_(std::random_device{}() | 1),
        door_(options.secret),
        stalled_(options.stalled) {
    registry_.Counter("tandem_fake_submits_total", "Submits.");
    registry_.Gauge("tandem_fake_running", "Running.");
    grpc::ServerBuilder builder;
    ConfigureServer(/*liveness_scale=*/1, &builder);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // What is not read stays there.
    builder.AddListeningPort("127.0.0.1:" + std::to_string(options.port),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    builder.RegisterService(door_.service());
    server_ = builder.BuildAndStart();
    TANDEM_CHECK(server_ != nullptr && port_ != 0) << "port " << options.port;
    door_.ListensOn(":" + std::to_string(port_));
  }

  ~Impl() override {
    stopping_ = true;
    changed_.SignalAll();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override {
    if (const auto refused = Refusal(context, kWatchMethod)) return *refused;
    if (request->protocol_min() != kProtocolMin || request->protocol_max() != kProtocolMax) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another protocol");
    }
    const int watch = CountWatch();
    const std::string name = options_.name + (options_.renames ? "-" + std::to_string(watch) : "");
    WorkerRegistration registration{
        .worker = {name, incarnation_},
        .role = options_.role,
        .model = options_.model,
        .terms = {.kv_class = "fake-class",
                  .numerics_id = options_.numerics_id,
                  .transport = "grpc"},
        .kv = {.block_tokens = 16, .num_blocks = 1024, .block_bytes = 4096},
        .max_model_tokens = options_.max_model_tokens,
        .max_sequences = 64};
    if (options_.registers_last) Say(writer, Heartbeat{});
    Say(writer, registration);
    if (options_.ends_watches) return grpc::Status::OK;
    if (options_.num_full_snapshots == 0) {
      Say(writer, KvEvents{.first_sequence = 0, .snapshot = true, .stored = options_.cached});
    }
    SayFullSnapshots(writer);
    while (!stopping_ && !context->IsCancelled()) {
      if (options_.registers_again) Say(writer, registration);
      Heartbeat heartbeat;
      heartbeat.load.blocks = {.free = 1024, .total = 1024};
      heartbeat.load.running_sequences = num_running();
      heartbeat.load.has_work = stalled_;
      heartbeat.load.since_progress_us = stalled_ ? 3'600'000'000 : 0;
      if (!Say(writer, heartbeat)) break;
      MutexLock lock(&mu_);
      ++num_heartbeats_;
      if (!stopping_) changed_.WaitFor(&mu_, kHeartbeat);
    }
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker ends");
  }

  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::StepBatch, v1::ToWorker>* stream) override {
    if (const auto refused = Refusal(context, kWorkerSessionMethod)) return *refused;
    {
      MutexLock lock(&mu_);
      ++num_sessions_;
    }
    std::atomic<bool> over{false};
    std::map<AttemptId, Sequences> mine;  // Under mu_.
    v1::StepBatch hello;
    hello.set_worker_incarnation(incarnation_ + (options_.other_incarnation ? 1 : 0));
    if (!options_.silent_sessions) stream->Write(hello);
    std::thread steps([&] {
      while (!over && !stopping_ && Step(stream, &mine)) {
      }
      context->TryCancel();
    });
    while (options_.reads_no_commands && !stopping_ && !context->IsCancelled()) {
      MutexLock lock(&mu_);
      changed_.WaitFor(&mu_, std::chrono::milliseconds(10));
    }
    v1::ToWorker message;
    while (stream->Read(&message)) {
      absl::StatusOr<RouterCommand> command = FromProto(message);
      TANDEM_CHECK(command.ok()) << command.status();
      MutexLock lock(&mu_);
      if (auto* submit = std::get_if<Submit>(&*command)) {
        registry_.Counter("tandem_fake_submits_total", "Submits.").Increment();
        ++num_submits_;
        last_submit_ = *submit;
        Sequences sequences{.submit = *submit};
        for (const int32_t choice : submit->spec.choices) {
          sequences.next[choice] = static_cast<int32_t>(submit->spec.token_ids.size());
        }
        num_running_ += static_cast<int>(submit->spec.choices.size());
        mine.emplace(submit->attempt, std::move(sequences));
      } else {
        ++num_cancels_;
        End(&mine, std::get<Cancel>(*command).attempt);
      }
      changed_.SignalAll();
    }
    over = true;
    changed_.SignalAll();
    steps.join();
    MutexLock lock(&mu_);
    while (!mine.empty()) End(&mine, mine.begin()->first);
    return grpc::Status::OK;
  }

  grpc::Status Control(grpc::ServerContext* context, const v1::ControlRequest* request,
                       v1::ControlResponse* response) override {
    if (const auto refused = Refusal(context, kControlMethod)) return *refused;
    if (!request->has_metrics()) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "metrics");
    {
      MutexLock lock(&mu_);
      ++num_scrapes_;
      while (options_.holds_metrics && !context->IsCancelled()) {
        changed_.WaitFor(&mu_, std::chrono::milliseconds(10));
      }
    }
    registry_.Gauge("tandem_fake_running", "Running.").Set(num_running());
    const int64_t label_bytes = num_submits() > 0 ? options_.metrics_bytes : 0;
    for (int64_t i = 0; i * kLabelBytes < label_bytes; ++i) {
      std::string label = std::to_string(i);
      label.resize(kLabelBytes, 'l');
      registry_.Gauge("tandem_fake_long", "Long.", {{"label", label}});
    }
    MetricsToProto(registry_.Collect(), response->mutable_metrics());
    return grpc::Status::OK;
  }

  void EndStall() { stalled_ = false; }
  void ReleaseHeld() {
    MutexLock lock(&mu_);
    released_ = true;
    changed_.SignalAll();
  }
  int port() const { return port_; }
  int num_watches() const { return Locked(num_watches_); }
  int num_snapshots() const { return Locked(num_snapshots_); }
  int num_heartbeats() const { return Locked(num_heartbeats_); }
  int num_sessions() const { return Locked(num_sessions_); }
  int num_submits() const { return Locked(num_submits_); }
  int num_connections() const {
    MutexLock lock(&mu_);
    return static_cast<int>(peers_.size());
  }
  int num_cancels() const { return Locked(num_cancels_); }
  int num_scrapes() const { return Locked(num_scrapes_); }
  int num_running() const { return Locked(num_running_); }
  Submit last_submit() const {
    MutexLock lock(&mu_);
    return last_submit_;
  }

 private:
  struct Sequences {
    Submit submit;
    bool prompt_said = false;
    std::map<int32_t, int32_t> next;  // Choice to position.
  };

  std::optional<grpc::Status> Refusal(grpc::ServerContext* context, std::string_view method) {
    {
      MutexLock lock(&mu_);
      peers_.insert(context->peer());
    }
    if (options_.proves_watch_only && method != kWatchMethod) return std::nullopt;
    const absl::Status admitted = door_.Admit(context, method);
    return admitted.ok() ? std::nullopt : std::optional(ToGrpcStatus(admitted));
  }

  int Locked(const int& number) const {
    MutexLock lock(&mu_);
    return number;
  }

  template <typename Update>
  bool Say(grpc::ServerWriter<v1::WatchEvent>* writer, const Update& update) {
    v1::WatchEvent event;
    ToProto(WatchUpdate(update), &event);
    return writer->Write(event);
  }

  int CountWatch() {
    MutexLock lock(&mu_);
    return ++num_watches_;
  }

  void SayFullSnapshots(grpc::ServerWriter<v1::WatchEvent>* writer) {
    KvEvents full{.first_sequence = 0, .snapshot = true};
    full.stored.resize(kMaxHashesPerEvent);
    for (int i = 0; i < options_.num_full_snapshots; ++i) {
      if (!Say(writer, full)) return;
      MutexLock lock(&mu_);
      ++num_snapshots_;
    }
  }

  void End(std::map<AttemptId, Sequences>* mine, const AttemptId& attempt) REQUIRES(mu_) {
    const auto it = mine->find(attempt);
    if (it == mine->end()) return;
    num_running_ -= static_cast<int>(it->second.next.size());
    mine->erase(it);
  }

  // One token for every sequence that is not held. False once the stream is broken.
  bool Step(grpc::ServerReaderWriter<v1::StepBatch, v1::ToWorker>* stream,
            std::map<AttemptId, Sequences>* mine) EXCLUDES(mu_) {
    StepBatch batch{.worker_incarnation = incarnation_};
    {
      MutexLock lock(&mu_);
      std::vector<AttemptId> ended;
      for (auto& [attempt, sequences] : *mine) {
        StepOne(attempt, &sequences, &batch);
        if (sequences.next.empty()) ended.push_back(attempt);
      }
      for (const AttemptId& attempt : ended) End(mine, attempt);
      if (batch.events.empty()) {
        if (!stopping_) changed_.WaitFor(&mu_, std::chrono::milliseconds(20));
        return true;
      }
    }
    v1::StepBatch message;
    ToProto(batch, &message);
    if (!stream->Write(message)) return false;
    return true;
  }

  void StepOne(const AttemptId& attempt, Sequences* sequences, StepBatch* batch) REQUIRES(mu_) {
    const Submit& submit = sequences->submit;
    const std::vector<int32_t> prompt(submit.spec.token_ids.begin(),
                                      submit.spec.token_ids.begin() + submit.spec.prompt_tokens);
    for (auto it = sequences->next.begin(); it != sequences->next.end();) {
      auto& [choice, position] = *it;
      const int32_t generated = position - submit.spec.prompt_tokens;
      if (options_.hold_after_tokens >= 0 && generated >= options_.hold_after_tokens &&
          !released_) {
        ++it;
        continue;
      }
      if (options_.choice_0_begins_last && choice == 0 && generated == 0 &&
          sequences->next.rbegin()->second == position && sequences->next.size() > 1) {
        ++it;
        continue;
      }
      if (!std::exchange(sequences->prompt_said, true)) SayPrompt(attempt, submit, batch);
      const int32_t token =
          FakeToken(options_, prompt, submit.spec.sampling.seed, choice, position);
      TokenEvent event{.attempt = attempt,
                       .choice = choice,
                       .position = position,
                       .token = WithLogprobs(token, submit.spec.sampling)};
      const auto& stops = submit.spec.sampling.stop_token_ids;
      const bool stops_here = std::find(stops.begin(), stops.end(), token) != stops.end();
      if (generated + 1 >= submit.spec.sampling.max_tokens) event.finish = FinishReason::kLength;
      if (stops_here) event.finish = FinishReason::kStop;
      ++position;
      const bool finished = event.finish != FinishReason::kNone;
      batch->events.emplace_back(std::move(event));
      if (finished) --num_running_;
      it = finished ? sequences->next.erase(it) : std::next(it);
    }
  }

  void SayPrompt(const AttemptId& attempt, const Submit& submit, StepBatch* batch) {
    PromptEvent event{.attempt = attempt, .cached_tokens = submit.spec.prompt_tokens / 16 * 16};
    if (submit.spec.sampling.num_prompt_logprobs >= 0) {
      for (int32_t i = 1; i < submit.spec.prompt_tokens; ++i) {
        SampledToken token{.token = submit.spec.token_ids[i], .logprob = -0.5f * i, .rank = 2};
        for (int t = 0; t < submit.spec.sampling.num_prompt_logprobs; ++t) {
          token.top.push_back({.token = 4 + t, .logprob = -0.1f * t});
        }
        event.prompt_logprobs.push_back(std::move(token));
      }
    }
    batch->events.emplace_back(std::move(event));
  }

  const FakeWorkerOptions options_;
  const uint64_t incarnation_;
  TestDoor door_;
  int port_ = 0;
  MetricsRegistry registry_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stalled_;
  mutable Mutex mu_;
  CondVar changed_;
  bool released_ GUARDED_BY(mu_) = false;
  int num_watches_ GUARDED_BY(mu_) = 0, num_snapshots_ GUARDED_BY(mu_) = 0;
  int num_heartbeats_ GUARDED_BY(mu_) = 0, num_sessions_ GUARDED_BY(mu_) = 0;
  int num_submits_ GUARDED_BY(mu_) = 0, num_cancels_ GUARDED_BY(mu_) = 0,
                   num_scrapes_ GUARDED_BY(mu_) = 0, num_running_ GUARDED_BY(mu_) = 0;
  Submit last_submit_ GUARDED_BY(mu_);
  std::set<std::string> peers_ GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

FakeWorker::FakeWorker(const FakeWorkerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
FakeWorker::~FakeWorker() = default;
int FakeWorker::port() const { return impl_->port(); }
std::string FakeWorker::address() const { return "127.0.0.1:" + std::to_string(port()); }
void FakeWorker::ReleaseHeld() { impl_->ReleaseHeld(); }
void FakeWorker::EndStall() { impl_->EndStall(); }
int FakeWorker::num_watches() const { return impl_->num_watches(); }
int FakeWorker::num_snapshots() const { return impl_->num_snapshots(); }
int FakeWorker::num_heartbeats() const { return impl_->num_heartbeats(); }
int FakeWorker::num_sessions() const { return impl_->num_sessions(); }
int FakeWorker::num_submits() const { return impl_->num_submits(); }
int FakeWorker::num_connections() const { return impl_->num_connections(); }
int FakeWorker::num_cancels() const { return impl_->num_cancels(); }
int FakeWorker::num_scrapes() const { return impl_->num_scrapes(); }
int FakeWorker::num_running() const { return impl_->num_running(); }
Submit FakeWorker::last_submit() const { return impl_->last_submit(); }

}  // namespace tandem
