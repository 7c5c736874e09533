#include "tests/fuzz/session_peers.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "services/server/channel.h"
#include "services/server/status_proto.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/fuzz/session_peers_internal.h"
#include "tests/support/raw_http.h"

namespace tandem {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr auto kPatience = std::chrono::seconds(60);

template <typename T>
T Extreme(Random* random) {
  const T values[] = {0,
                      1,
                      static_cast<T>(-1),
                      std::numeric_limits<T>::max(),
                      std::numeric_limits<T>::lowest(),
                      static_cast<T>(random->Below(200)),
                      static_cast<T>(random->Below(uint64_t{1} << 62))};
  return values[random->Below(std::size(values))];
}

std::string ExtremeText(Random* random) {
  const size_t sizes[] = {0, 1, 15, 16, 17, 32, 300, 5'000};
  std::string text(sizes[random->Below(std::size(sizes))], 'x');
  for (char& c : text) c = static_cast<char>(random->Below(256));
  return text;
}

// gRPC refuses text that is not UTF-8 before anybody of ours sees it.
std::string ExtremeField(const FieldDescriptor* field, Random* random) {
  std::string text = ExtremeText(random);
  if (field->type() == FieldDescriptor::TYPE_STRING) {
    for (char& c : text) c = static_cast<char>('!' + (static_cast<uint8_t>(c) % 90));
  }
  return text;
}

void SetExtreme(Message* message, const FieldDescriptor* field, Random* random) {
  const Reflection& r = *message->GetReflection();
  const bool repeated = field->is_repeated();
#define TANDEM_SET(Type, value)         \
  if (repeated) {                       \
    r.Add##Type(message, field, value); \
  } else {                              \
    r.Set##Type(message, field, value); \
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      TANDEM_SET(Int32, Extreme<int32_t>(random));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      TANDEM_SET(Int64, Extreme<int64_t>(random));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      TANDEM_SET(UInt32, Extreme<uint32_t>(random));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      TANDEM_SET(UInt64, Extreme<uint64_t>(random));
      break;
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const float values[] = {0, -1, 1e30f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
      TANDEM_SET(Float, values[random->Below(std::size(values))]);
      break;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double values[] = {0, -1, 1e300, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
      TANDEM_SET(Double, values[random->Below(std::size(values))]);
      break;
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      TANDEM_SET(Bool, random->Chance(0.5));
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      TANDEM_SET(EnumValue, static_cast<int>(random->Below(9)));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      TANDEM_SET(String, ExtremeField(field, random));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
#undef TANDEM_SET
}

template <typename Stub, typename Stream>
void Drain(Stream* stream) {
  Stub message;
  while (stream->Read(&message)) {
  }
}

proto::WatchRequest WatchRequest() {
  proto::WatchRequest request;
  request.set_router("fuzz");
  request.set_protocol_min(kProtocolMin);
  request.set_protocol_max(kProtocolMax);
  return request;
}

SamplingParams FuzzSampling(Random* random) {
  SamplingParams sampling;
  sampling.temperature = random->Chance(0.5) ? 0 : 1;
  sampling.seed = random->Next();
  sampling.max_tokens = static_cast<int32_t>(random->Between(1, 12));
  sampling.num_logprobs = random->Chance(0.2) ? 2 : -1;
  sampling.num_prompt_logprobs = random->Chance(0.1) ? 1 : -1;
  if (random->Chance(0.2)) sampling.stop_token_ids = {5, 1 << 30};
  if (random->Chance(0.2)) {
    sampling.logit_bias = {{static_cast<int32_t>(random->Below(1'000)), -100.0f}, {5'000, 7.5f}};
    if (random->Chance(0.5)) sampling.logit_bias.pop_back();  // Else of no model's vocabulary.
  }
  return sampling;
}

std::vector<int32_t> FuzzTokens(Random* random, int32_t most) {
  std::vector<int32_t> tokens(random->Between(1, most));
  // Few beginnings, so that prefixes are shared.
  for (int32_t& token : tokens) token = static_cast<int32_t>(random->Below(3)) + 4;
  if (random->Chance(0.5)) tokens.back() = static_cast<int32_t>(random->Below(kFuzzVocabulary));
  return tokens;
}

template <typename Wanted>
void FillRequest(Wanted* submit, int32_t longest, Random* random) {
  std::vector<int32_t> tokens = FuzzTokens(random, longest);
  submit->spec = SpecOfPrompt(std::move(tokens), random->Chance(0.2) ? 3 : 1);
  submit->spec.sampling = FuzzSampling(random);
  submit->spec.time_left_us = FuzzTimeLeft(random);
  submit->spec.runs_alone = random->Chance(0.05);
}

proto::ToWorker RouterSays(const WorkerRegistration& of, const PrefillPeer& hostile,
                           uint64_t router, Random* random) {
  proto::ToWorker message;
  if (random->Chance(0.5)) {
    ToProto(RouterCommand(Cancel{.attempt = FuzzAttempt(router, random),
                                 .time_left_us = FuzzTimeLeft(random)}),
            &message);
    return message;
  }
  Submit submit{.attempt = FuzzAttempt(router, random), .model = of.model};
  FillRequest(&submit, std::min(100, of.max_model_tokens / 2), random);
  if (random->Chance(0.5)) {
    submit.prefill = hostile;
    submit.prefill.worker.incarnation = 1 + random->Below(1'000);  // Each is paused for itself.
    submit.disaggregate_from_tokens = 1;
  }
  if (random->Chance(0.02)) {
    submit.prefill = {.worker = {.name = "nobody", .incarnation = 1}, .address = "127.0.0.1:1"};
  }
  ToProto(RouterCommand(std::move(submit)), &message);
  return message;
}

proto::ToPrefill DecodeSays(const WorkerRegistration& of, uint64_t router, Random* random) {
  const JobId job = FuzzJob(random);
  DecodeToPrefill said;
  switch (random->Below(8)) {
    case 0:
    case 1: {
      PrefillSubmit submit{.job = job, .attempt = FuzzAttempt(router, random)};
      FillRequest(&submit, std::min(100, of.max_model_tokens / 2), random);
      const auto num_tokens = static_cast<int32_t>(submit.spec.token_ids.size());
      submit.num_blocks = (num_tokens + of.kv.block_tokens - 1) / of.kv.block_tokens;
      submit.first_block = static_cast<int32_t>(random->Between(0, submit.num_blocks));
      said = std::move(submit);
      break;
    }
    case 2:
    case 3:
      said = Grant{.job = job,
                   .reservation = {.index = static_cast<uint32_t>(random->Below(4)),
                                   .generation = static_cast<uint32_t>(random->Between(1, 9))}};
      break;
    case 4:
      said = Resend{.job = job, .ordinal = static_cast<int32_t>(random->Below(8))};
      break;
    case 5:
      said = Committed{.job = job};
      break;
    case 6:
      said = PrefillCancel{.job = job, .time_left_us = FuzzTimeLeft(random)};
      break;
    default:
      said = Renew{.jobs = {job, FuzzJob(random)}};
  }
  proto::ToPrefill message;
  ToProto(said, &message);
  return message;
}

}  // namespace

SampledToken FuzzToken(Random* random) {
  SampledToken token{.token = static_cast<int32_t>(random->Below(kFuzzVocabulary))};
  if (random->Chance(0.02)) token.token = Extreme<int32_t>(random) & INT32_MAX;
  return token;
}

absl::Status FuzzStatus(Random* random) {
  const absl::StatusCode codes[] = {
      absl::StatusCode::kUnavailable,      absl::StatusCode::kResourceExhausted,
      absl::StatusCode::kInternal,         absl::StatusCode::kFailedPrecondition,
      absl::StatusCode::kCancelled,        absl::StatusCode::kDataLoss,
      absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInvalidArgument};
  return absl::Status(codes[random->Below(std::size(codes))], "said by a fuzzer");
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  return DialControl(address, /*liveness_scale=*/20);
}

void Perturb(Message* message, Random* random) {
  const auto* const descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const FieldDescriptor* field =
      descriptor->field(static_cast<int>(random->Below(descriptor->field_count())));
  const Reflection& r = *message->GetReflection();
  // In a oneof mostly the member that is set.
  if (field->real_containing_oneof() != nullptr && random->Chance(0.9)) {
    const FieldDescriptor* const set =
        r.GetOneofFieldDescriptor(*message, field->real_containing_oneof());
    if (set != nullptr) field = set;
  }
  if (random->Chance(0.1)) {
    r.ClearField(message, field);
  } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    SetExtreme(message, field, random);
  } else if (!field->is_repeated()) {
    Perturb(r.MutableMessage(message, field), random);
  } else if (r.FieldSize(*message, field) > 0) {
    const auto index = static_cast<int>(random->Below(r.FieldSize(*message, field)));
    if (random->Chance(0.2)) {
      const std::unique_ptr<Message> copy(r.GetRepeatedMessage(*message, field, index).New());
      copy->CopyFrom(r.GetRepeatedMessage(*message, field, index));
      r.AddMessage(message, field)->CopyFrom(*copy);
    } else {
      Perturb(r.MutableRepeatedMessage(message, field, index), random);
    }
  } else {
    Perturb(r.AddMessage(message, field), random);
  }
}

absl::StatusOr<WorkerRegistration> RegistrationOf(const std::string& address) {
  const auto stub = proto::Worker::NewStub(OpenChannel(address));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = stub->Watch(&context, WatchRequest());
  proto::WatchEvent event;
  if (!stream->Read(&event)) return FromGrpcStatus(stream->Finish());
  context.TryCancel();
  const auto update = FromProto(event);
  if (!update.ok()) return update.status();
  const auto* const registration = std::get_if<WorkerRegistration>(&*update);
  if (registration == nullptr) return absl::UnavailableError("a Watch without a registration");
  return *registration;
}

bool ActAsRouter(const std::string& address, const WorkerRegistration& of,
                 const PrefillPeer& hostile, uint64_t seed, MessageBudget* budget) {
  Random random(seed);
  Mouth<proto::ToWorker> mouth(&random, 0.1);
  const auto stub = proto::Worker::NewStub(OpenChannel(address));
  bool reached = false;
  while (!budget->spent()) {
    grpc::ClientContext context;
    const auto stream = stub->Session(&context);
    proto::StepBatch hello;
    if (!stream->Read(&hello)) {
      stream->Finish();
      if (!reached) return false;
      continue;
    }
    reached = true;
    std::thread reader([&] { Drain<proto::StepBatch>(stream.get()); });
    for (uint64_t i = random.Between(1, 3'000); i > 0 && budget->Take(); --i) {
      if (!stream->Write(mouth.Next(RouterSays(of, hostile, seed, &random)))) break;
    }
    if (random.Chance(0.5)) stream->WritesDone();
    context.TryCancel();
    reader.join();
    stream->Finish();
  }
  return true;
}

bool ActAsDecodeWorker(const std::string& address, const WorkerRegistration& of, uint64_t seed,
                       MessageBudget* budget) {
  Random random(seed);
  Mouth<proto::ToPrefill> mouth(&random, 0.05);
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(address);
  const auto stub = proto::Prefill::NewStub(channel);
  const auto kv = v1::Kv::NewStub(OpenChannel(address));
  bool reached = false;
  while (!budget->spent()) {
    grpc::ClientContext context;
    const auto stream = stub->Session(&context);
    std::string token(16, 'f');
    for (char& c : token) c = static_cast<char>(random.Below(256));
    const PrefillHello hello{.terms = of.terms,
                             .worker = {.name = "fuzz", .incarnation = seed | 1},
                             .transport_address = token};
    proto::ToPrefill first;
    ToProto(hello, first.mutable_hello());
    if (reached && random.Chance(0.1)) Perturb(&first, &random);
    proto::ToDecode answer;
    if (!budget->Take() || !stream->Write(first) || !stream->Read(&answer)) {
      context.TryCancel();
      stream->Finish();
      if (!reached) return false;
      continue;
    }
    reached = true;
    std::thread reader([&] { Drain<proto::ToDecode>(stream.get()); });
    // The frame stream comes at once, late, or not at all; sometimes nobody reads it.
    grpc::ClientContext frames_context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::FramesRequest, v1::Frame>> frames;
    std::thread frame_reader;
    const uint64_t said = random.Between(1, 2'000);
    const uint64_t opens_at = random.Below(4) == 0 ? said + 1 : random.Below(said);
    for (uint64_t i = 0; i < said && budget->Take(); ++i) {
      if (i == opens_at) {
        v1::FramesRequest request;
        request.set_token(token);
        frames = kv->Frames(&frames_context);
        frames->Write(request);
        if (random.Chance(0.8)) frame_reader = std::thread([&] { Drain<v1::Frame>(frames.get()); });
      }
      if (!stream->Write(mouth.Next(DecodeSays(of, seed, &random)))) break;
    }
    context.TryCancel();
    frames_context.TryCancel();
    reader.join();
    if (frame_reader.joinable()) frame_reader.join();
    if (frames != nullptr) frames->Finish();
    stream->Finish();
  }
  return true;
}

void ActAsClient(int http_port, uint64_t seed, MessageBudget* budget) {
  Random random(seed);
  while (budget->Take()) {
    std::string prompt;
    for (const int32_t token : FuzzTokens(&random, 60)) absl::StrAppend(&prompt, ",", token);
    const std::string body = absl::StrCat(R"({"model":"default","temperature":0,"max_tokens":)",
                                          random.Between(1, 8), R"(,"n":)", random.Between(1, 2),
                                          R"(,"stream":)", random.Chance(0.5) ? "true" : "false",
                                          R"(,"timeout":0.5,"prompt":[)", prompt.substr(1), "]}");
    RawHttp connection(http_port);
    connection.SendRequest("/v1/completions", body);
    if (random.Chance(0.8)) connection.Read();
  }
}

std::string FuzzWorker(const std::string& address, uint64_t seed, MessageBudget* budget) {
  const absl::StatusOr<WorkerRegistration> of = RegistrationOf(address);
  if (!of.ok()) return of.status().ToString();
  {
    HostilePrefill hostile(*of, Mix64(seed), budget);
    std::vector<std::thread> peers;
    for (uint64_t i = 1; i <= 2; ++i) {
      peers.emplace_back(
          [&, i] { ActAsRouter(address, *of, hostile.peer(), Mix64(seed + 10 * i), budget); });
      peers.emplace_back(
          [&, i] { ActAsDecodeWorker(address, *of, Mix64(seed + 10 * i + 1), budget); });
    }
    for (std::thread& peer : peers) peer.join();
  }
  return CheckWorkerAtRest(address, *of);
}

std::string CheckWorkerAtRest(const std::string& address, const WorkerRegistration& of) {
  const auto stub = proto::Worker::NewStub(OpenChannel(address));
  {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto stream = stub->Watch(&context, WatchRequest());
    proto::WatchEvent event;
    std::string last = "nothing";
    bool at_rest = false;
    while (!at_rest && stream->Read(&event)) {
      if (event.has_registration() &&
          event.registration().worker().incarnation() != of.worker.incarnation) {
        return "the worker was replaced";
      }
      if (!event.has_heartbeat()) continue;
      last = event.heartbeat().ShortDebugString();
      const proto::BlockCounts& blocks = event.heartbeat().load().blocks();
      at_rest = blocks.held() == 0 && blocks.in_flight() == 0 && blocks.quarantined() == 0 &&
                event.heartbeat().load().running_sequences() == 0 &&
                event.heartbeat().load().waiting_sequences() == 0;
    }
    context.TryCancel();
    if (!at_rest) return absl::StrCat("no rest; the last heartbeat: ", last);
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = stub->Session(&context);
  Submit submit{.attempt = {.request = {.router_incarnation = 1, .counter = 1}, .attempt = 1},
                .spec = SpecOfPrompt({4, 5, 6, 7, 8}, 1),
                .model = of.model};
  submit.spec.time_left_us = 60'000'000;
  submit.spec.sampling.temperature = 0;
  submit.spec.sampling.max_tokens = 4;
  proto::ToWorker message;
  ToProto(RouterCommand(submit), &message);
  stream->Write(message);
  proto::StepBatch batch;
  std::string heard = "nothing";
  while (stream->Read(&batch)) {
    for (const proto::RouterEvent& event : batch.events()) {
      heard = event.ShortDebugString();
      // Its queue still holds what the peers have said: as a router does, it comes again.
      if (event.has_refused() && event.refused().retry_after_us() > 0) stream->Write(message);
      if (!event.has_token() || event.token().finish() == proto::FINISH_REASON_NONE) continue;
      context.TryCancel();
      stream->Finish();
      return "";
    }
  }
  return absl::StrCat("a request was not answered; the last event: ", heard);
}

}  // namespace tandem
