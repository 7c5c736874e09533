// Visits every state that the transfer machines can reach at small sizes, whatever the network,
// the router and the clock do, and checks the invariants of docs/protocol.md in each.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "runtime/base/guard.h"
#include "runtime/base/random.h"
#include "tests/simulation/transfer_explorer_world.h"

namespace tandem {
namespace {

struct Found {
  size_t states = 0;
  size_t transitions = 0;
  size_t quiescent = 0;
  bool exhausted = false;
  std::string violation;  // With the steps that lead to it.
  int min_completed_at_rest = 1 << 20;
};

using Fingerprint = std::pair<uint64_t, uint64_t>;

Fingerprint FingerprintOf(const std::string& bytes) {
  uint64_t a = 0x243F6A8885A308D3u, b = 0x13198A2E03707344u;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::copy_n(bytes.data() + i, std::min<size_t>(8, bytes.size() - i),
                reinterpret_cast<char*>(&word));
    a = Mix64(a ^ word);
    b = Mix64(b + word * 0x9E3779B97F4A7C15u);
  }
  return {a ^ bytes.size(), b};
}

struct Origin {
  uint32_t parent = 0;
  uint16_t choice = 0;
};

std::string TraceTo(const TransferWorldOptions& options, const std::vector<Origin>& origins,
                    uint32_t state, const std::string& what) {
  std::vector<uint16_t> path;
  for (; state != 0; state = origins[state].parent) path.push_back(origins[state].choice);
  TransferWorld world(options);
  std::string trace = what + "\n";
  for (size_t i = path.size(); i-- > 0;) {
    const Choice choice = world.Choices()[path[i]];
    trace += "  " + world.Describe(choice) + "\n";
    world.Apply(choice);
  }
  return trace;
}

// Breadth first, so that the trace of a violation is a shortest one.
Found Explore(const TransferWorldOptions& options, size_t max_states) {
  Found found;
  absl::flat_hash_map<Fingerprint, uint32_t> numbers;
  std::vector<Origin> origins;
  std::vector<uint8_t> at_rest;
  std::vector<std::pair<uint32_t, uint32_t>> progress;  // To, from: edges that are no faults.
  std::deque<std::pair<uint32_t, TransferWorld>> frontier;

  const TransferWorld start(options);
  numbers.emplace(FingerprintOf(start.State()), 0);
  origins.push_back({});
  at_rest.push_back(start.Quiescent());
  frontier.emplace_back(0, start);
  while (!frontier.empty()) {
    const auto [number, world] = std::move(frontier.front());
    frontier.pop_front();
    const std::vector<Choice> choices = world.Choices();
    for (size_t i = 0; i < choices.size(); ++i) {
      TransferWorld next = world;
      next.Apply(choices[i]);
      ++found.transitions;
      const auto [entry, fresh] =
          numbers.emplace(FingerprintOf(next.State()), static_cast<uint32_t>(origins.size()));
      if (!choices[i].is_fault()) progress.emplace_back(entry->second, number);
      if (!fresh) continue;
      origins.push_back({.parent = number, .choice = static_cast<uint16_t>(i)});
      at_rest.push_back(next.Quiescent());
      if (next.Quiescent()) {
        ++found.quiescent;
        found.min_completed_at_rest = std::min(found.min_completed_at_rest, next.num_completed());
      }
      found.states = origins.size();
      if (const std::string violation = next.Violation(); !violation.empty()) {
        found.violation = TraceTo(options, origins, entry->second, violation);
        return found;
      }
      if (found.states > max_states) return found;
      frontier.emplace_back(entry->second, std::move(next));
    }
  }
  found.exhausted = true;

  // From everywhere rest must be reachable without help from a fault: walk back from it.
  std::sort(progress.begin(), progress.end());
  std::vector<uint8_t> can_rest = at_rest;
  std::vector<uint32_t> stack;
  for (uint32_t i = 0; i < at_rest.size(); ++i) {
    if (at_rest[i] != 0) stack.push_back(i);
  }
  while (!stack.empty()) {
    const uint32_t to = stack.back();
    stack.pop_back();
    for (auto edge = std::lower_bound(progress.begin(), progress.end(), std::pair(to, 0u));
         edge != progress.end() && edge->first == to; ++edge) {
      if (can_rest[edge->second] != 0) continue;
      can_rest[edge->second] = 1;
      stack.push_back(edge->second);
    }
  }
  const auto stuck = std::find(can_rest.begin(), can_rest.end(), 0);
  if (stuck != can_rest.end()) {
    found.violation = TraceTo(options, origins, static_cast<uint32_t>(stuck - can_rest.begin()),
                              "never comes to rest");
  }
  return found;
}

constexpr size_t kMaxStates = 8'000'000;

Found ExploreAndPrint(const char* name, const TransferWorldOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Found found = Explore(options, kMaxStates);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s: %zu states, %zu transitions, %zu at rest, %.1f s%s\n", name, found.states,
              found.transitions, found.quiescent, seconds,
              found.violation.empty() ? "" : ": VIOLATION");
  std::fflush(stdout);
  return found;
}

struct Setting {
  const char* name;
  TransferWorldOptions options;
};

