// Hostile peers that are dialled.

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/protocol/reservation_table.h"
#include "runtime/transport/frame_wire.h"
#include "services/server/channel.h"
#include "services/server/metrics_registry.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/fuzz/session_peers_internal.h"

namespace tandem {
namespace {

template <typename Service>
std::unique_ptr<grpc::Server> Serve(const std::vector<Service*>& services, int* port) {
  grpc::ServerBuilder builder;
  ConfigureServer(/*liveness_scale=*/20, &builder);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", *port), grpc::InsecureServerCredentials(),
                           port);
  for (Service* const service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  TANDEM_CHECK(server != nullptr && *port != 0) << "port " << *port;
  return server;
}

}  // namespace

// ---- A prefill worker ----

class HostilePrefill::Impl final : public proto::Prefill::Service {
 public:
  Impl(const WorkerRegistration& of, uint64_t seed, MessageBudget* budget)
      : of_(of), seed_(seed), budget_(budget), kv_(this) {
    server_ = Serve<grpc::Service>({this, &kv_}, &port_);
  }
  ~Impl() override {
    stopping_ = true;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  PrefillPeer peer() const {
    return {.worker = {.name = "hostile", .incarnation = seed_ | 1},
            .address = absl::StrCat("127.0.0.1:", port_)};
  }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::ToDecode, proto::ToPrefill>* stream) override {
    Random random(Mix64(seed_ + sessions_++));
    proto::ToPrefill message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    proto::ToDecode answer;
    PrefillHello hello{.terms = of_.terms,
                       .worker = {.name = message.hello().expected().name(),
                                  .incarnation = message.hello().expected().incarnation()},
                       .transport_address = message.hello().transport_address()};
    ToProto(hello, answer.mutable_hello());
    if (random.Chance(0.05)) Perturb(&answer, &random);
    if (!stream->Write(answer)) return grpc::Status::OK;
    std::thread reader([&] {
      proto::ToPrefill in;
      while (stream->Read(&in)) Overhear(in);
      context->TryCancel();
    });
    Mouth<proto::ToDecode> mouth(&random, 0.02);
    for (uint64_t i = random.Between(50, 5'000); i > 0 && !stopping_ && budget_->Take(); --i) {
      if (!stream->Write(mouth.Next(Says(&random)))) break;
    }
    context->TryCancel();
    reader.join();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "had enough");
  }

 private:
  class KvService final : public v1::Kv::Service {
   public:
    explicit KvService(Impl* impl) : impl_(impl) {}
    grpc::Status Frames(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::Frame, v1::FramesRequest>* writer) override {
      Random random(Mix64(impl_->seed_ ^ 0x5eed ^ impl_->streams_++));
      for (uint64_t i = random.Between(1, 1'000);
           i > 0 && !impl_->stopping_ && impl_->budget_->Take(); --i) {
        if (!writer->Write(impl_->Frame(&random))) break;
      }
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "had enough");
    }

   private:
    Impl* const impl_;
  };

  void Overhear(const proto::ToPrefill& message) {
    const auto heard = FromProto(message);
    if (!heard.ok()) return;
    if (const auto* submit = std::get_if<PrefillSubmit>(&*heard)) jobs_.Add(submit->job);
    if (const auto* grant = std::get_if<Grant>(&*heard)) reservations_.Add(grant->reservation);
  }

  proto::ToDecode Says(Random* random) {
    const JobId job = jobs_.Any(random, FuzzJob(random));
    PrefillToDecode said;
    switch (random->Below(10)) {
      case 0:
      case 1:
      case 2:
        said = Start{.job = job, .cached_tokens = static_cast<int32_t>(random->Below(64))};
        break;
      case 3:
        said = PrefillRefused{.job = job, .status = FuzzStatus(random)};
        break;
      case 4:
        said = Progress{.job = job};
        break;
      case 5:
      case 6: {
        FirstToken first{.job = job, .tokens = {FuzzToken(random)}};
        if (random->Chance(0.3)) first.tokens.resize(3, FuzzToken(random));
        if (random->Chance(0.1)) first.prompt_logprobs.resize(random->Below(90), FuzzToken(random));
        said = std::move(first);
        break;
      }
      case 7:
      case 8:
        said = Done{.job = job, .num_frames = static_cast<int32_t>(random->Below(8))};
        break;
      default:
        said = Renew{.jobs = {job, FuzzJob(random)}};
    }
    proto::ToDecode message;
    ToProto(said, &message);
    return message;
  }

