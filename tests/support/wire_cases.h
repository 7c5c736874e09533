// Messages with every field set, for tests and fuzzers of the wire.

#ifndef TANDEM_TESTS_SUPPORT_WIRE_CASES_H_
#define TANDEM_TESTS_SUPPORT_WIRE_CASES_H_

#include <vector>

#include "services/server/convert.h"

namespace tandem {

inline AttemptId WireAttempt() {
  return {.request = {.router_incarnation = 0xFEDCBA9876543210u, .counter = 77}, .attempt = 3};
}

inline SamplingParams WireSampling() {
  return {.temperature = 0.7f,
          .top_p = 0.9f,
          .top_k = 40,
          .seed = 0x8000000000000001u,
          .min_tokens = 2,
          .max_tokens = 100,
          .num_logprobs = 5,
          .num_prompt_logprobs = 3,
          .stop_token_ids = {2, 7},
          .logit_bias = {{3, -100.0f}, {9, 2.5f}}};
}

inline SampledToken WireToken() {
  return {.token = 9, .logprob = -0.25f, .rank = 2, .top = {{8, -0.125f}, {9, -0.25f}}};
}

inline BlockHash WireHash(uint8_t seed) {
  BlockHash hash;
  for (size_t i = 0; i < hash.bytes.size(); ++i) hash.bytes[i] = static_cast<uint8_t>(seed + i);
  return hash;
}

inline std::vector<RouterCommand> WireCommands() {
  Submit submit{
      .attempt = WireAttempt(),
      .spec = {.token_ids = {1, 2, 3, 4, 5},
               .prompt_tokens = 4,
               .choices = {2},
               .sampling = WireSampling(),
               .time_left_us = 60'000'000,
               .hash_root = WireHash(1),
               .runs_alone = true},
      .model = "demo",
      .prefill = {.worker = {.name = "prefill-0", .incarnation = 5}, .address = "127.0.0.1:5000"},
      .disaggregate_from_tokens = 256};
  return {submit, Cancel{.attempt = WireAttempt(), .time_left_us = 1}};
}

inline std::vector<RouterEvent> WireEvents() {
  return {PromptEvent{.attempt = WireAttempt(),
                      .cached_tokens = 16,
                      .by_prefill = true,
                      .prompt_logprobs = {WireToken(), WireToken()}},
          TokenEvent{.attempt = WireAttempt(),
                     .choice = 2,
                     .position = 31,
                     .token = WireToken(),
                     .finish = FinishReason::kLength},
          TokenEvent{.attempt = WireAttempt(), .position = 4, .finish = FinishReason::kStop},
          TokenEvent{.attempt = WireAttempt(), .position = 5},
          RefusedEvent{.attempt = WireAttempt(),
                       .status = absl::ResourceExhaustedError("full"),
                       .by_prefill = true,
                       .retry_after_us = 70'000},
          EndedEvent{.attempt = WireAttempt(), .status = absl::UnavailableError("peer lost")},
          EndedEvent{.attempt = WireAttempt(),
                     .status = absl::AbortedError("a step failed"),
                     .by_prefill = true},
          AbortReply{.attempt = WireAttempt(), .outcome = AbortOutcome::kAccepted},
          AbortReply{.attempt = WireAttempt(), .outcome = AbortOutcome::kNotFound},
          AbortReply{.attempt = WireAttempt(), .outcome = AbortOutcome::kTombstoned}};
}

inline ChunkBegun WireChunk() {
  return {.attempt = WireAttempt(), .first_position = 512, .end_position = 1024};
}

inline PeerTerms WireTerms() {
  return {.protocol_min = 1,
          .protocol_max = 2,
          .kv_class = "abc",
          .numerics_id = "def",
          .transport = "ucx",
          .shard = {.index = 3, .count = 500}};
}

inline std::vector<WatchUpdate> WireUpdates() {
  WorkerRegistration registration{
      .worker = {.name = "decode-1", .incarnation = ~uint64_t{0}},
      .role = WorkerRole::kDecode,
      .model = "demo",
      .terms = WireTerms(),
      .kv = {.block_tokens = 32, .num_blocks = 1000, .block_bytes = 65536},
      .max_model_tokens = 8192,
      .max_sequences = 64,
      .sequence_blocks = 77,
      .supervised = true,
      .ended_lives = {{.incarnation = 1, .cause = EndCause::kOutside},
                      {.incarnation = 2, .cause = EndCause::kCrash},
                      {.incarnation = 3, .cause = EndCause::kMemory}}};
  Heartbeat heartbeat{.load = {.blocks = {.free = 1,
                                          .held = 2,
                                          .cached = 3,
                                          .in_flight = 4,
                                          .quarantined = 5,
                                          .total = 15},
                               .running_sequences = 6,
                               .waiting_sequences = 7,
                               .waiting_prompt_tokens = 8,
                               .has_work = true,
                               .since_progress_us = 10},
                      .draining = true};
  return {registration, heartbeat,
          KvEvents{
              .first_sequence = 12, .stored = {WireHash(1), WireHash(2)}, .removed = {WireHash(3)}},
          KvEvents{.first_sequence = 0, .snapshot = true, .stored = {WireHash(4)}}};
}

inline constexpr JobId kWireJob = ~uint64_t{0};

inline std::vector<DecodeToPrefill> WireToPrefill() {
  const Reservation reservation{.index = 4, .generation = 9};
  return {PrefillSubmit{.job = kWireJob,
                        .attempt = WireAttempt(),
                        .spec = {.token_ids = {1, 2, 3},
                                 .prompt_tokens = 3,
                                 .choices = {0, 2},
                                 .sampling = WireSampling(),
                                 .time_left_us = 5,
                                 .hash_root = WireHash(7),
                                 .runs_alone = true},
                        .first_block = 1,
                        .num_blocks = 2},
          Grant{.job = kWireJob, .reservation = reservation},
          Resend{.job = kWireJob, .ordinal = 3},
          Committed{.job = kWireJob},
          PrefillCancel{.job = kWireJob, .time_left_us = 8},
          Renew{.jobs = {kWireJob, 1}}};
}

inline std::vector<PrefillToDecode> WireToDecode() {
  return {
      Start{.job = kWireJob, .cached_tokens = 16},
      PrefillRefused{
          .job = kWireJob, .status = absl::UnavailableError("draining"), .retry_after_us = 70'000},
      Progress{.job = kWireJob},
      FirstToken{
          .job = kWireJob, .tokens = {WireToken(), WireToken()}, .prompt_logprobs = {WireToken()}},
      Done{.job = kWireJob, .num_frames = 12},
      Renew{.jobs = {kWireJob}}};
}

inline PrefillHello WireHello() {
  return {.terms = WireTerms(),
          .worker = {.name = "decode-0", .incarnation = 3},
          .expected = {.name = "prefill-0", .incarnation = 4},
          .transport_address = std::string("\0\1\2", 3)};
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_WIRE_CASES_H_
