// One completion or chat over HTTP, from the body to the last byte.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_
#define TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_

#include <memory>
#include <string>

#include "services/http/http_server.h"
#include "services/router/generation_slot.h"
#include "services/router/generator.h"
#include "services/router/http/json_answer.h"

namespace tandem {

class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(Generator* generator, std::shared_ptr<HttpExchange> exchange, std::string request_id,
               bool chat);

  // On the connection's strand, first: from now on a client that leaves ends it.
  void WatchClient();
  // On a text thread: parses, tokenizes, starts; nothing if the client has left.
  void Begin(const HttpRequest& request);
  // Answers with an error instead: the call never became a request. Any thread.
  void Refuse(const absl::Status& status);

 private:
  absl::Status TryBegin(const HttpRequest& request);
  void OnNews();  // Any thread.
  // Strand.
  void ServeStream(const std::vector<GenerationNews>& all);
  void ServeWhole(const std::vector<GenerationNews>& all, Generation* generation);
  void SendError(const absl::Status& status);  // Any thread.

  Generator* const generator_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::string request_id_;
  const bool chat_;
  const int64_t arrived_us_;

  GenerationSlot slot_;

  // ---- Set by Begin before the generation starts; then strand only ----
  bool stream_ = false;
  bool stream_started_ = false;
  std::unique_ptr<JsonAnswer> answer_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_GENERATE_CALL_H_