  v1::Frame Frame(Random* random) {
    std::string payload(static_cast<size_t>(of_.kv.block_bytes), 'k');
    payload.front() = static_cast<char>(random->Below(256));
    FrameHeader header{
        .reservation = reservations_.Any(
            random, {.index = static_cast<uint32_t>(random->Below(4)), .generation = 1}),
        .ordinal = static_cast<uint32_t>(random->Below(8)),
        .length_bytes = static_cast<uint32_t>(of_.kv.block_bytes)};
    if (random->Chance(0.1))
      header = ProbeHeader(static_cast<int32_t>(random->Below(3)), 3, of_.kv.block_bytes);
    if (random->Chance(0.002)) header.shard.count = 2;
    header.crc32c = FrameChecksum(header, Crc32c(payload.data(), payload.size()));
    if (random->Chance(0.1)) header.crc32c ^= 1;
    if (random->Chance(0.002)) payload.pop_back();
    if (random->Chance(0.01)) header.ordinal = static_cast<uint32_t>(random->Next());
    uint8_t packed[kFrameHeaderBytes];
    PackFrameHeader(header, packed);
    v1::Frame frame;
    frame.set_header(packed, sizeof(packed));
    frame.set_payload(payload);
    if (random->Chance(0.001)) Perturb(&frame, random);
    return frame;
  }

