// The public protobuf messages to GenerateRequest, and a call's news to messages.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_
#define TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "services/router/generate_request.h"
#include "services/router/generation.h"
#include "tandem/v1/inference.pb.h"

namespace tandem {

// InvalidArgument for what no GenerateRequest can say (no prompt); ranges are CheckRequest's.
absl::StatusOr<GenerateRequest> FromInferenceProto(const v1::GenerateRequest& in);

// Makes the responses of one call.
// What a response that is made whole takes for these news, parsed and serialized.
int64_t ResponseBytes(const GenerationNews& news);

class InferenceAnswer {
 public:
  explicit InferenceAnswer(const v1::GenerateRequest& request);

  // Adds to `out` what the news say; false if they say nothing yet. In a stream each response is
  // made of one news; a whole answer gathers all of them, choices in order.
  bool Add(const GenerationNews& news, const std::vector<int32_t>& prompt_token_ids,
           v1::GenerateResponse* out);

 private:
  void AddPrompt(const PromptNews& news, const std::vector<int32_t>& prompt_token_ids,
                 v1::PromptInfo* out) const;
  void AddToken(const TokenNews& news, v1::SequenceOutput* out);

  const bool prompt_token_ids_, prompt_logprobs_;
  const int num_prompt_candidates_;
  const bool text_, token_ids_, logprobs_;
  const int num_candidates_;
  std::map<int, uint32_t> num_tokens_;  // Of each choice so far.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_
