// The public protobuf messages to GenerateRequest, and a call's outputs to messages.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_
#define TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "services/router/generate_request.h"
#include "services/router/running_call.h"
#include "tandem/v1/inference.pb.h"

namespace tandem {

// InvalidArgument for what no GenerateRequest can say (no prompt); ranges are CheckRequest's.
absl::StatusOr<GenerateRequest> FromInferenceProto(const v1::GenerateRequest& in);

// What a response that is not streamed takes for this output, parsed and serialized.
int64_t ResponseBytes(const CallOutput& output);

// Makes the responses of one call.
class InferenceAnswer {
 public:
  explicit InferenceAnswer(const v1::GenerateRequest& request);

  // Adds to `out` what the output says; false if it says nothing yet. In a stream each response is
  // made of one output; an answer that is not streamed gathers all of them, choices in order.
  bool Add(const CallOutput& output, const std::vector<int32_t>& prompt_token_ids,
           v1::GenerateResponse* out);

 private:
  void AddPrompt(const PromptOutput& output, const std::vector<int32_t>& prompt_token_ids,
                 v1::PromptInfo* out) const;
  void AddToken(const ChoiceOutput& output, v1::SequenceOutput* out);

  const bool prompt_token_ids_, prompt_logprobs_;
  const int num_prompt_candidates_;
  const bool text_, token_ids_, logprobs_;
  const int num_candidates_;
  std::map<int, uint32_t> num_tokens_;  // By choice, so far.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_INFERENCE_CONVERT_H_
