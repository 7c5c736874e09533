#include "services/server/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "services/server/limits.h"
#include "services/server/status_proto.h"
#include "tests/support/wire_cases.h"

namespace tandem {
namespace {

// Struct → message → struct → message: both messages are the same bytes, and none is empty.
template <typename Message, typename Struct>
testing::AssertionResult RoundTrips(const Struct& in) {
  Message first, second;
  ToProto(in, &first);
  const auto read = FromProto(first);
  if (!read.ok()) return testing::AssertionFailure() << read.status() << first.DebugString();
  ToProto(*read, &second);
  if (first.ByteSizeLong() == 0 || first.SerializeAsString() != second.SerializeAsString()) {
    return testing::AssertionFailure() << first.DebugString() << second.DebugString();
  }
  return testing::AssertionSuccess();
}

TEST(ConvertTest, EveryMessageSurvivesTheRoundTrip) {
  for (const RouterCommand& in : WireCommands()) EXPECT_TRUE(RoundTrips<proto::ToWorker>(in));
  for (const RouterEvent& in : WireEvents()) EXPECT_TRUE(RoundTrips<proto::RouterEvent>(in));
  for (const WatchUpdate& in : WireUpdates()) EXPECT_TRUE(RoundTrips<proto::WatchEvent>(in));
  for (const DecodeToPrefill& in : WireToPrefill()) EXPECT_TRUE(RoundTrips<proto::ToPrefill>(in));
  for (const PrefillToDecode& in : WireToDecode()) EXPECT_TRUE(RoundTrips<proto::ToDecode>(in));
  EXPECT_TRUE(RoundTrips<proto::PrefillHello>(WireHello()));
  const StepBatch batch{.worker_incarnation = 7,
                        .draining = true,
                        .events = WireEvents(),
                        .chunks = {WireChunk(), WireChunk()}};
  EXPECT_TRUE(RoundTrips<proto::StepBatch>(batch));
}

// The fields of a message, and of the messages in it, by their full names. A hello is a case of its
// own.
void ListFields(const google::protobuf::Descriptor& type, std::set<std::string>* names) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (field.name() == "hello" || !names->insert(field.full_name()).second) continue;
    if (field.message_type() != nullptr) ListFields(*field.message_type(), names);
  }
}

// The same of those that are set.
void ListSetFields(const google::protobuf::Message& message, std::set<std::string>* names) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    names->insert(field->full_name());
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      ListSetFields(reflection.GetMessage(message, field), names);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      ListSetFields(reflection.GetRepeatedMessage(message, field, i), names);
    }
  }
}

template <typename Message, typename Struct>
std::set<std::string> NeverSet(const std::vector<Struct>& cases) {
  std::set<std::string> all, set, never;
  ListFields(*Message::descriptor(), &all);
  for (const Struct& in : cases) {
    Message message;
    ToProto(in, &message);
    ListSetFields(message, &set);
  }
  std::set_difference(all.begin(), all.end(), set.begin(), set.end(),
                      std::inserter(never, never.end()));
  return never;
}

// What no case sets is written by nobody, or a new field that the cases lack.
TEST(ConvertTest, EveryFieldIsWritten) {
  EXPECT_THAT(NeverSet<proto::ToWorker>(WireCommands()), testing::IsEmpty());
  EXPECT_THAT(NeverSet<proto::RouterEvent>(WireEvents()), testing::IsEmpty());
  EXPECT_THAT(NeverSet<proto::WatchEvent>(WireUpdates()), testing::IsEmpty());
  EXPECT_THAT(NeverSet<proto::ToPrefill>(WireToPrefill()), testing::IsEmpty());
  EXPECT_THAT(NeverSet<proto::ToDecode>(WireToDecode()), testing::IsEmpty());
  EXPECT_THAT(NeverSet<proto::PrefillHello>(std::vector{WireHello()}), testing::IsEmpty());
}

TEST(ConvertTest, ChunksAreNoEvents) {  // A router that does not know such an event refuses it.
  proto::StepBatch message;
  ToProto(StepBatch{.worker_incarnation = 7, .chunks = {WireChunk()}}, &message);
  EXPECT_EQ(message.events_size(), 0);
  const auto read = FromProto(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->chunks, testing::ElementsAre(WireChunk()));
}

