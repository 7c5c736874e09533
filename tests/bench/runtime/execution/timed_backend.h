// A backend that adds up how long each kind of operation takes: where a step's time goes.
//
// Operations of the backend are over when their calls return, as the cpu's are: of a device this
// would be what enqueuing takes.

#ifndef TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_
#define TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/forwarding_backend.h"

namespace tandem {

class TimedBackend final : public ForwardingBackend {
 public:
  // What a projection is called in a profile.
  using NameLinear = std::function<std::string(const LinearSpec& spec)>;

  TimedBackend(std::unique_ptr<Backend> backend, NameLinear name_linear)
      : ForwardingBackend(std::move(backend)), name_linear_(std::move(name_linear)) {}

  // Seconds by kind since the last call of this.
  std::map<std::string, double> TakeSeconds() { return std::exchange(seconds_, {}); }

  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override {
    return Time("copies", [&] { return backend().Upload(to, from, size_bytes); });
  }
  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override {
    return Time("copies", [&] { return backend().Download(to, from, size_bytes); });
  }
  absl::Status Linear(const LinearArgs& args) override {
    return Time(name_linear_(args.op->spec()), [&] { return backend().Linear(args); });
  }

// `kind` is what a profile calls `Operation`.
#define TANDEM_TIMED(Operation, kind)                             \
  absl::Status Operation(const Operation##Args& args) override {  \
    return Time(kind, [&] { return backend().Operation(args); }); \
  }
  TANDEM_TIMED(Embedding, "rows")
  TANDEM_TIMED(RmsNorm, "norms")
  TANDEM_TIMED(LayerNorm, "norms")
  TANDEM_TIMED(Add, "rows")
  TANDEM_TIMED(SoftCap, "rows")
  TANDEM_TIMED(GatherRows, "rows")
  TANDEM_TIMED(Sample, "sampling")
  TANDEM_TIMED(RotaryTable, "rotary and KV write")
  TANDEM_TIMED(RotaryKvWrite, "rotary and KV write")
  TANDEM_TIMED(DecodeAttention, "attention")
  TANDEM_TIMED(PrefillAttention, "attention")
  TANDEM_TIMED(CopyBlocks, "copies")
  TANDEM_TIMED(ChecksumBlocks, "copies")
  TANDEM_TIMED(DiscardBlocks, "copies")
#undef TANDEM_TIMED

 private:
  template <typename Call>
  absl::Status Time(const std::string& kind, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    absl::Status status = call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    seconds_[kind] += seconds.count();
    return status;
  }

  const NameLinear name_linear_;
  std::map<std::string, double> seconds_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_
