// One completion or chat over HTTP, from the body to the last byte.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_
#define TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/http/http_server.h"
#include "services/router/client_call.h"
#include "services/router/http/json_answer.h"

namespace tandem {

class GenerateCall final : public ClientCall {
 public:
  GenerateCall(CallStarter* starter, std::shared_ptr<HttpExchange> exchange, HttpRequest request,
               bool chat);

  // On the connection's strand, first: from now on a client that leaves ends it.
  void WatchClient();

 private:
  absl::StatusOr<GenerateRequest> Parse() override;
  void OnBegun(const GenerateRequest& request, const RunningCall& running) override;
  void OnOutput() override;
  // Strand.
  void ServeStream(const std::vector<CallOutput>& outputs);
  void ServeOnce(const std::vector<CallOutput>& outputs);
  void SendError(const absl::Status& status);

  const std::shared_ptr<HttpExchange> exchange_;
  const std::string request_id_;
  const bool chat_;
  std::optional<HttpRequest> request_;  // Until it is parsed.

  // ---- Set before there are outputs; then strand only ----
  bool stream_ = false;
  bool stream_started_ = false;
  std::unique_ptr<JsonAnswer> answer_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_