TEST(ConvertTest, ChunksOfNoPositionsAreRefused) {
  const auto spoiled = [](void (*spoil)(proto::ChunkBegun*)) {
    proto::StepBatch message;
    ToProto(StepBatch{.worker_incarnation = 7, .chunks = {WireChunk()}}, &message);
    spoil(message.mutable_chunks(0));
    return FromProto(message).status().code();
  };
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(spoiled([](proto::ChunkBegun* c) { c->clear_attempt(); }), kRefused);
  EXPECT_EQ(spoiled([](proto::ChunkBegun* c) { c->set_first_position(-1); }), kRefused);
  EXPECT_EQ(spoiled([](proto::ChunkBegun* c) { c->set_first_position(c->end_position()); }),
            kRefused);
  EXPECT_EQ(spoiled([](proto::ChunkBegun* c) { c->set_end_position(INT32_MAX); }), kRefused);
  EXPECT_EQ(spoiled([](proto::ChunkBegun*) {}), absl::StatusCode::kOk);
}

TEST(ConvertTest, EndedLivesAreCheckedAndBounded) {
  const auto spoiled = [](void (*spoil)(proto::WorkerRegistration*)) {
    proto::WatchEvent message;
    ToProto(WireUpdates()[0], &message);
    spoil(message.mutable_registration());
    return FromProto(message);
  };
  const auto good = spoiled([](proto::WorkerRegistration*) {});
  ASSERT_TRUE(good.ok()) << good.status();
  const auto& registration = std::get<WorkerRegistration>(*good);
  EXPECT_TRUE(registration.supervised);
  EXPECT_EQ(registration.ended_lives, std::get<WorkerRegistration>(WireUpdates()[0]).ended_lives);
  EXPECT_FALSE(spoiled([](proto::WorkerRegistration* r) {
                 r->mutable_ended_lives(0)->clear_incarnation();
               }).ok());
  // A cause that only a later build knows: not from outside, as far as this one can tell.
  const auto later =
      spoiled([](proto::WorkerRegistration* r) { r->mutable_ended_lives(0)->clear_cause(); });
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(std::get<WorkerRegistration>(*later).ended_lives[0].cause, EndCause::kCrash);
  EXPECT_FALSE(spoiled([](proto::WorkerRegistration* r) {
                 const proto::EndedLife life = r->ended_lives(0);
                 for (size_t i = 0; i < kMaxEndedLives; ++i) *r->add_ended_lives() = life;
               }).ok());
}

