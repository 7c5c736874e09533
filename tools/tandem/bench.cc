#include "tools/tandem/bench.h"

#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/flags.h"
#include "runtime/base/status_macros.h"
#include "tools/tandem/load_generator.h"
#include "tools/tandem/load_report.h"

namespace tandem {
namespace {

namespace json = boost::json;

json::object DistributionJson(const std::vector<double>& sorted) {
  return {{"p50", Percentile(sorted, 50)},
          {"p90", Percentile(sorted, 90)},
          {"p99", Percentile(sorted, 99)},
          {"mean", Mean(sorted)}};
}

json::object ReportJson(const LoadReport& report) {
  return {
      {"requests_completed", report.completed},
      {"requests_rejected", report.rejected},
      {"requests_failed", report.failed},
      {"prompt_tokens", report.prompt_tokens},
      {"output_tokens", report.output_tokens},
      {"prefix_hit_rate",
       report.prompt_tokens == 0
           ? 0.0
           : static_cast<double>(report.cached_tokens) / static_cast<double>(report.prompt_tokens)},
      {"ttft_seconds", DistributionJson(report.ttft)},
      {"itl_seconds", DistributionJson(report.itl)},
      {"tpot_seconds", DistributionJson(report.tpot)},
      {"e2e_seconds", DistributionJson(report.e2e)},
      {"output_tokens_per_second", static_cast<double>(report.output_tokens) / report.wall_seconds},
      {"total_tokens_per_second",
       static_cast<double>(report.prompt_tokens + report.output_tokens) / report.wall_seconds},
      {"requests_per_second", report.completed / report.wall_seconds},
      {"goodput_requests_per_second", report.met_targets / report.wall_seconds},
      {"wall_seconds", report.wall_seconds},
  };
}

void PrintReport(const LoadReport& report, const LoadTargets& targets) {
  std::printf("requests     %d completed, %d rejected, %d failed in %.2f s\n", report.completed,
              report.rejected, report.failed, report.wall_seconds);
  std::printf("tokens       %lld prompt (%lld cached), %lld output\n",
              static_cast<long long>(report.prompt_tokens),
              static_cast<long long>(report.cached_tokens),
              static_cast<long long>(report.output_tokens));
  std::printf(
      "throughput   %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n",
      report.completed / report.wall_seconds,
      static_cast<double>(report.output_tokens) / report.wall_seconds,
      static_cast<double>(report.prompt_tokens + report.output_tokens) / report.wall_seconds);
  if (targets.ttft_seconds < 1e300 || targets.itl_seconds < 1e300) {
    std::printf("goodput      %.2f requests/s (%d of %d met both targets)\n",
                report.met_targets / report.wall_seconds, report.met_targets,
                report.completed + report.rejected + report.failed);
  }
  std::printf("%-12s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "mean");
  const std::pair<const char*, const std::vector<double>*> rows[] = {{"TTFT", &report.ttft},
                                                                     {"ITL", &report.itl},
                                                                     {"TPOT", &report.tpot},
                                                                     {"end to end", &report.e2e}};
  for (const auto& [name, values] : rows) {
    std::printf("%-12s %10.2f %10.2f %10.2f %10.2f\n", name, 1e3 * Percentile(*values, 50),
                1e3 * Percentile(*values, 90), 1e3 * Percentile(*values, 99), 1e3 * Mean(*values));
  }
  for (const auto& [error, count] : report.errors) {
    std::printf("error        %d × %s\n", count, error.c_str());
  }
}

absl::StatusOr<TokenRange> ParseRange(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  TokenRange range;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &range.low) ||
      !absl::SimpleAtoi(parts.back(), &range.high) || range.low < 1 || range.high < range.low) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": want N or LOW-HIGH, at least 1, got \"", text, "\""));
  }
  return range;
}

absl::StatusOr<LoadTargets> ParseTargets(const std::string& text) {
  LoadTargets targets;
  for (const auto part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(part, '=');
    double* const target = pair.front() == "ttft"  ? &targets.ttft_seconds
                           : pair.front() == "itl" ? &targets.itl_seconds
                                                   : nullptr;
    if (pair.size() != 2 || target == nullptr || !absl::SimpleAtod(pair.back(), target) ||
        !(*target > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--targets: want ttft=SECONDS,itl=SECONDS, got \"", text, "\""));
    }
  }
  return targets;
}

