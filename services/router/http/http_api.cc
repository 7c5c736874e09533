#include "services/router/http/http_api.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/http/generate_call.h"
#include "services/router/version.h"

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

// The client's own id, where it is short and printable; else a new one.
std::string RequestIdOf(const HttpRequest& request) {
  const std::string_view given = request.Header("x-request-id");
  const bool usable =
      !given.empty() && given.size() <= kMaxRequestIdBytes &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > 32 && c < 127; });
  if (usable) return std::string(given);
  thread_local std::mt19937_64 random{std::random_device{}()};
  return absl::StrFormat("%016x%016x", random(), random());
}

void SendJson(HttpExchange* exchange, int status, std::string body, std::string_view request_id) {
  exchange->Send(status, kJson, std::move(body), {{"x-request-id", std::string(request_id)}});
}

}  // namespace

HttpApi::HttpApi(HttpApiParts parts) : parts_(std::move(parts)), started_s_(WallClockSeconds()) {}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const std::string request_id = RequestIdOf(request);
  const HttpRoute* route = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                        [&](const HttpRoute& r) { return r.path == request.path; });
  if (route == std::end(kRoutes)) {
    const bool model = request.path.size() > kModelPrefix.size() &&
                       request.path.compare(0, kModelPrefix.size(), kModelPrefix) == 0;
    if (!model) {
      return SendJson(exchange.get(), 404, ErrorJson(404, "no such route", ""), request_id);
    }
    route = &kModelRoute;
  }
  const bool allowed =
      route->post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (!allowed) {
    exchange->Send(
        405, kJson,
        ErrorJson(405, absl::StrFormat("%s takes %s", request.path, route->post ? "POST" : "GET"),
                  ""),
        {{"x-request-id", request_id}, {"Allow", route->post ? "POST" : "GET, HEAD"}});
    return;
  }
  switch (route->page) {
    case Page::kHealth:
      return SendJson(exchange.get(), 200, "{\"status\":\"ok\"}", request_id);
    case Page::kReady:
      return ServeReady(exchange.get(), request_id);
    case Page::kBuild:
      return SendJson(exchange.get(), 200, absl::StrFormat("{\"version\":\"%s\"}", kVersion),
                      request_id);
    case Page::kMetrics:
      parts_.collect_metrics([exchange, request_id](std::string text) {
        exchange->Send(200, "text/plain; version=0.0.4; charset=utf-8", std::move(text),
                       {{"x-request-id", request_id}});
      });
      return;
    case Page::kModels:
      return SendJson(exchange.get(), 200, "{\"object\":\"list\",\"data\":[" + ModelCard() + "]}",
                      request_id);
    case Page::kModel:
      return ServeModel(request.path.substr(kModelPrefix.size()), exchange.get(), request_id);
    case Page::kCompletions:
      return Generate(std::move(request), std::move(exchange), request_id, /*chat=*/false);
    case Page::kChat:
      return Generate(std::move(request), std::move(exchange), request_id, /*chat=*/true);
  }
}

void HttpApi::ServeReady(HttpExchange* exchange, const std::string& request_id) {
  const FleetView view = parts_.generator->core().View();
  std::string body = absl::StrFormat("{\"ready\":%s,\"workers\":%d,\"awaited\":[",
                                     parts_.ready() ? "true" : "false", view.workers.size());
  for (size_t i = 0; i < view.awaited.size(); ++i) {
    if (i > 0) body += ',';
    AppendJsonString(view.awaited[i], &body);
  }
  SendJson(exchange, parts_.ready() ? 200 : 503, body + "]}", request_id);
}

std::string HttpApi::ModelCard() const {
  const ModelInfo& model = parts_.generator->model();
  std::string out = "{\"id\":";
  AppendJsonString(model.served_name, &out);
  out += absl::StrFormat(",\"object\":\"model\",\"created\":%d,\"owned_by\":\"tandem\",\"root\":",
                         started_s_);
  AppendJsonString(model.served_name, &out);
  out += absl::StrFormat(",\"parent\":null,\"max_model_len\":%d}",
                         parts_.generator->max_model_tokens());
  return out;
}

void HttpApi::ServeModel(const std::string& name, HttpExchange* exchange,
                         const std::string& request_id) {
  if (parts_.generator->model().Names(name)) {
    return SendJson(exchange, 200, ModelCard(), request_id);
  }
  const absl::Status status =
      WithApiCode(WithField(absl::NotFoundError(absl::StrFormat(
                                "the model \"%s\" is not served here", name.substr(0, 256))),
                            "model"),
                  kModelNotFound);
  SendJson(exchange, 404, ErrorJson(status), request_id);
}

void HttpApi::Generate(HttpRequest request, std::shared_ptr<HttpExchange> exchange,
                       const std::string& request_id, bool chat) {
  auto call =
      std::make_shared<GenerateCall>(parts_.generator, std::move(exchange), request_id, chat);
  call->WatchClient();
  auto shared_request = std::make_shared<HttpRequest>(std::move(request));
  if (!parts_.pool->TryPost([call, shared_request] { call->Begin(*shared_request); })) {
    call->Refuse(absl::ResourceExhaustedError("too many requests wait to be tokenized"));
  }
}

}  // namespace tandem