TEST(ConvertTest, FieldsArriveWhereTheyBelong) {
  proto::ToWorker message;
  ToProto(WireCommands()[0], &message);
  const auto read = FromProto(message);
  ASSERT_TRUE(read.ok()) << read.status();
  const Submit& submit = std::get<Submit>(*read);
  EXPECT_EQ(submit.attempt, WireAttempt());
  EXPECT_THAT(submit.spec.token_ids, testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(submit.spec.prompt_tokens, 4);
  EXPECT_THAT(submit.spec.choices, testing::ElementsAre(2));
  EXPECT_EQ(submit.spec.sampling.seed, 0x8000000000000001u);
  EXPECT_EQ(submit.spec.sampling.num_logprobs, 5);
  EXPECT_EQ(submit.spec.sampling.num_prompt_logprobs, 3);
  EXPECT_EQ(submit.spec.sampling.logit_bias, WireSampling().logit_bias);
  EXPECT_EQ(submit.spec.hash_root, WireHash(1));
  EXPECT_EQ(submit.prefill.address, "127.0.0.1:5000");
  EXPECT_EQ(submit.prefill.worker.incarnation, 5u);
  EXPECT_EQ(submit.disaggregate_from_tokens, 256);
  EXPECT_TRUE(submit.spec.runs_alone);
}

// A round trip does not see two fields or values that are swapped on both ways.
TEST(ConvertTest, WhatIsWrittenIsWhatIsMeant) {
  const auto event = [](size_t which) {
    proto::RouterEvent message;
    ToProto(WireEvents()[which], &message);
    return message.ShortDebugString();
  };
  const auto update = [](const WatchUpdate& said) {
    proto::WatchEvent message;
    ToProto(said, &message);
    return message.ShortDebugString();
  };
  const auto ask = [](size_t which) {
    proto::ToPrefill message;
    ToProto(WireToPrefill()[which], &message);
    return message.ShortDebugString();
  };
  using testing::HasSubstr;
  EXPECT_THAT(event(0), HasSubstr(" cached_tokens: 16 "));
  EXPECT_THAT(event(1), HasSubstr(" choice: 2 position: 31 token { token: 9 logprob: -0.25 "));
  EXPECT_THAT(event(1), HasSubstr(" finish: FINISH_REASON_LENGTH"));
  EXPECT_THAT(event(2), HasSubstr(" finish: FINISH_REASON_STOP"));
  EXPECT_THAT(event(7), HasSubstr(" outcome: ABORT_OUTCOME_ACCEPTED"));
  EXPECT_THAT(event(8), HasSubstr(" outcome: ABORT_OUTCOME_NOT_FOUND"));
  EXPECT_THAT(event(9), HasSubstr(" outcome: ABORT_OUTCOME_TOMBSTONED"));
  EXPECT_THAT(update(WireUpdates()[1]),
              HasSubstr("blocks { free: 1 held: 2 cached: 3 in_flight: 4 quarantined: 5 total: 15 }"
                        " running_sequences: 6 waiting_sequences: 7 waiting_prompt_tokens: 8"));
  EXPECT_THAT(ask(0), HasSubstr(" first_block: 1 num_blocks: 2 "));
  auto registration = std::get<WorkerRegistration>(WireUpdates()[0]);
  for (const auto& [role, name] :
       {std::pair(WorkerRole::kPrefill, "PREFILL"), std::pair(WorkerRole::kDecode, "DECODE"),
        std::pair(WorkerRole::kHybrid, "HYBRID")}) {
    registration.role = role;
    EXPECT_THAT(update(registration), HasSubstr(std::string(" role: WORKER_ROLE_") + name + " "));
    EXPECT_TRUE(RoundTrips<proto::WatchEvent>(WatchUpdate(registration)));
  }
}

TEST(ConvertTest, SubmitWithoutAPrefillPeerHasAnEmptyAddress) {
  Submit submit = std::get<Submit>(WireCommands()[0]);
  submit.prefill = {};
  proto::ToWorker message;
  ToProto(RouterCommand(submit), &message);
  EXPECT_FALSE(message.submit().has_prefill());
  const auto read = FromProto(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<Submit>(*read).prefill, PrefillPeer{});
}

// One field of a good Submit is spoiled; the answer names it.
class BadSubmitTest
    : public testing::TestWithParam<std::pair<const char*, void (*)(proto::Submit*)>> {};

TEST_P(BadSubmitTest, IsRefusedByName) {
  proto::ToWorker message;
  ToProto(WireCommands()[0], &message);
  GetParam().second(message.mutable_submit());
  const auto read = FromProto(message);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), testing::HasSubstr(GetParam().first));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void AddBias(proto::Submit* submit, int32_t token, float bias) {
  proto::TokenBias* const entry = submit->mutable_spec()->mutable_sampling()->add_logit_bias();
  entry->set_token(token);
  entry->set_bias(bias);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadSubmitTest,
    testing::Values(
        std::pair(
            "attempt", +[](proto::Submit* s) { s->clear_attempt(); }),
        std::pair(
            "token_ids", +[](proto::Submit* s) { s->mutable_spec()->set_token_ids(0, -1); }),
        std::pair(
            "prompt_tokens", +[](proto::Submit* s) { s->mutable_spec()->set_prompt_tokens(0); }),
        std::pair(
            "prompt_tokens", +[](proto::Submit* s) { s->mutable_spec()->set_prompt_tokens(6); }),
        std::pair(
            "token_ids", +[](proto::Submit* s) { s->mutable_spec()->clear_token_ids(); }),
        std::pair(
            "generated",
            +[](proto::Submit* s) {
              s->mutable_spec()->mutable_sampling()->set_max_tokens(2);
              s->mutable_spec()->mutable_sampling()->set_min_tokens(0);
              s->mutable_spec()->set_prompt_tokens(1);
            }),
        std::pair(
            "choices", +[](proto::Submit* s) { s->mutable_spec()->clear_choices(); }),
        std::pair(
            "choices", +[](proto::Submit* s) { s->mutable_spec()->set_choices(0, -1); }),
        std::pair(
            "choices", +[](proto::Submit* s) { s->mutable_spec()->set_choices(0, kMaxChoices); }),
        std::pair(
            "temperature",
            +[](proto::Submit* s) {
              s->mutable_spec()->mutable_sampling()->set_temperature(kNan);
            }),
        std::pair(
            "temperature",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_temperature(-1); }),
        std::pair(
            "top_p",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_top_p(0); }),
        std::pair(
            "top_p",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_top_p(kNan); }),
        std::pair(
            "top_k",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_top_k(-1); }),
        std::pair(
            "max_tokens",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_max_tokens(0); }),
        std::pair(
            "min_tokens",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_min_tokens(101); }),
        std::pair(
            "num_logprobs",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_sampling()->set_num_logprobs(-2); }),
        std::pair(
            "num_prompt_logprobs",
            +[](proto::Submit* s) {
              s->mutable_spec()->mutable_sampling()->set_num_prompt_logprobs(kMaxTopLogprobs + 1);
            }),
        std::pair(
            "stop_token_ids",
            +[](proto::Submit* s) {
              for (int i = 0; i < kMaxStopTokenIds; ++i)
                s->mutable_spec()->mutable_sampling()->add_stop_token_ids(1);
            }),
        std::pair(
            "logit_bias: 301 tokens, at most 300",
            +[](proto::Submit* s) {
              for (size_t i = 2; i <= kMaxLogitBias; ++i)
                AddBias(s, static_cast<int32_t>(9 + i), 1);
            }),
        std::pair(
            "logit_bias has token id 9 twice", +[](proto::Submit* s) { AddBias(s, 9, 1); }),
        std::pair(
            "logit_bias has token id -1", +[](proto::Submit* s) { AddBias(s, -1, 1); }),
        std::pair(
            "logit_bias is nan", +[](proto::Submit* s) { AddBias(s, 10, kNan); }),
        std::pair(
            "logit_bias is 101", +[](proto::Submit* s) { AddBias(s, 10, 101); }),
        std::pair(
            "time_left_us", +[](proto::Submit* s) { s->mutable_spec()->set_time_left_us(-1); }),
        std::pair(
            "time_left_us",
            +[](proto::Submit* s) { s->mutable_spec()->set_time_left_us(kMaxDurationUs + 1); }),
        std::pair(
            "hash_root", +[](proto::Submit* s) { s->mutable_spec()->set_hash_root("short"); }),
        std::pair(
            "hash_root: 17 bytes, want 16",
            +[](proto::Submit* s) { s->mutable_spec()->mutable_hash_root()->push_back('x'); }),
        std::pair(
            "model", +[](proto::Submit* s) { s->set_model(std::string(5000, 'a')); }),
        std::pair(
            "prefill.address", +[](proto::Submit* s) { s->mutable_prefill()->clear_address(); }),
        std::pair(
            "prefill.address",
            +[](proto::Submit* s) {
              s->mutable_prefill()->set_address(std::string(kMaxNameBytes + 1, 'a'));
            }),
        std::pair(
            "worker.name", +[](proto::Submit* s) { s->mutable_prefill()->clear_worker(); }),
        std::pair(
            "disaggregate", +[](proto::Submit* s) { s->set_disaggregate_from_tokens(-1); })));