struct BenchFlags {
  LoadOptions load;
  HttpTlsFlags tls;
  std::string target = "http://127.0.0.1:8000", prompt_tokens = "512", output_tokens = "64";
  std::string targets;
  int64_t seed = 1;
  bool as_json = false, may_be_refused = false;

  void Declare(FlagSet* flags) {
    flags->Add("target", &target, "URL", "the server");
    tls.Declare(flags);
    flags->Add("model", &load.model, "NAME", "the served model");
    flags->Add("requests", &load.requests, "N", "requests in all", 1, 10'000'000);
    flags->Add("connections", &load.connections, "N", "most requests at a time", 1, 4096);
    flags->Add("rate", &load.rate_per_second, "R",
               "arrivals per second (Poisson); 0 sends the next when one ends");
    flags->Add("prompt-tokens", &prompt_tokens, "N|LOW-HIGH", "length of the prompts");
    flags->Add("output-tokens", &output_tokens, "N|LOW-HIGH", "length of the answers");
    flags->Add("shared-prefix", &load.shared_prefix_tokens, "N",
               "tokens that all prompts begin with");
    flags->Add("vocabulary", &load.vocabulary, "N", "prompt ids are drawn from 16 to N-1", 17);
    flags->Add("temperature", &load.temperature, "X", "0 is greedy", 0, 2);
    flags->Add("timeout", &load.timeout_s, "S", "a request without a byte for so long has failed",
               0.1, 86'400);
    flags->Add("targets", &targets, "ttft=S,itl=S",
               "goodput counts requests whose TTFT and 99th percentile ITL meet these seconds");
    flags->Add("seed", &seed, "N", "of prompts, lengths and arrivals");
    flags->Add("may-be-refused", &may_be_refused,
               "an overload is meant: 429 and 503 leave the exit status 0, which else says that "
               "every request was completed");
    flags->Add("json", &as_json, "print one JSON object");
  }

  absl::StatusOr<LoadOptions> Load() const {
    LoadOptions asked = load;
    TANDEM_ASSIGN_OR_RETURN(asked.target, ParseHttpTarget(target, tls));
    TANDEM_ASSIGN_OR_RETURN(asked.prompt_tokens, ParseRange("prompt-tokens", prompt_tokens));
    TANDEM_ASSIGN_OR_RETURN(asked.output_tokens, ParseRange("output-tokens", output_tokens));
    asked.seed = static_cast<uint64_t>(seed);
    return asked;
  }
};

LoadResult GenerateAndShow(const LoadOptions& load) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  int shown_percent = -1;
  const LoadResult result = GenerateLoad(load, [&](int ended) {
    const int percent = static_cast<int>(100.0 * ended / load.requests);
    if (percent == shown_percent || (!terminal && percent % 10 != 0)) return;
    shown_percent = percent;
    std::fprintf(stderr, terminal ? "\r%3d %% (%d of %d requests)" : "%3d %% (%d of %d requests)\n",
                 percent, ended, load.requests);
  });
  if (terminal) std::fputs("\n", stderr);
  return result;
}

}  // namespace

int BenchMain(const std::vector<std::string>& arguments) {
  BenchFlags asked;
  FlagSet flags("tandem bench [flags]",
                "Streams completions of random token ids from a server and reports percentiles.\n"
                "Closed loop by default; --rate makes it an open loop.");
  asked.Declare(&flags);
  const auto rest = flags.Parse(arguments);
  if (flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  LoadOptions load;
  LoadTargets targets;
  const absl::Status usage = [&]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(rest.status());
    if (!rest->empty()) {
      return absl::InvalidArgumentError("unexpected argument " + rest->front());
    }
    TANDEM_ASSIGN_OR_RETURN(load, asked.Load());
    TANDEM_ASSIGN_OR_RETURN(targets, ParseTargets(asked.targets));
    return absl::OkStatus();
  }();
  if (!usage.ok()) {
    std::cerr << "tandem bench: " << usage.message() << "\n";
    return 2;
  }
  const LoadReport report = Summarise(GenerateAndShow(load), targets);
  if (asked.as_json) {
    std::cout << json::serialize(ReportJson(report)) << "\n";
  } else {
    PrintReport(report, targets);
  }
  return report.failed == 0 && (asked.may_be_refused || report.rejected == 0) ? 0 : 1;
}

}  // namespace tandem
