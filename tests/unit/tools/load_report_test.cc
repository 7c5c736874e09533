#include "tools/tandem/load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tandem {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pair;

auto Near(double seconds) { return DoubleNear(seconds, 1e-9); }

TEST(LoadReportTest, APercentileIsTheLeastThatSoManyDoNotExceed) {
  std::vector<double> hundred(100), two_hundred(200);
  std::iota(hundred.begin(), hundred.end(), 1);
  std::iota(two_hundred.begin(), two_hundred.end(), 1);
  for (const double percent : {50.0, 90.0, 99.0}) {
    EXPECT_EQ(Percentile(hundred, percent), percent);
    EXPECT_EQ(Percentile(two_hundred, percent), 2 * percent);
    EXPECT_EQ(Percentile({7}, percent), 7);
    EXPECT_EQ(Percentile({}, percent), 0);
  }
  EXPECT_EQ(Percentile({1, 2}, 50), 1);
  EXPECT_EQ(Percentile({1, 2, 3}, 50), 2);
  EXPECT_EQ(Percentile({1, 2, 3}, 99), 3);
  EXPECT_EQ(Mean({1, 2, 6}), 3);
  EXPECT_EQ(Mean({}), 0);
}

TEST(LoadReportTest, TimesCountFromWhenARequestWasDue) {
  const LoadResult load{.requests = {{.outcome = CallOutcome::kCompleted,
                                      .due_us = 3'000'000,
                                      .end_us = 9'000'000,
                                      .token_us = {5'000'000, 8'000'000},
                                      .prompt_tokens = 10,
                                      .cached_tokens = 4,
                                      .output_tokens = 2},
                                     {.outcome = CallOutcome::kCompleted,
                                      .due_us = 1'000'000,
                                      .end_us = 5'000'000,
                                      .token_us = {2'000'000, 2'500'000, 4'000'000},
                                      .prompt_tokens = 20,
                                      .cached_tokens = 1,
                                      .output_tokens = 3},
                                     {.outcome = CallOutcome::kCompleted,
                                      .due_us = 0,
                                      .end_us = 3'000'000,
                                      .token_us = {3'000'000},
                                      .prompt_tokens = 5,
                                      .output_tokens = 1}},
                        .wall_us = 10'000'000};
  const LoadReport report = Summarise(load, {});
  EXPECT_EQ(report.completed, 3);
  EXPECT_EQ(report.prompt_tokens, 35);
  EXPECT_EQ(report.cached_tokens, 5);
  EXPECT_EQ(report.output_tokens, 6);
  EXPECT_THAT(report.wall_seconds, Near(10));
  EXPECT_THAT(report.ttft, ElementsAre(Near(1), Near(2), Near(3)));
  EXPECT_THAT(report.itl, ElementsAre(Near(0.5), Near(1.5), Near(3)));
  EXPECT_THAT(report.tpot, ElementsAre(Near(1), Near(3))) << "one token has no gap";
  EXPECT_THAT(report.e2e, ElementsAre(Near(3), Near(4), Near(6)));
}

TEST(LoadReportTest, WhatWasNotCompletedCountsAsNothingElse) {
  RequestRecord busy{.outcome = CallOutcome::kRejected,
                     .error = "HTTP 503",
                     .end_us = 1,
                     .token_us = {1, 2},
                     .prompt_tokens = 9,
                     .output_tokens = 9};
  RequestRecord lost = busy;
  lost.outcome = CallOutcome::kFailed;
  lost.error = "lost";
  const LoadReport report = Summarise({.requests = {busy, lost, busy}, .wall_us = 1}, {});
  EXPECT_EQ(report.completed + report.met_targets, 0);
  EXPECT_EQ(report.rejected, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.prompt_tokens + report.output_tokens, 0);
  EXPECT_TRUE(report.ttft.empty() && report.itl.empty() && report.e2e.empty());
  EXPECT_THAT(report.errors, ElementsAre(Pair("HTTP 503", 2), Pair("lost", 1)));
}

TEST(LoadReportTest, GoodputAsksForBothTargets) {
  const RequestRecord request{.outcome = CallOutcome::kCompleted,
                              .end_us = 5'000'000,
                              .token_us = {2'000'000, 3'000'000, 5'000'000}};
  const auto meets = [&](const LoadTargets& targets) {
    return Summarise({.requests = {request}, .wall_us = 1}, targets).met_targets == 1;
  };
  EXPECT_TRUE(meets({}));
  EXPECT_TRUE(meets({.ttft_seconds = 2.001, .itl_seconds = 2.001}));
  EXPECT_FALSE(meets({.ttft_seconds = 1.999, .itl_seconds = 2.001}));
  EXPECT_FALSE(meets({.ttft_seconds = 2.001, .itl_seconds = 1.999})) << "its slowest token";
}

}  // namespace
}  // namespace tandem