const Setting kSettings[] = {
    {"OneCrash",
     {.attempts = 1,
      .blocks = 2,
      .source_blocks = 2,
      .sink_blocks = 2,
      .cancels = 1,
      .duplicates = 0,
      .corruptions = 1,
      .crashes = 1,
      .timeouts = 2}},
    {"OneDuplicateAndCorrupt",
     {.attempts = 1,
      .blocks = 2,
      .source_blocks = 2,
      .sink_blocks = 2,
      .cancels = 0,
      .duplicates = 1,
      .corruptions = 1,
      .crashes = 0,
      .timeouts = 2}},
    {"OneDelta",
     {.attempts = 1,
      .blocks = 2,
      .first_block = 1,
      .source_blocks = 2,
      .sink_blocks = 2,
      .cancels = 1,
      .duplicates = 1,
      .corruptions = 1,
      .crashes = 0,
      .timeouts = 1}},
    {"OneEmptyPromise",
     {.attempts = 1,
      .blocks = 1,
      .first_block = 1,
      .source_blocks = 1,
      .sink_blocks = 1,
      .cancels = 1,
      .duplicates = 1,
      .corruptions = 0,
      .crashes = 1,
      .timeouts = 1}},
    {"OneCorruptUntilItFails",
     {.attempts = 1,
      .blocks = 1,
      .source_blocks = 1,
      .sink_blocks = 1,
      .cancels = 1,
      .duplicates = 1,
      .corruptions = 3,
      .crashes = 1,
      .timeouts = 1}},
    {"OneFrameAhead",
     {.attempts = 1,
      .blocks = 2,
      .source_blocks = 2,
      .sink_blocks = 2,
      .cancels = 1,
      .duplicates = 0,
      .corruptions = 1,
      .crashes = 1,
      .frames_ahead = 1,
      .timeouts = 1}},
    {"TwoFramesOneAhead",
     {.attempts = 2,
      .blocks = 2,
      .source_blocks = 4,
      .sink_blocks = 4,
      .cancels = 1,
      .frames_ahead = 1}},
    {"TwoWithSteps",
     {.attempts = 2, .blocks = 1, .source_blocks = 2, .sink_blocks = 1, .cancels = 1, .steps = 1}},
    {"TwoSmall",
     {.attempts = 2,
      .blocks = 1,
      .source_blocks = 1,
      .sink_blocks = 1,
      .cancels = 1,
      .duplicates = 0,
      .corruptions = 1,
      .crashes = 0,
      .timeouts = 2}},
    {"TwoTimeout",
     {.attempts = 2,
      .blocks = 2,
      .source_blocks = 2,
      .sink_blocks = 3,
      .cancels = 0,
      .duplicates = 0,
      .corruptions = 0,
      .crashes = 0,
      .timeouts = 1}},
    {"TwoCancel",
     {.attempts = 2,
      .blocks = 2,
      .source_blocks = 3,
      .sink_blocks = 2,
      .cancels = 1,
      .duplicates = 0,
      .corruptions = 0,
      .crashes = 0,
      .timeouts = 0}},
    {"TwoCrash",
     {.attempts = 2,
      .blocks = 2,
      .source_blocks = 3,
      .sink_blocks = 3,
      .cancels = 0,
      .duplicates = 0,
      .corruptions = 0,
      .crashes = 1,
      .timeouts = 0}},
};

class TransferExplorerTest : public testing::TestWithParam<Setting> {};

TEST_P(TransferExplorerTest, NoStateBreaksAnInvariantAndAllComeToRest) {
  const Found found = ExploreAndPrint(GetParam().name, GetParam().options);
  EXPECT_EQ(found.violation, "");
  EXPECT_TRUE(found.exhausted);
  EXPECT_GT(found.quiescent, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, TransferExplorerTest, testing::ValuesIn(kSettings),
                         [](const auto& setting) { return setting.param.name; });

// Without a cancel, a crash or a timeout every attempt completes, in every order of events.
TEST(TransferWithoutFaultsTest, EveryAttemptCompletesWhenNobodyGivesUp) {
  const Found found = ExploreAndPrint(
      "NobodyGivesUp", {.attempts = 2, .blocks = 2, .source_blocks = 3, .sink_blocks = 3});
  EXPECT_EQ(found.violation, "");
  EXPECT_TRUE(found.exhausted);
  EXPECT_EQ(found.min_completed_at_rest, 2);
  const Found corrupt = ExploreAndPrint("NobodyGivesUpCorrupt", {.attempts = 1,
                                                                 .blocks = 2,
                                                                 .source_blocks = 2,
                                                                 .sink_blocks = 2,
                                                                 .duplicates = 1,
                                                                 .corruptions = 2});
  EXPECT_EQ(corrupt.violation, "");
  EXPECT_TRUE(corrupt.exhausted);
  EXPECT_EQ(corrupt.min_completed_at_rest, 1);
}

class GuardTest : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { FindGuard(GetParam())->set_enabled(true); }
};

TEST_P(GuardTest, IsMissedWhenSwitchedOff) {
  Guard* const guard = FindGuard(GetParam());
  ASSERT_NE(guard, nullptr);
  guard->set_enabled(false);
  std::string violation;
  for (const Setting& setting : kSettings) {
    violation = ExploreAndPrint(setting.name, setting.options).violation;
    if (!violation.empty()) break;
  }
  EXPECT_NE(violation, "");
  std::printf("without %s: %s\n", GetParam(), violation.c_str());
}

INSTANTIATE_TEST_SUITE_P(All, GuardTest,
                         testing::Values("commit_all_verified", "first_token_once",
                                         "frame_checksum", "free_only_on_completion",
                                         "freed_under_running_step", "ordinal_lands_once",
                                         "reservation_generation", "reservation_timeout",
                                         "source_lease", "tombstone"),
                         [](const auto& guard) { return std::string(guard.param); });

}  // namespace
}  // namespace tandem