  const WorkerRegistration of_;
  const uint64_t seed_;
  MessageBudget* const budget_;
  KvService kv_;
  std::atomic<uint64_t> sessions_{0}, streams_{0};
  std::atomic<bool> stopping_{false};
  Overheard<JobId> jobs_;
  Overheard<Reservation> reservations_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

HostilePrefill::HostilePrefill(const WorkerRegistration& of, uint64_t seed, MessageBudget* budget)
    : impl_(std::make_unique<Impl>(of, seed, budget)) {}
HostilePrefill::~HostilePrefill() = default;
PrefillPeer HostilePrefill::peer() const { return impl_->peer(); }

// ---- A worker of a router ----

class HostileWorker::Impl final : public proto::Worker::Service {
 public:
  Impl(int port, const WorkerRegistration& like, uint64_t seed, MessageBudget* budget)
      : like_(like), seed_(seed), budget_(budget), port_(port) {
    like_.worker.name = "hostile";
    server_ = Serve<grpc::Service>({this}, &port_);
  }
  ~Impl() override {
    stopping_ = true;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  int port() const { return port_; }

  grpc::Status Watch(grpc::ServerContext*, const proto::WatchRequest*,
                     grpc::ServerWriter<proto::WatchEvent>* writer) override {
    Random random(Mix64(seed_ + 1'000 + streams_++));
    Mouth<proto::WatchEvent> mouth(&random, 0.05);
    Say(writer, WatchUpdate(Registration(&random)));
    Say(writer, WatchUpdate(KvEvents{.snapshot = true}));
    while (!stopping_ && budget_->Take()) {
      proto::WatchEvent event;
      ToProto(Update(&random), &event);
      if (!writer->Write(mouth.Next(std::move(event)))) break;
    }
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "had enough");
  }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::StepBatch, proto::ToWorker>* stream) override {
    Random random(Mix64(seed_ + 2'000 + streams_++));
    proto::StepBatch hello;
    hello.set_worker_incarnation(incarnation_);
    if (!stream->Write(hello)) return grpc::Status::OK;
    std::thread reader([&] {
      proto::ToWorker in;
      while (stream->Read(&in)) {
        const auto command = FromProto(in);
        if (!command.ok()) continue;
        if (const auto* submit = std::get_if<Submit>(&*command)) submits_.Add(*submit);
      }
      context->TryCancel();
    });
    Mouth<proto::StepBatch> mouth(&random, 0.02);
    for (uint64_t i = random.Between(50, 3'000); i > 0 && !stopping_ && budget_->Take(); --i) {
      proto::StepBatch batch;
      ToProto(Batch(&random), &batch);
      if (!stream->Write(mouth.Next(std::move(batch)))) break;
    }
    context->TryCancel();
    reader.join();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "had enough");
  }

  grpc::Status Control(grpc::ServerContext*, const proto::ControlRequest*,
                       proto::ControlResponse* response) override {
    Random random(Mix64(seed_ + 3'000 + streams_++));
    MetricsRegistry registry;
    registry.Histogram("tandem_h", "Help.", {1, 2}).Observe(1);
    registry.Counter("tandem_c_total", "Help.", {{"a", "b"}}).Increment();
    MetricsToProto(registry.Collect(), response->mutable_metrics());
    for (uint64_t i = random.Below(4); i > 0; --i) Perturb(response, &random);
    return grpc::Status::OK;
  }

 private:
  template <typename Writer>
  static void Say(Writer* writer, const WatchUpdate& update) {
    proto::WatchEvent event;
    ToProto(update, &event);
    writer->Write(event);
  }

  // Lives come and go, and come again.
  WorkerRegistration Registration(Random* random) {
    WorkerRegistration registration = like_;
    if (random->Chance(0.2)) incarnation_ = random->Between(1, 4);
    registration.worker.incarnation = incarnation_;
    const WorkerRole roles[] = {WorkerRole::kPrefill, WorkerRole::kDecode, WorkerRole::kHybrid};
    registration.role = roles[random->Below(3)];
    registration.supervised = random->Chance(0.5);
    for (uint64_t life = random->Below(3); life > 0; --life) {
      registration.ended_lives.push_back(
          {.incarnation = life, .cause = static_cast<EndCause>(random->Below(3))});
    }
    return registration;
  }

  WatchUpdate Update(Random* random) {
    if (random->Chance(0.1)) return Registration(random);
    if (random->Chance(0.5)) {
      Heartbeat beat{.draining = random->Chance(0.02)};
      const int32_t most[] = {0, 3, 1 << 24};
      beat.load = {.blocks = {.free = 10, .total = 20},
                   .running_sequences = most[random->Below(3)],
                   .waiting_sequences = most[random->Below(3)],
                   .waiting_prompt_tokens = random->Chance(0.1) ? int64_t{1} << 56 : 5,
                   .has_work = random->Chance(0.5),
                   .since_progress_us = random->Chance(0.05) ? int64_t{1} << 56 : 0};
      return beat;
    }
    KvEvents events{.first_sequence = random->Below(50), .snapshot = random->Chance(0.2)};
    for (uint64_t i = random->Below(5); i > 0; --i) events.stored.push_back(Hash(random));
    for (uint64_t i = random->Below(5); i > 0; --i) events.removed.push_back(Hash(random));
    return events;
  }

  static BlockHash Hash(Random* random) {
    BlockHash hash;
    hash.bytes.front() = static_cast<uint8_t>(random->Below(20));
    return hash;
  }

  StepBatch Batch(Random* random) {
    StepBatch batch{.worker_incarnation = incarnation_, .draining = random->Chance(0.01)};
    for (uint64_t i = random->Below(4); i > 0; --i) batch.events.push_back(Event(random));
    if (random->Chance(0.2)) {
      const auto first = static_cast<int32_t>(random->Below(40));
      batch.chunks.push_back(
          {.attempt = Known(random).attempt,
           .first_position = first,
           .end_position = first + static_cast<int32_t>(random->Between(1, 40))});
    }
    return batch;
  }

  Submit Known(Random* random) const {
    Submit unknown{.attempt = FuzzAttempt(seed_, random), .spec = SpecOfPrompt({4}, 1)};
    return submits_.Any(random, std::move(unknown));
  }

  RouterEvent Event(Random* random) {
    const Submit submit = Known(random);
    AttemptId attempt = submit.attempt;
    if (random->Chance(0.05)) ++attempt.attempt;
    switch (random->Below(8)) {
      case 0: {
        PromptEvent event{.attempt = attempt,
                          .cached_tokens = static_cast<int32_t>(random->Below(200)),
                          .by_prefill = random->Chance(0.5)};
        event.prompt_logprobs.resize(random->Below(5), FuzzToken(random));
        return event;
      }
      case 1:
        return RefusedEvent{.attempt = attempt, .status = FuzzStatus(random)};
      case 2:
        return EndedEvent{.attempt = attempt, .status = FuzzStatus(random)};
      case 3:
        return AbortReply{.attempt = attempt, .outcome = AbortOutcome::kAccepted};
      default: {
        TokenEvent event{
            .attempt = attempt,
            .choice = static_cast<int32_t>(random->Below(3)),
            .position = static_cast<int32_t>(submit.spec.token_ids.size() + random->Below(6)),
            .token = FuzzToken(random)};
        if (random->Chance(0.05)) event.finish = FinishReason::kLength;
        return event;
      }
    }
  }

  WorkerRegistration like_;
  const uint64_t seed_;
  MessageBudget* const budget_;
  std::atomic<uint64_t> streams_{0};
  std::atomic<uint64_t> incarnation_{1};
  std::atomic<bool> stopping_{false};
  Overheard<Submit> submits_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

HostileWorker::HostileWorker(int port, const WorkerRegistration& like, uint64_t seed,
                             MessageBudget* budget)
    : impl_(std::make_unique<Impl>(port, like, seed, budget)) {}
HostileWorker::~HostileWorker() = default;
int HostileWorker::port() const { return impl_->port(); }

}  // namespace tandem
