#include "services/router/http/http_api.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/http/generate_call.h"

namespace tandem {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kModelPrefix = "/v1/models/";

enum class Page { kHealth, kReady, kBuild, kMetrics, kModels, kModel, kCompletions, kChat };

struct HttpRoute {
  std::string_view path;
  bool post;
  Page page;
};

constexpr HttpRoute kRoutes[] = {
    {"/health", false, Page::kHealth},           {"/ready", false, Page::kReady},
    {"/version", false, Page::kBuild},           {"/metrics", false, Page::kMetrics},
    {"/v1/models", false, Page::kModels},        {"/v1/completions", true, Page::kCompletions},
    {"/v1/chat/completions", true, Page::kChat},
};
constexpr HttpRoute kModelRoute = {kModelPrefix, false, Page::kModel};

void SendJson(HttpExchange* exchange, int status, std::string body) {
  exchange->Send(status, kJson, std::move(body));
}

// "a%2Fb" is "a/b"; a percent sign that is no code stays.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* const code = text.data() + i + 1;
    unsigned char byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(code, code + 2, byte, 16).ptr == code + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

HttpApi::HttpApi(HttpApiParts parts)
    : parts_(std::move(parts)), guard_(parts_.guard), started_s_(WallClockSeconds()) {}

bool HttpApi::RefusesAtHeader(const HttpRequest& header) const {
  return guard_.CheckHost(header).has_value() || !CheckKey(header).ok();
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  exchange = guard_.ForOrigin(request, std::move(exchange));
  const auto refused = [&exchange](const std::optional<GuardRefusal>& refusal) {
    if (!refusal.has_value()) return false;
    SendJson(exchange.get(), refusal->status, ErrorJson(refusal->status, refusal->message));
    return true;
  };
  if (refused(guard_.CheckHost(request))) return;
  if (const absl::Status admitted = CheckKey(request); !admitted.ok()) {
    const std::string message(admitted.message());
    return exchange->Send(401, kJson, ErrorJson(401, message, "invalid_api_key"),
                          {{"WWW-Authenticate", "Bearer"}});
  }
  const HttpRoute* route = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                        [&](const HttpRoute& r) { return r.path == request.path; });
  if (route != std::end(kRoutes) && route->page == Page::kMetrics && parts_.metrics == nullptr) {
    route = std::end(kRoutes);
  }
  if (route == std::end(kRoutes)) {
    const bool model = request.path.size() > kModelPrefix.size() &&
                       request.path.compare(0, kModelPrefix.size(), kModelPrefix) == 0;
    if (!model) {
      return SendJson(exchange.get(), 404, ErrorJson(404, NoSuchRoute(request.path)));
    }
    route = &kModelRoute;
  }
  const char* const methods = route->post ? "POST" : "GET, HEAD";
  if (guard_.AnswerPreflight(request, methods, exchange.get())) return;
  const bool allowed =
      route->post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (!allowed) {
    exchange->Send(
        405, kJson,
        ErrorJson(405, absl::StrFormat("%s takes %s", request.path, route->post ? "POST" : "GET")),
        {{"Allow", methods}});
    return;
  }
  if (route->post && refused(guard_.CheckPost(request))) return;
  switch (route->page) {
    case Page::kHealth:
      return SendProbe(parts_.health(), exchange.get());
    case Page::kReady:
      return SendProbe(parts_.ready(), exchange.get());
    case Page::kBuild:
      return SendVersion(exchange.get());
    case Page::kMetrics:
      return SendMetrics(parts_.metrics, exchange);
    case Page::kModels:
      return SendJson(exchange.get(), 200, "{\"object\":\"list\",\"data\":[" + ModelCard() + "]}");
    case Page::kModel:
      return ServeModel(PercentDecoded(request.path.substr(kModelPrefix.size())), exchange.get());
    case Page::kCompletions:
      return Generate(std::move(request), std::move(exchange), /*chat=*/false);
    case Page::kChat:
      return Generate(std::move(request), std::move(exchange), /*chat=*/true);
  }
}

absl::Status HttpApi::CheckKey(const HttpRequest& request) const {
  // A browser asks without it whether it may send it; load balancers have none.
  if (parts_.keys == nullptr || request.method == "OPTIONS" || request.path == "/health" ||
      request.path == "/ready") {
    return absl::OkStatus();
  }
  const bool once = std::count_if(request.headers.begin(), request.headers.end(),
                                  [](const auto& h) { return h.first == "authorization"; }) == 1;
  return parts_.keys->Check(once ? request.Header("authorization") : "");
}

std::string HttpApi::ModelCard() const {
  const ModelInfo& model = parts_.starter->model();
  std::string out = "{\"id\":";
  AppendJsonString(model.served_name, &out);
  out += absl::StrFormat(",\"object\":\"model\",\"created\":%d,\"owned_by\":\"tandem\",\"root\":",
                         started_s_);
  AppendJsonString(model.served_name, &out);
  out +=
      absl::StrFormat(",\"parent\":null,\"max_model_len\":%d}", parts_.starter->max_model_tokens());
  return out;
}

void HttpApi::ServeModel(const std::string& name, HttpExchange* exchange) {
  const ModelInfo& model = parts_.starter->model();
  if (model.Names(name)) return SendJson(exchange, 200, ModelCard());
  SendJson(exchange, 404, ErrorJson(NotServed(model, name, "model")));
}

void HttpApi::Generate(HttpRequest request, std::shared_ptr<HttpExchange> exchange, bool chat) {
  const size_t bytes = request.body.size();
  const auto call =
      std::make_shared<GenerateCall>(parts_.starter, std::move(exchange), std::move(request), chat);
  call->WatchClient();
  call->Post(parts_.pool, bytes);
}

}  // namespace tandem