// Whether a good message is refused once `spoil` has changed it.
template <typename Message, typename Struct>
bool Refused(const Struct& good, void (*spoil)(Message*)) {
  Message message;
  ToProto(good, &message);
  EXPECT_TRUE(FromProto(message).ok());
  spoil(&message);
  return FromProto(message).status().code() == absl::StatusCode::kInvalidArgument;
}

// The same of one of several.
template <typename Message, typename Struct>
auto RefusedOf(std::vector<Struct> good) {
  return [good = std::move(good)](size_t which, void (*spoil)(Message*)) {
    return Refused<Message>(good[which], spoil);
  };
}

TEST(ConvertTest, WhatAWorkerTellsItsRouterIsInRange) {
  using Event = proto::RouterEvent;
  const auto refused = RefusedOf<Event>(WireEvents());
  EXPECT_TRUE(refused(0, [](Event* e) { e->mutable_prompt()->set_cached_tokens(-1); }));
  EXPECT_TRUE(
      refused(0, [](Event* e) { e->mutable_prompt()->set_cached_tokens(kMaxRequestTokens + 1); }));
  EXPECT_TRUE(refused(1, [](Event* e) { e->mutable_token()->set_choice(-1); }));
  EXPECT_TRUE(refused(1, [](Event* e) { e->mutable_token()->set_choice(kMaxChoices); }));
  EXPECT_TRUE(refused(1, [](Event* e) { e->mutable_token()->set_position(-1); }));
  EXPECT_TRUE(
      refused(1, [](Event* e) { e->mutable_token()->set_position(kMaxRequestTokens + 1); }));
  EXPECT_TRUE(refused(
      1, [](Event* e) { e->mutable_token()->set_finish(static_cast<proto::FinishReason>(99)); }));
  EXPECT_TRUE(refused(4, [](Event* e) { e->mutable_refused()->set_retry_after_us(-1); }));
  EXPECT_TRUE(refused(4, [](Event* e) { e->mutable_refused()->clear_status(); }));
  EXPECT_TRUE(refused(7, [](Event* e) {
    e->mutable_abort_reply()->set_outcome(static_cast<proto::AbortOutcome>(99));
  }));
}

