// Encoding and streaming with the demo model's tokenizer, checked against each other first.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "runtime/base/check.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/stream_detokenizer.h"
#include "runtime/text/tokenizer.h"

namespace tandem {
namespace {

std::unique_ptr<Tokenizer> Load() {
  auto tokenizer = Tokenizer::Create(std::string(TANDEM_TEST_DATA) + "/demo_model");
  TANDEM_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::string Prose(int64_t num_bytes) {
  const std::string sentence = "And the waters called he Seas: and God saw that it was good.\n";
  std::string text;
  while (static_cast<int64_t>(text.size()) < num_bytes) text += sentence;
  text.resize(num_bytes);
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  const auto tokenizer = Load();
  TANDEM_CHECK(tokenizer->Decode(tokenizer->Encode(text, false).value()).value() == text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text, false));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void EncodeProse(benchmark::State& state) { Encode(state, Prose(state.range(0))); }
void EncodeOneWord(benchmark::State& state) { Encode(state, std::string(state.range(0), 'a')); }

void Append(benchmark::State& state) {
  const auto tokenizer = Load();
  const std::string text = Prose(20000);
  const std::vector<int32_t> ids = tokenizer->Encode(text, false).value();
  for (auto _ : state) {
    StreamDetokenizer detokenizer(tokenizer.get(), {});
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.Append(id);
    TANDEM_CHECK(streamed + detokenizer.Finish() == text);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}

void Render(benchmark::State& state) {
  const auto made = ChatTemplate::Create(std::string(TANDEM_TEST_DATA) + "/demo_model", {}).value();
  std::string messages = "[";
  for (int64_t i = 0; i < state.range(0); ++i) {
    messages += R"({"role": "user", "content": "And the earth was without form, and void"},)";
  }
  messages.back() = ']';
  TANDEM_CHECK(made->Render(messages, {}).ok());
  for (auto _ : state) benchmark::DoNotOptimize(made->Render(messages, {}));
}

BENCHMARK(EncodeProse)->Arg(100)->Arg(10'000)->Arg(1'000'000);
BENCHMARK(EncodeOneWord)->Arg(10'000)->Arg(1'000'000);
BENCHMARK(Append);
BENCHMARK(Render)->Arg(1)->Arg(100);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
