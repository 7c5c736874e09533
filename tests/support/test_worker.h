// Workers behind their real services whose model is simulated, so what every token should be is
// known.

#ifndef TANDEM_TESTS_SUPPORT_TEST_WORKER_H_
#define TANDEM_TESTS_SUPPORT_TEST_WORKER_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "services/worker/worker.h"
#include "tests/support/engine_cases.h"
#include "tests/support/pooled_executor.h"

namespace tandem {

inline constexpr int32_t kTestVocabulary = 1000;
inline constexpr int32_t kTestBlocks = 64;
inline constexpr int64_t kTestBlockBytes = 16 * 8;

// A hybrid worker of a SmallEngine, on any free port of loopback. The model that it serves is the
// one that requests name; those of MakeSubmit name none.
inline WorkerConfig SmallWorker(const WorkerId& id, const std::string& model = "",
                                int32_t num_blocks = kTestBlocks) {
  WorkerConfig config;
  config.transport = "ucx";
  config.engine = SmallEngine(num_blocks);
  config.engine.self = id;
  config.engine.model = model;
  config.engine.kv.block_bytes = kTestBlockBytes;
  config.registration.terms.kv_class = "class";
  config.registration.terms.numerics_id = "numerics";
  config.engine.vocab_size = kTestVocabulary;
  return config;
}

struct TestWorker {
  StepGate gate;
  WorkerId id;
  std::string address;
  std::unique_ptr<Worker> worker;

  ~TestWorker() { gate.Open(); }
  PrefillPeer peer() const { return {.worker = id, .address = address}; }
};

// Serves when it returns; null, and the test has failed, if it cannot.
inline std::unique_ptr<TestWorker> StartTestWorker(const WorkerConfig& config) {
  auto started = std::make_unique<TestWorker>();
  started->id = config.engine.self;
  auto worker =
      Worker::Create(config, [&](const KvPool& pool) -> absl::StatusOr<std::unique_ptr<Executor>> {
        return std::make_unique<PooledExecutor>(
            SimulatedExecutorOptions{.num_blocks = config.engine.kv.num_blocks,
                                     .vocabulary = kTestVocabulary},
            pool, &started->gate);
      });
  if (!worker.ok()) {
    ADD_FAILURE() << worker.status();
    return nullptr;
  }
  started->worker = *std::move(worker);
  started->address = "127.0.0.1:" + std::to_string(started->worker->port());
  return started;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_TEST_WORKER_H_
