#include <gtest/gtest.h>

#include "tests/fuzz/mutation.h"

namespace tandem {
namespace {

TEST(HttpRequestFuzzTest, DamagedBodiesAreAnsweredNotBelieved) {
  constexpr uint64_t kSeed = 20260301;
  RecordProperty("seed", static_cast<int>(kSeed));
  RunFuzzer(
      {R"({"model":"demo","prompt":"text","max_tokens":16,"temperature":0.5,"top_p":0.9})",
       R"({"prompt":[[1,2,3],[4,5]],"n":2,"stop":["a","b"],"logprobs":5,"seed":-1})",
       R"({"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true},"top_k":40})",
       R"({"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":5,"logprobs":true})",
       R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stop":"x"})",
       R"({"prompt":"a","tools":null,"logit_bias":{},"response_format":{"type":"text"}})",
       R"({"prompt":"a","logit_bias":{"17":-100,"4095":2.5,"0":1e2,"3":-0}})",
       R"({"prompt":"\u00e9\ud83d\ude00","stop_token_ids":[1,4095],"min_tokens":3})",
       R"({"prompt":"a","x":[[[[[[{"a":{"b":[1e308,-0,123456789012345678901234567890]}}]]]]]]})"},
      /*count=*/30000, kSeed);
  SUCCEED() << "every input was answered";
}

}  // namespace
}  // namespace tandem