TEST(ConvertTest, SampledTokensAreInRangeAndTheirListsAgree) {
  using Token = proto::SampledToken;
  const auto refused = [](void (*spoil)(Token*)) { return Refused<Token>(WireToken(), spoil); };
  EXPECT_TRUE(refused([](Token* t) { t->set_token(-1); }));
  EXPECT_TRUE(refused([](Token* t) { t->set_rank(-1); }));
  EXPECT_TRUE(refused([](Token* t) { t->set_top_tokens(0, -1); }));
  EXPECT_TRUE(refused([](Token* t) { t->mutable_top_logprobs()->RemoveLast(); }));
  EXPECT_TRUE(refused([](Token* t) { t->add_top_logprobs(-1); }));
  EXPECT_TRUE(refused([](Token* t) {
    for (int i = 0; i < kMaxTopLogprobs; ++i) t->add_top_tokens(1);
    for (int i = 0; i < kMaxTopLogprobs; ++i) t->add_top_logprobs(-1);
  }));
}

TEST(ConvertTest, WhatADecodeWorkerAsksForIsInRange) {
  using Ask = proto::ToPrefill;
  const auto refused = RefusedOf<Ask>(WireToPrefill());
  EXPECT_TRUE(refused(0, [](Ask* a) { a->mutable_submit()->set_job(0); }));
  EXPECT_TRUE(refused(0, [](Ask* a) { a->mutable_submit()->set_num_blocks(0); }));
  EXPECT_TRUE(refused(0, [](Ask* a) { a->mutable_submit()->set_first_block(-1); }));
  EXPECT_TRUE(refused(0, [](Ask* a) { a->mutable_submit()->set_first_block(3); }));
  EXPECT_TRUE(refused(2, [](Ask* a) { a->mutable_resend()->set_ordinal(-1); }));
  EXPECT_TRUE(refused(2, [](Ask* a) { a->mutable_resend()->set_ordinal(kMaxRequestTokens + 1); }));
  EXPECT_TRUE(refused(4, [](Ask* a) { a->mutable_cancel()->set_time_left_us(-1); }));
  EXPECT_TRUE(refused(5, [](Ask* a) {
    while (a->renew().jobs_size() <= kMaxRenewedJobs) a->mutable_renew()->add_jobs(1);
  }));
}

TEST(ConvertTest, WhatAPrefillWorkerAnswersIsInRange) {
  using Answer = proto::ToDecode;
  const auto refused = RefusedOf<Answer>(WireToDecode());
  EXPECT_TRUE(refused(0, [](Answer* a) { a->mutable_start()->set_cached_tokens(-1); }));
  EXPECT_TRUE(
      refused(0, [](Answer* a) { a->mutable_start()->set_cached_tokens(kMaxRequestTokens + 1); }));
  EXPECT_TRUE(refused(1, [](Answer* a) { a->mutable_refused()->clear_status(); }));
  EXPECT_TRUE(refused(1, [](Answer* a) { a->mutable_refused()->set_retry_after_us(-1); }));
  EXPECT_TRUE(refused(3, [](Answer* a) { a->mutable_first_token()->clear_tokens(); }));
  EXPECT_TRUE(refused(3, [](Answer* a) {
    while (a->first_token().tokens_size() <= kMaxChoices) a->mutable_first_token()->add_tokens();
  }));
  EXPECT_TRUE(refused(4, [](Answer* a) { a->mutable_done()->set_num_frames(-1); }));
  EXPECT_TRUE(
      refused(4, [](Answer* a) { a->mutable_done()->set_num_frames(kMaxRequestTokens + 1); }));
  using Hello = proto::PrefillHello;
  const auto bad_hello = [](void (*spoil)(Hello*)) { return Refused<Hello>(WireHello(), spoil); };
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_protocol_min(0); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_protocol_max(0); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_kv_shards(0); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_kv_shards(3); }));  // It is shard 3.
  const auto before_shards = [](Hello* h) {
    h->set_kv_shard(0);
    h->set_kv_shards(0);
  };
  EXPECT_FALSE(bad_hello(before_shards));  // Its protocol says more.
  EXPECT_TRUE(Refused<Hello>(WireHello(), [](Hello* h) {
    h->set_kv_shard(0);
    h->set_kv_shards(0);
    h->set_protocol_max(3);
  }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_kv_shards(1 << 16); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_kv_class(std::string(kMaxTextBytes + 1, 'k')); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_numerics_id(std::string(kMaxTextBytes + 1, 'n')); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->set_transport(std::string(kMaxTextBytes + 1, 't')); }));
  EXPECT_TRUE(bad_hello([](Hello* h) { h->mutable_expected()->clear_name(); }));
  EXPECT_TRUE(bad_hello(
      [](Hello* h) { h->mutable_worker()->set_name(std::string(kMaxNameBytes + 1, 'w')); }));
  EXPECT_TRUE(bad_hello(
      [](Hello* h) { h->set_transport_address(std::string(kMaxTransportAddressBytes + 1, 'a')); }));
}

