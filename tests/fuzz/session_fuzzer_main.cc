// session_fuzzer: plays hostile peers to processes that run already (tools/dev/fuzz_sessions).

#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/flags.h"
#include "tests/fuzz/session_peers.h"
#include "tests/support/raw_http.h"

namespace tandem {
namespace {

struct Options {
  std::string workers;
  int32_t http = 0;
  int32_t hostile_port = 0;
  int32_t messages = 1'000'000;
  int32_t seed = 1;
};

int Main(const std::vector<std::string>& arguments) {
  Options o;
  FlagSet flags("session_fuzzer --workers ADDR,... --http PORT [flags]",
                "Lies to workers and to a router, as every kind of peer.");
  flags.Add("workers", &o.workers, "ADDR,...", "gRPC addresses of the workers");
  flags.Add("http", &o.http, "PORT", "where the router answers clients");
  flags.Add("hostile-port", &o.hostile_port, "PORT", "where the router expects one more worker");
  flags.Add("messages", &o.messages, "N", "to send, shared by all", 1, 1'000'000'000);
  flags.Add("seed", &o.seed, "N", "what is said", 0, INT32_MAX);
  const auto rest = flags.Parse(arguments);
  if (!rest.ok() || !rest->empty()) {
    std::cerr << "session_fuzzer: " << (rest.ok() ? rest->front() : rest.status().ToString())
              << "\n";
    return 2;
  }
  const std::vector<std::string> workers = absl::StrSplit(o.workers, ',');
  const auto seed = static_cast<uint64_t>(o.seed);
  const auto like = RegistrationOf(workers.front());
  if (!like.ok()) {
    std::cerr << like.status().ToString() << "\n";
    return 1;
  }
  MessageBudget budget(o.messages);
  std::vector<std::string> findings(workers.size() + 1);
  {
    HostileWorker hostile(o.hostile_port, *like, seed, &budget);
    std::vector<std::thread> attacks;
    for (size_t i = 0; i < workers.size(); ++i) {
      attacks.emplace_back([&, i] { findings[i] = FuzzWorker(workers[i], seed + i, &budget); });
    }
    attacks.emplace_back([&] { ActAsClient(o.http, seed, &budget); });
    for (std::thread& attack : attacks) attack.join();
  }
  const RawAnswer answer = RawHttp(o.http).Exchange(
      "/v1/completions", R"({"model":"default","prompt":[5,6,7],"max_tokens":4})");
  if (answer.status != 200) findings.back() = "the router answered " + answer.body;
  int failures = 0;
  for (const std::string& finding : findings) {
    if (finding.empty()) continue;
    ++failures;
    std::cerr << "session_fuzzer: " << finding << "\n";
  }
  std::printf("%lld messages, %d findings\n", static_cast<long long>(budget.sent()), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(std::vector<std::string>(argv + 1, argv + argc));
}
