#include "services/router/grpc/control_service.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

constexpr char kApiVersion[] = "tandem.v1";

}  // namespace

ControlService::ControlService(CallStarter* starter, std::string instance_id,
                               std::function<bool()> ready, OpenCalls* calls, Admission admission)
    : EarlyService(calls, std::move(admission)),
      starter_(starter),
      instance_id_(std::move(instance_id)),
      ready_(std::move(ready)) {
  AddUnary<v1::GetServerInfoRequest, v1::ServerInfo>("/tandem.v1.Control/GetServerInfo",
                                                     [this](const auto&, v1::ServerInfo* response) {
                                                       DescribeServer(response);
                                                       return absl::OkStatus();
                                                     });
  AddUnary<v1::GetModelInfoRequest, v1::ModelInfo>("/tandem.v1.Control/GetModelInfo",
                                                   [this](const auto&, v1::ModelInfo* response) {
                                                     DescribeModel(response);
                                                     return absl::OkStatus();
                                                   });
  AddMethod<v1::AbortResponse>(
      "/tandem.v1.Control/Abort", [this, calls](grpc::CallbackServerContext* context) {
        return new EarlyUnary<v1::AbortRequest, v1::AbortResponse>(
            calls, context,
            [this, client = ClientOfCall(context->peer())](const auto& request, auto*) {
              for (const std::string& id : request.request_ids()) starter_->Abort(client, id);
              return absl::OkStatus();
            });
      });
}

void ControlService::DescribeServer(v1::ServerInfo* response) const {
  const FleetView view = starter_->core().View();
  uint64_t blocks = 0, sequences = 0;
  int32_t block_tokens = 0;
  for (const FleetView::Worker& worker : view.workers) {
    if (!worker.healthy) continue;
    blocks += static_cast<uint64_t>(worker.registration.kv.num_blocks);
    sequences += static_cast<uint64_t>(worker.registration.max_sequences);
    block_tokens = std::max(block_tokens, worker.registration.kv.block_tokens);
  }
  response->set_engine_version(TANDEM_VERSION);
  response->set_api_version(kApiVersion);
  response->set_instance_id(instance_id_);
  response->set_max_model_len(static_cast<uint32_t>(starter_->max_model_tokens()));
  response->set_kv_block_size(static_cast<uint32_t>(block_tokens));
  response->set_total_kv_blocks(blocks);
  response->set_max_running_requests(sequences);
  response->set_num_workers(static_cast<uint32_t>(view.workers.size()));
  response->set_ready(ready_());
}

void ControlService::DescribeModel(v1::ModelInfo* response) const {
  const ModelInfo& model = starter_->model();
  response->set_model_id(model.served_name);
  response->set_served_model_name(model.served_name);
  response->add_served_model_aliases("default");
  response->set_supports_text_input(starter_->tokenizer() != nullptr);
  response->set_supports_token_ids_input(true);
  response->set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  for (const int32_t id : model.generation.eos_token_ids) {
    response->add_eos_token_ids(static_cast<uint32_t>(id));
  }
  response->set_system_fingerprint(starter_->core().View().numerics_id);
}

}  // namespace tandem