// Whatever a router would divide by, reserve or stop at.
TEST(ConvertTest, WhatAWorkerRegistersIsInRange) {
  using Worker = proto::WatchEvent;
  const auto refused = RefusedOf<Worker>(WireUpdates());
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_block_tokens(0); }));
  EXPECT_TRUE(refused(0, [](Worker* w) {
    w->mutable_registration()->set_block_tokens(kHashTokens + 1);
  })) << "no whole number of hashes";
  EXPECT_TRUE(refused(
      0, [](Worker* w) { w->mutable_registration()->set_block_tokens((1 << 16) + kHashTokens); }));
  EXPECT_TRUE(refused(0, [](Worker* w) {
    w->mutable_registration()->set_model(std::string(kMaxTextBytes + 1, 'm'));
  }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_max_model_tokens(0); }));
  EXPECT_TRUE(refused(0, [](Worker* w) {
    w->mutable_registration()->set_max_model_tokens(kMaxRequestTokens + 1);
  }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_max_sequences(0); }));
  EXPECT_TRUE(
      refused(0, [](Worker* w) { w->mutable_registration()->set_max_sequences((1 << 24) + 1); }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_num_blocks(0); }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_block_bytes(0); }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_block_bytes(INT64_MAX); }));
  EXPECT_TRUE(refused(0, [](Worker* w) { w->mutable_registration()->set_sequence_blocks(-1); }));
  EXPECT_TRUE(refused(0, [](Worker* w) {
    w->mutable_registration()->set_role(static_cast<proto::WorkerRole>(99));
  }));
  EXPECT_TRUE(refused(2, [](Worker* w) {
    constexpr size_t kMost = kMaxHashesPerEvent * sizeof(BlockHash::bytes);
    w->mutable_kv_events()->set_removed(std::string(kMost, 'h'));
  }));
  EXPECT_TRUE(refused(2, [](Worker* w) { w->mutable_kv_events()->mutable_removed()->pop_back(); }))
      << "no whole hash";
  for (int32_t count = 0; count < 4; ++count) {
    proto::WatchEvent event;
    ToProto(WireUpdates()[1], &event);
    proto::WorkerLoad* const load = event.mutable_heartbeat()->mutable_load();
    if (count == 0) load->mutable_blocks()->set_free(-1);
    if (count == 1) load->set_running_sequences(-1);
    if (count == 2) load->set_waiting_sequences(-1);
    if (count == 3) load->set_since_progress_us(-1);
    EXPECT_FALSE(FromProto(event).ok()) << "count " << count;
  }
}

