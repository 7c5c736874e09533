// Bodies of completions and chats: whatever the bytes, they become a request that passes every
// check, or an error with HTTP status 400 or 404.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/check.h"
#include "services/router/api_error.h"
#include "services/router/http/json_request.h"

namespace tandem {
namespace {

constexpr int64_t kContextTokens = 1024;

void Check(const absl::StatusOr<GenerateRequest>& request, const ModelInfo& model) {
  const absl::Status status =
      request.ok() ? CheckRequest(*request, model, /*isolate_cache=*/false) : request.status();
  if (!status.ok()) {
    const int http_status = HttpStatusOf(status);
    TANDEM_CHECK(http_status == 400 || http_status == 404) << status;
    TANDEM_CHECK(!ErrorJson(status).empty());
    return;
  }
  const auto params = MakeSamplingParams(*request, model, /*prompt_tokens=*/10, kContextTokens, 1);
  if (!params.ok()) return;
  TANDEM_CHECK(params->max_tokens >= 1 && params->max_tokens <= kContextTokens - 10);
  TANDEM_CHECK(params->min_tokens >= 0 && params->min_tokens <= params->max_tokens);
  TANDEM_CHECK(params->temperature >= 0 && params->temperature <= 2);
  TANDEM_CHECK(params->top_p > 0 && params->top_p <= 1);
  TANDEM_CHECK(params->top_k >= 0 && params->num_logprobs >= -1 && params->num_logprobs <= 20);
  TANDEM_CHECK(request->n >= 1 && request->n <= 128);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const kModel = [] {
    auto* model = new tandem::ModelInfo;
    model->served_name = "demo";
    model->vocab_size = 4096;
    model->max_model_tokens = tandem::kContextTokens;
    model->generation.eos_token_ids = {1};
    return model;
  }();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  tandem::Check(tandem::ParseCompletionRequest(body), *kModel);
  tandem::Check(tandem::ParseChatRequest(body), *kModel);
  return 0;
}
