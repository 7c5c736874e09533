#include "runtime/simulation/request_book.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/str_format.h"
#include "runtime/base/crc32c.h"
#include "runtime/protocol/times.h"
#include "runtime/request/request_owner.h"
#include "runtime/simulation/simulated_grammar.h"

namespace tandem {
namespace {

constexpr int32_t kVocabulary = SimulatedModel::kVocabulary;
constexpr int64_t kLongDeadlineUs = 600'000'000;
constexpr size_t kPoisonKills = kDeathsBeforePoison;

std::string TextOf(int32_t token) { return std::string(1, static_cast<char>('a' + token % 6)); }

// Never late.
std::unique_ptr<SequenceMasks> MasksOf(const AskedRequest& asked) {
  return SimulatedGrammar().MasksOf(
      {.prompt_tokens = static_cast<int32_t>(asked.prompt.size()), .sampling = asked.sampling});
}

class LetterDetokenizer final : public Detokenizer {
 public:
  std::string Append(int32_t token) override { return TextOf(token); }
  std::string Finish() override { return {}; }
};

}  // namespace

BlockHash RequestBook::Root(const AskedRequest& asked) {
  return HashRoot("simulated", "", asked.cache_salt);
}

DetokenizerFactory RequestBook::MakeDetokenizer() {
  return [] { return std::make_unique<LetterDetokenizer>(); };
}

AskedRequest RequestBook::Draw(Random* random) const {
  AskedRequest asked;
  SamplingParams& s = asked.sampling;
  s.max_tokens = random->Chance(0.1) ? 1 : static_cast<int32_t>(random->Between(2, 40));
  const int64_t longest = options_.shape.max_model_tokens - 1;
  int64_t length = random->Chance(0.3) ? random->Between(1, 20) : random->Between(1, 120);
  if (random->Chance(0.15))
    length = random->Between(longest / 2, longest);  // Or to the context's end.
  // One of three families shares prefixes.
  const auto family = static_cast<int32_t>(random->Below(3));
  const int64_t shared = random->Chance(0.7) ? random->Between(0, length) : 0;
  for (int64_t i = 0; i < std::min(length, longest); ++i) {
    const uint64_t mixed = Mix64(static_cast<uint64_t>(family * 1000 + i));
    asked.prompt.push_back(
        static_cast<int32_t>(i < shared ? mixed % kVocabulary : random->Below(kVocabulary)));
  }
  if (random->Chance(0.4)) asked.cache_salt = "another";
  asked.open_ended = random->Chance(0.3);
  const int64_t room = longest + 1 - static_cast<int64_t>(asked.prompt.size());
  if (!asked.open_ended && random->Chance(0.95)) {  // Else it may fit nobody.
    s.max_tokens = static_cast<int32_t>(std::min<int64_t>(s.max_tokens, room));
  }
  s.temperature = random->Chance(0.5) ? 0.0f : 1.0f;
  s.seed = random->Next();
  constexpr std::array kClients = {"one",  "another", "most", "most",
                                   "most", "most",    "most", "most"};
  asked.client = kClients[s.seed % kClients.size()];
  if (random->Chance(0.3)) {
    asked.num_choices = static_cast<int32_t>(random->Between(2, random->Chance(0.2) ? 16 : 4));
  }
  if (s.seed % 3 == 0) {  // From the seed, too: a field more changes nothing else that is drawn.
    for (int32_t i = 0; i < 3; ++i) {
      const uint64_t mixed = Mix64(s.seed + static_cast<uint64_t>(i));
      s.logit_bias.emplace_back(300 * i + static_cast<int32_t>(mixed % 300),
                                static_cast<float>(mixed >> 40 & 127) - 64.0f);
    }
  }
  if (random->Chance(0.3)) s.num_logprobs = static_cast<int32_t>(random->Below(3));
  if (random->Chance(0.2)) s.num_prompt_logprobs = static_cast<int32_t>(random->Below(3));
  if (random->Chance(0.4)) {
    for (int i = 0; i < 40; ++i) {
      s.stop_token_ids.push_back(static_cast<int32_t>(random->Below(kVocabulary)));
    }
    if (random->Chance(0.3)) s.min_tokens = std::min(s.max_tokens, 5);
  }
  if (random->Chance(0.3)) {
    for (uint64_t i = random->Between(1, 3); i > 0; --i) {
      std::string stop;
      for (int64_t j = random->Between(2, 3); j > 0; --j) {
        stop += TextOf(static_cast<int32_t>(random->Below(6)));
      }
      asked.stop_strings.push_back(stop);
    }
  }
  asked.short_deadline = random->Chance(options_.short_deadline);
  asked.time_left_us = asked.short_deadline ? random->Between(1'000, 3'000'000) : kLongDeadlineUs;
  return asked;
}

void RequestBook::Poison(AskedRequest* asked, Random* random) {
  asked->open_ended = false;
  const auto length = static_cast<int64_t>(asked->prompt.size());
  int64_t deadly = length - 1;
  if (random->Chance(0.7)) {
    if (random->Chance(0.6)) deadly = random->Between(0, length - 1);
  } else {
    deadly += random->Between(1, 10);
  }
  asked->deadly_position = static_cast<int32_t>(deadly);
  // Nobody else's: no other request leads to its payloads.
  asked->prompt[static_cast<size_t>(std::min(deadly, length - 1))] = kVocabulary;
}

size_t AskedRequest::NumSeenKills() const {
  size_t seen = 0;
  for (const uint32_t attempt : killing_attempts) {
    int32_t of_attempt = 0, to_blame = 0;
    for (const SeenDeath& death : deaths) {
      if (death.attempt != attempt) continue;
      ++of_attempt;
      to_blame += !death.blameless;
    }
    seen += of_attempt == 1 && to_blame == 1;
  }
  return seen;
}

void AskedRequest::CountChunk(uint64_t incarnation, const ChunkBegun& chunk) {
  const uint32_t attempt = chunk.attempt.attempt;
  if (!live_attempts.contains(attempt)) return;
  begun[{attempt, incarnation}] = {chunk.first_position, chunk.end_position};
  for (SeenDeath& death : deaths) {
    if (death.attempt < attempt && sent.at(death.attempt).choices == sent.at(attempt).choices) {
      death.passed = std::max(death.passed, chunk.first_position);
    }
  }
}

void AskedRequest::CountFailedStep(uint32_t attempt, bool by_prefill, bool said_token) {
  if (!live_attempts.contains(attempt)) return;
  const SentAttempt& of = sent.at(attempt);
  deaths.push_back({.attempt = attempt,
                    .incarnation = by_prefill ? of.prefill : of.worker,
                    .said_token = said_token});
}

void AskedRequest::CountLostTransfer(uint32_t attempt, int64_t now_us) {
  if (!live_attempts.contains(attempt) || sent.at(attempt).prefill == 0) return;
  lost_transfers.push_back({attempt, sent.at(attempt).prefill, now_us});
}

void RequestBook::CountKill(uint64_t payload, uint64_t incarnation,
                            const std::set<AttemptId>& over) {
  AskedRequest* const killer = killers_.at(payload);
  ++killer->kills;
  const auto is_over = [&](uint32_t attempt) {
    return std::ranges::any_of(over, [&](const AttemptId& id) {
      return id.attempt == attempt && Find(id.request) == killer;
    });
  };
  for (const uint32_t attempt : killer->LiveAt(incarnation)) {
    if (!is_over(attempt)) killer->killing_attempts.insert(attempt);
  }
}

absl::Status RequestBook::AuditKills() const {
  // The one that lives is taken for dead when the other comes, and the death beside it is unseen.
  if (options_.namesakes) return absl::OkStatus();
  for (const auto& [payload, asked] : killers_) {
    // Choices that have diverged are each tried for themselves, and may all be deadly. And a token
    // that came from a prefill worker may die with the step that it was drawn for: its next attempt
    // draws it again, which is progress. So is each token that a prefill worker draws while steps
    // guess as far as the deadly one.
    const bool in_prompt = asked->deadly_position < static_cast<int64_t>(asked->prompt.size());
    const auto guessed = static_cast<size_t>(options_.shape.max_drawn);
    const size_t most = in_prompt
                            ? kPoisonKills
                            : (kPoisonKills + guessed) * static_cast<size_t>(asked->num_choices);
    if (asked->NumSeenKills() > most) {
      return absl::InternalError(absl::StrFormat(
          "a request of %d tokens, deadly at %d, killed %d "
          "workers, %d as its router saw",
          asked->prompt.size(), asked->deadly_position, asked->kills, asked->NumSeenKills()));
    }
  }
  return absl::OkStatus();
}

bool AskedRequest::MayBeBlamed() const {
  constexpr int32_t kUnbounded = std::numeric_limits<int32_t>::max();
  struct Place {
    int32_t begin, end;
    bool runs_alone;
  };
  // A router gives up one attempt after the other, whenever it learns why.
  std::vector<SeenDeath> in_order = deaths;
  std::ranges::stable_sort(in_order, {}, &SeenDeath::attempt);
  for (int32_t choice = 0; choice < num_choices; ++choice) {
    std::vector<Place> places;
    for (const SeenDeath& death : in_order) {
      const SentAttempt& attempt = sent.at(death.attempt);
      const bool of_choice = std::find(attempt.choices.begin(), attempt.choices.end(), choice) !=
                             attempt.choices.end();
      if (!of_choice || death.blameless) continue;
      Place place{.begin = 0, .end = kUnbounded, .runs_alone = attempt.runs_alone};
      const auto chunk = begun.find({death.attempt, death.incarnation});
      if (death.said_token) {
        place.begin = attempt.tokens_known - 1;
      } else if (chunk != begun.end()) {
        const auto [begin, end] = chunk->second;
        place.begin = begin;
        // The last word may be lost, or overtaken by what a decode worker says.
        const bool more = cut_short.contains(death.attempt) || attempt.prefill != 0;
        if (!more) place.end = 2 * end - begin;
      }
      place.begin = std::max(place.begin, death.passed);
      if (place.begin < place.end) places.push_back(place);
    }
    for (const Place& place : places) {
      std::vector<bool> alone;
      for (const Place& other : places) {
        if (other.begin <= place.begin && place.begin < other.end)
          alone.push_back(other.runs_alone);
      }
      const size_t n = alone.size();
      if (n >= kPoisonKills && alone[n - 1] && alone[n - 2]) return true;
    }
  }
  return false;
}

std::vector<uint32_t> AskedRequest::LiveAt(uint64_t incarnation) const {
  std::vector<uint32_t> live;
  for (const uint32_t attempt : live_attempts) {
    const auto found = sent.find(attempt);
    if (found == sent.end()) continue;
    if (found->second.worker == incarnation || found->second.prefill == incarnation) {
      live.push_back(attempt);
    }
  }
  return live;
}

void RequestBook::CountSent(AskedRequest* asked, uint32_t attempt, const SentAttempt& sent) const {
  if (!asked->sent.try_emplace(attempt, sent).second) return;
  for (const uint64_t incarnation : {sent.worker, sent.prefill}) {
    const auto ended = ended_.find(incarnation);
    if (ended == ended_.end()) continue;
    asked->deaths.push_back(
        {.attempt = attempt, .incarnation = incarnation, .blameless = ended->second});
  }
}

void RequestBook::CountDeath(uint64_t incarnation, const std::set<AttemptId>& said, bool blameless,
                             int64_t now_us) {
  // A heartbeat shows that it has outlived the loss once what was on its way may have come.
  constexpr int64_t kUnheardUs = LivenessTimes{}.heartbeat_us * 3 / 2;
  ended_[incarnation] = blameless;
  for (const auto& [id, asked] : named_) {
    for (const LostTransfer& lost : asked->lost_transfers) {
      if (lost.prefill != incarnation || now_us - lost.at_us > kUnheardUs) continue;
      asked->deaths.push_back(
          {.attempt = lost.attempt, .incarnation = incarnation, .blameless = blameless});
    }
    for (const uint32_t attempt : asked->LiveAt(incarnation)) {
      asked->deaths.push_back({.attempt = attempt,
                               .incarnation = incarnation,
                               .said_token = said.contains({.request = id, .attempt = attempt}),
                               .blameless = blameless});
    }
  }
}

void RequestBook::Name(const RequestId& id, AskedRequest* asked) {
  named_[id] = asked;
  if (asked->deadly_position < 0) return;
  for (uint64_t numerics = 0; numerics < uint64_t{kMaxNumerics}; ++numerics) {
    std::vector<int32_t> tokens = asked->prompt;
    const std::vector<SampledToken>& drawn = Expect(asked, numerics).choices.front().worker_tokens;
    for (const SampledToken& token : drawn) tokens.push_back(token.token);
    const size_t num_tokens =
        std::min(tokens.size(), static_cast<size_t>(asked->deadly_position) + 1);
    uint64_t payload = numerics;
    for (size_t i = 0; i < num_tokens; ++i) {
      payload = SimulatedModel::Payload(payload, tokens[i], static_cast<int32_t>(i));
    }
    deadly_payloads_.insert(payload);
    killers_[payload] = asked;
  }
}

ExpectedChoice RequestBook::ExpectChoice(const AskedRequest& asked, const SimulatedModel& model,
                                         int32_t number) const {
  const std::vector<int32_t>& stops = asked.sampling.stop_token_ids;
  const std::unique_ptr<SequenceMasks> masks = options_.masks ? MasksOf(asked) : nullptr;
  ExpectedChoice choice;
  choice.worker_tokens = model.Generate(asked.prompt, number, asked.sampling, masks.get());
  const int32_t last = choice.worker_tokens.back().token;
  choice.worker_finish = std::find(stops.begin(), stops.end(), last) != stops.end()
                             ? FinishReason::kStop
                             : FinishReason::kLength;
  choice.finish = choice.worker_finish;
  for (const SampledToken& token : choice.worker_tokens) {
    ++choice.num_tokens;
    const bool is_last = choice.num_tokens == choice.worker_tokens.size();
    if (is_last && choice.worker_finish == FinishReason::kStop) break;  // Has no text.
    choice.text += TextOf(token.token);
    size_t longest = 0;
    for (const std::string& stop : asked.stop_strings) {
      if (choice.text.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    const bool counts = static_cast<int32_t>(choice.num_tokens) > asked.sampling.min_tokens;
    if (longest == 0 || !counts) continue;
    choice.text.resize(choice.text.size() - longest);
    choice.finish = FinishReason::kStop;
    break;
  }
  return choice;
}

// Every block that a run of this choice can leave in a cache.
void RequestBook::RememberBlocks(const AskedRequest& asked, const ExpectedChoice& choice,
                                 uint64_t numerics) {
  std::vector<int32_t> tokens = asked.prompt;
  for (const SampledToken& token : choice.worker_tokens) tokens.push_back(token.token);
  const std::vector<BlockHash> names = HashChain(Root(asked), tokens);
  std::vector<uint64_t> payloads;
  for (size_t i = 0; i < tokens.size(); ++i) {
    payloads.push_back(SimulatedModel::Payload(payloads.empty() ? numerics : payloads.back(),
                                               tokens[i], static_cast<int32_t>(i)));
  }
  for (const int32_t block_tokens : {16, 32}) {
    if (!options_.unequal && block_tokens != options_.shape.block_tokens) continue;
    const auto per_block = static_cast<size_t>(block_tokens);
    for (size_t end = per_block; end <= tokens.size(); end += per_block) {
      blocks_[{numerics, block_tokens, names[end / kHashTokens - 1]}] =
          std::vector<uint64_t>(payloads.begin() + static_cast<ptrdiff_t>(end - per_block),
                                payloads.begin() + static_cast<ptrdiff_t>(end));
    }
  }
}

const ExpectedRequest& RequestBook::Expect(AskedRequest* asked, uint64_t numerics) {
  const auto [found, fresh] = asked->expected.try_emplace(numerics);
  ExpectedRequest& expected = found->second;
  if (!fresh) return expected;
  const SimulatedModel model(kVocabulary, numerics, options_.shape.window);
  if (asked->sampling.num_prompt_logprobs >= 0) {
    expected.prompt_logprobs =
        model.PromptLogprobs(asked->prompt, asked->sampling.num_prompt_logprobs);
  }
  for (int32_t i = 0; i < asked->num_choices; ++i) {
    expected.choices.push_back(ExpectChoice(*asked, model, i));
    RememberBlocks(*asked, expected.choices.back(), numerics);
  }
  return expected;
}

int64_t RequestBook::MostCachedTokens(AskedRequest* asked, uint64_t numerics) {
  const std::vector<int32_t>& prompt = asked->prompt;
  // An earlier attempt of its own may have been there.
  if (asked->sent.size() > 1) return static_cast<int64_t>(prompt.size());
  int64_t most = 0;
  for (const auto& [id, other] : named_) {
    if (other == asked || other->cache_salt != asked->cache_salt || other->open_ended) continue;
    for (const ExpectedChoice& choice : Expect(other, numerics).choices) {
      std::vector<int32_t> tokens = other->prompt;
      for (const SampledToken& token : choice.worker_tokens) tokens.push_back(token.token);
      const auto differ = std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end());
      most = std::max<int64_t>(most, differ.first - prompt.begin());
    }
  }
  return most;
}

void RequestBook::ExpectAll(uint64_t numerics) {
  for (const auto& [id, asked] : named_) {
    if (!asked->open_ended) Expect(asked, numerics);  // Else nobody has begun it.
  }
}

uint32_t RequestBook::ExpectedBlock(uint64_t numerics, uint64_t kv_format, int32_t block_tokens,
                                    const BlockHash& name) const {
  const auto found = blocks_.find({numerics, block_tokens, name});
  if (found == blocks_.end()) return 0;
  std::vector<uint64_t> slots = found->second;
  for (uint64_t& slot : slots) slot ^= kv_format;
  return Crc32c(slots.data(), slots.size() * sizeof(uint64_t));
}

}  // namespace tandem
