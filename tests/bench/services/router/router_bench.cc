// What a router costs: microseconds of its processor, allocations by C++ code and context switches,
// of a streamed completion without tokens to wait for and of each token. Another process has the
// worker, which answers at once, and the clients: all that this one does is the router's.
//
//   router_bench [repetitions]
//
// A request's costs are those of requests for one token; a token's what 64 more of them add.
// Printed is the median. `perf stat -e raw_syscalls:sys_enter --no-inherit router_bench` counts
// system calls.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/base/check.h"
#include "services/router/app/router_app.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_worker.h"
#include "tools/tandem/load_generator.h"

namespace {

std::atomic<int64_t> num_allocations{0};

}  // namespace

void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tandem {
namespace {

constexpr int32_t kTokens = 65;
constexpr int32_t kPromptTokens = 128;

struct Run {
  int32_t port = 0;
  int32_t connections = 0;
  int32_t requests = 0;
  int32_t tokens = 0;
};

template <typename T>
bool ReadFrom(int fd, T* value) {
  return read(fd, value, sizeof(*value)) == sizeof(*value);
}
template <typename T>
void WriteTo(int fd, const T& value) {
  TANDEM_CHECK(write(fd, &value, sizeof(value)) == sizeof(value));
}

// The worker and the clients.
void BeTheOthers(int runs_fd, int answers_fd) {
  FakeWorker worker({});
  WriteTo(answers_fd, worker.port());
  for (Run run; ReadFrom(runs_fd, &run);) {
    const LoadResult result = GenerateLoad(
        {.target = {.host = "127.0.0.1", .port = std::to_string(run.port), .tls_files = {}},
         .requests = run.requests,
         .connections = run.connections,
         .prompt_tokens = {kPromptTokens, kPromptTokens},
         .output_tokens = {run.tokens, run.tokens}},
        [](int) {});
    int64_t tokens = 0;
    for (const RequestRecord& record : result.requests) tokens += record.output_tokens;
    WriteTo(answers_fd, tokens);
  }
}

struct Costs {
  double cpu_us = 0, kernel_us = 0, allocations = 0, switches = 0;
};

Costs Used() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return {.cpu_us = us(usage.ru_utime) + us(usage.ru_stime),
          .kernel_us = us(usage.ru_stime),
          .allocations = static_cast<double>(num_allocations),
          .switches = static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw)};
}

Costs Scaled(const Costs& to, const Costs& from, double by) {
  return {.cpu_us = (to.cpu_us - from.cpu_us) / by,
          .kernel_us = (to.kernel_us - from.kernel_us) / by,
          .allocations = (to.allocations - from.allocations) / by,
          .switches = (to.switches - from.switches) / by};
}

// What each request took.
Costs Measure(const Run& run, int runs_fd, int answers_fd) {
  const Costs before = Used();
  WriteTo(runs_fd, run);
  int64_t tokens = 0;
  TANDEM_CHECK(ReadFrom(answers_fd, &tokens));
  TANDEM_CHECK(tokens == int64_t{run.requests} * run.tokens) << tokens << " tokens came";
  return Scaled(Used(), before, run.requests);
}

double Median(const std::vector<Costs>& costs, double Costs::*what) {
  std::vector<double> values;
  for (const Costs& cost : costs) values.push_back(cost.*what);
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void Print(int32_t connections, const char* of, const std::vector<Costs>& costs) {
  std::printf("%11d  %-8s %9.1f %12.1f %13.1f %10.2f\n", connections, of,
              Median(costs, &Costs::cpu_us), Median(costs, &Costs::kernel_us),
              Median(costs, &Costs::allocations), Median(costs, &Costs::switches));
  std::fflush(stdout);
}

void BeTheRouter(int repetitions, int runs_fd, int answers_fd) {
  int worker_port = 0;
  TANDEM_CHECK(ReadFrom(answers_fd, &worker_port));
  absl::StatusOr<std::unique_ptr<RouterApp>> router =
      RouterApp::Create({.model = std::string(TANDEM_TEST_DATA) + "/demo_model",
                         .workers = {"127.0.0.1:" + std::to_string(worker_port)},
                         .http = {.ip = "127.0.0.1"},
                         .grpc = {.ip = "127.0.0.1"}});
  TANDEM_CHECK(router.ok()) << router.status();
  TANDEM_CHECK(Eventually([&] { return (*router)->Ready(); }));

  std::printf("connections  of          cpu us    kernel us   allocations   switches\n");
  for (const int32_t connections : {1, 16, 64}) {
    const auto measure = [&](int32_t tokens) {
      return Measure({(*router)->http_port(), connections, std::max(100, 8 * connections), tokens},
                     runs_fd, answers_fd);
    };
    measure(kTokens);  // Warm.
    std::vector<Costs> request, token;
    for (int i = 0; i < repetitions; ++i) {
      request.push_back(measure(1));
      token.push_back(Scaled(measure(kTokens), request.back(), kTokens - 1));
    }
    Print(connections, "request", request);
    Print(connections, "token", token);
  }
}

int Main(int argc, char** argv) {
  int runs[2], answers[2];
  TANDEM_CHECK(pipe(runs) == 0 && pipe(answers) == 0);
  // Before anything has a thread.
  const pid_t others = fork();
  TANDEM_CHECK(others >= 0);
  if (others == 0) {
    close(runs[1]);
    BeTheOthers(runs[0], answers[1]);
    std::_Exit(0);
  }
  close(runs[0]);
  BeTheRouter(argc > 1 ? std::atoi(argv[1]) : 5, runs[1], answers[0]);
  close(runs[1]);
  waitpid(others, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