// Every message that has an id names it; else it would be somebody else's.
TEST(ConvertTest, AJobOrAnAttemptIsNamed) {
  const auto without = [](const auto& in, auto message, const char* field) {
    ToProto(in, &message);
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    google::protobuf::Message* const inner = reflection.MutableMessage(&message, fields.front());
    const auto* const named = inner->GetDescriptor()->FindFieldByName(field);
    if (named == nullptr) return absl::InvalidArgumentError("it has none");
    inner->GetReflection()->ClearField(inner, named);
    return FromProto(message).status();
  };
  for (const DecodeToPrefill& in : WireToPrefill()) {
    EXPECT_TRUE(absl::IsInvalidArgument(without(in, proto::ToPrefill(), "job"))) << in.index();
  }
  for (const PrefillToDecode& in : WireToDecode()) {
    EXPECT_TRUE(absl::IsInvalidArgument(without(in, proto::ToDecode(), "job"))) << in.index();
  }
  for (const RouterEvent& in : WireEvents()) {
    EXPECT_TRUE(absl::IsInvalidArgument(without(in, proto::RouterEvent(), "attempt")));
  }
  for (const RouterCommand& in : WireCommands()) {
    EXPECT_TRUE(absl::IsInvalidArgument(without(in, proto::ToWorker(), "attempt")));
  }
}

TEST(ConvertTest, AMessageOfAStepHoldsSoManyEventsAndNoMore) {
  proto::StepBatch events, chunks;
  for (int32_t i = 0; i <= kMaxEventsPerBatch; ++i) events.add_events();
  for (int32_t i = 0; i <= kMaxEventsPerBatch; ++i) chunks.add_chunks();
  EXPECT_THAT(std::string(FromProto(events).status().message()),
              testing::HasSubstr("events: 1048577 events, at most 1048576"));
  EXPECT_THAT(std::string(FromProto(chunks).status().message()),
              testing::HasSubstr("chunks: 1048577 chunks, at most 1048576"));
}

// A limit is what is still let in.
TEST(ConvertTest, WhatIsJustWithinItsLimitsIsTaken) {
  PrefillHello hello = WireHello();
  hello.worker.name = std::string(kMaxNameBytes, 'w');
  hello.terms.kv_class = std::string(kMaxTextBytes, 'k');
  hello.terms.shard = {.index = UINT16_MAX - 1, .count = UINT16_MAX};
  hello.transport_address = std::string(kMaxTransportAddressBytes, 'a');
  EXPECT_TRUE(RoundTrips<proto::PrefillHello>(hello));
  Submit submit = std::get<Submit>(WireCommands()[0]);
  submit.spec.time_left_us = kMaxDurationUs;
  submit.prefill.address = std::string(kMaxNameBytes, 'a');
  submit.disaggregate_from_tokens = INT32_MAX;
  EXPECT_TRUE(RoundTrips<proto::ToWorker>(RouterCommand(submit)));
  const DecodeToPrefill renew = Renew{.jobs = std::vector<JobId>(kMaxRenewedJobs, 1)};
  EXPECT_TRUE(RoundTrips<proto::ToPrefill>(renew));
  SampledToken token{.token = INT32_MAX, .logprob = 0, .rank = INT32_MAX};
  token.top.assign(kMaxTopLogprobs, {.token = INT32_MAX, .logprob = -1});
  const PrefillToDecode first =
      FirstToken{.job = kWireJob, .tokens = std::vector<SampledToken>(kMaxChoices, token)};
  EXPECT_TRUE(RoundTrips<proto::ToDecode>(first));
  TokenEvent last = std::get<TokenEvent>(WireEvents()[1]);
  last.choice = kMaxChoices - 1;
  last.position = kMaxRequestTokens;
  EXPECT_TRUE(RoundTrips<proto::RouterEvent>(RouterEvent(last)));
  auto registration = std::get<WorkerRegistration>(WireUpdates()[0]);
  registration.kv = {.block_tokens = 1 << 16, .num_blocks = INT32_MAX, .block_bytes = 1 << 30};
  registration.max_model_tokens = kMaxRequestTokens;
  registration.ended_lives.assign(kMaxEndedLives, {.incarnation = 1});
  EXPECT_TRUE(RoundTrips<proto::WatchEvent>(WatchUpdate(registration)));
  const KvEvents events{.stored = std::vector<BlockHash>(kMaxHashesPerEvent, WireHash(1))};
  EXPECT_TRUE(RoundTrips<proto::WatchEvent>(WatchUpdate(events)));
}

TEST(ConvertTest, MessagesWithoutContentAreRefused) {
  EXPECT_FALSE(FromProto(proto::ToWorker()).ok());
  EXPECT_FALSE(FromProto(proto::RouterEvent()).ok());
  EXPECT_FALSE(FromProto(proto::WatchEvent()).ok());
  EXPECT_FALSE(FromProto(proto::ToPrefill()).ok());
  EXPECT_FALSE(FromProto(proto::ToDecode()).ok());
  EXPECT_FALSE(FromProto(proto::PrefillHello()).ok());
}

TEST(ConvertTest, AnErrorThatIsNoneIsRefused) {
  proto::RouterEvent event;
  ToProto(WireEvents()[5], &event);
  event.mutable_ended()->mutable_status()->set_code(0);
  EXPECT_FALSE(FromProto(event).ok());
  event.mutable_ended()->mutable_status()->set_code(99);
  EXPECT_FALSE(FromProto(event).ok());
}

// What is let in can be added up.
TEST(ConvertTest, CountsThatWouldOverflowASumAreRefused) {
  proto::WatchEvent event;
  ToProto(WireUpdates()[1], &event);
  proto::WorkerLoad* const load = event.mutable_heartbeat()->mutable_load();
  load->set_running_sequences(INT32_MAX);
  EXPECT_FALSE(FromProto(event).ok());
  load->set_running_sequences(1 << 24);
  load->set_waiting_sequences(INT32_MAX);
  EXPECT_FALSE(FromProto(event).ok());
  load->set_waiting_sequences(1 << 24);
  EXPECT_TRUE(FromProto(event).ok());
  load->set_waiting_prompt_tokens(INT64_MAX);
  EXPECT_FALSE(FromProto(event).ok());
}

// A router prints them as JSON, which has no infinity.
TEST(ConvertTest, ALogprobIsNoMoreThanZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float logprob : {-kInfinity, -1.0f, -0.0f, 0.0f, 0.5f, kInfinity, kNan}) {
    proto::SampledToken token;
    token.set_token(1);
    token.set_logprob(logprob);
    EXPECT_EQ(FromProto(token).ok(), logprob <= 0) << logprob;
    token.set_logprob(-1);
    token.add_top_tokens(2);
    token.add_top_logprobs(logprob);
    EXPECT_EQ(FromProto(token).ok(), logprob <= 0) << "top, " << logprob;
  }
}

TEST(ConvertTest, HashesThatAreCutAreRefused) {
  proto::WatchEvent event;
  ToProto(WireUpdates()[2], &event);
  event.mutable_kv_events()->mutable_stored()->pop_back();
  EXPECT_EQ(FromProto(event).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ConvertTest, ReservationOfGenerationZeroIsRefused) {
  proto::ToPrefill message;
  ToProto(WireToPrefill()[1], &message);
  message.mutable_grant()->mutable_reservation()->set_generation(0);
  EXPECT_EQ(FromProto(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StatusProtoTest, EveryCodeSurvivesGrpcAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
}

TEST(StatusProtoTest, EveryCodeSurvivesAMessageAndNoOtherDoes) {
  for (int code = -1; code <= 17; ++code) {
    v1::Status message;
    message.set_code(code);
    message.set_message("why");
    absl::Status read;
    EXPECT_EQ(StatusFromProto(message, &read).ok(), code >= 0 && code <= 16) << code;
    EXPECT_EQ(read.raw_code(), code >= 0 && code <= 16 ? code : 0);
    EXPECT_EQ(std::string(read.message()), code >= 1 && code <= 16 ? "why" : "");
  }
}

TEST(StatusProtoTest, ATextIsNoLongerThanOurs) {
  v1::Status message;
  message.set_code(2);
  message.set_message(std::string(kMaxTextBytes, 'x'));
  absl::Status read;
  EXPECT_TRUE(StatusFromProto(message, &read).ok());
  message.mutable_message()->push_back('x');
  EXPECT_TRUE(absl::IsInvalidArgument(StatusFromProto(message, &read)));
}

TEST(StatusProtoTest, LongMessagesAreCut) {
  v1::Status out;
  StatusToProto(absl::InternalError(std::string(100'000, 'x')), &out);
  EXPECT_EQ(out.message().size(), static_cast<size_t>(kMaxTextBytes));
  absl::Status back;
  EXPECT_TRUE(StatusFromProto(out, &back).ok());
  EXPECT_EQ(back.code(), absl::StatusCode::kInternal);
}

TEST(StatusProtoTest, TextThatIsNotUtf8DoesNotBreakTheMessage) {
  v1::Status out;
  StatusToProto(absl::NotFoundError("name \xff\x80"), &out);
  v1::Status parsed;
  ASSERT_TRUE(parsed.ParseFromString(out.SerializeAsString()));
  EXPECT_EQ(parsed.message(), "name ??");
}

}  // namespace
}  // namespace tandem
