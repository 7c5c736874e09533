#include "services/http/browser_guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "services/http/http_error.h"

namespace tandem {
namespace {

std::string Lower(std::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

// "name:8000" and "[::1]:8000" without the port, as in the list of hosts; a final dot says nothing.
std::string HostOf(std::string_view field) {
  const size_t bracket = field.find(']');
  const size_t colon = field.find(':', bracket == field.npos ? 0 : bracket);
  std::string host = Lower(field.substr(0, colon));
  if (host.size() > 1 && host.back() == '.') host.pop_back();
  return host;
}

bool IsJson(std::string_view content_type) {
  std::string type = Lower(content_type.substr(0, content_type.find(';')));
  absl::StripAsciiWhitespace(&type);
  return type == "application/json";
}

class OriginExchange final : public HttpExchange {
 public:
  OriginExchange(std::shared_ptr<HttpExchange> inner, std::string_view origin)
      : inner_(std::move(inner)), origin_(origin) {}

  void Send(int status, std::string_view content_type, std::string body, Headers headers) override {
    inner_->Send(status, content_type, std::move(body), With(std::move(headers)));
  }
  void StartStream(int status, std::string_view content_type, Headers headers) override {
    inner_->StartStream(status, content_type, With(std::move(headers)));
  }
  void Write(std::string bytes) override { inner_->Write(std::move(bytes)); }
  void EndStream() override { inner_->EndStream(); }
  void Post(std::function<void()> work) override { inner_->Post(std::move(work)); }
  void OnLeft(std::function<void()> left) override { inner_->OnLeft(std::move(left)); }

 private:
  Headers With(Headers headers) const {
    headers.emplace_back("Access-Control-Allow-Origin", origin_);
    headers.emplace_back("Vary", "Origin");
    return headers;
  }

  const std::shared_ptr<HttpExchange> inner_;
  const std::string origin_;
};

}  // namespace

BrowserGuard::BrowserGuard(const BrowserGuardOptions& options)
    : loopback_(IsLoopback(options.address.ip)),
      takes_names_(options.takes_names),
      origins_(options.cors_origins) {
  for (const std::string& name : options.allowed_hosts) hosts_.push_back(HostOf(name));
  if (!loopback_ && hosts_.empty()) return;
  hosts_.insert(hosts_.end(),
                {"localhost", "127.0.0.1", "[::1]", HostOf(options.address.ToString())});
}

std::optional<GuardRefusal> BrowserGuard::CheckHost(const HttpRequest& request) const {
  if (hosts_.empty()) return std::nullopt;
  const auto is_host = [](const auto& header) { return header.first == "host"; };
  const auto given = std::count_if(request.headers.begin(), request.headers.end(), is_host);
  if (given == 0) return std::nullopt;  // No browser leaves it out.
  if (given > 1) return GuardRefusal{400, "more than one Host"};
  const std::string host = HostOf(request.Header("host"));
  // No page can have an address for its name unless it came from there. Of loopback, only its own.
  if (std::count(hosts_.begin(), hosts_.end(), host) > 0 ||
      (!loopback_ && IsIpAddress(WithoutBrackets(host)))) {
    return std::nullopt;
  }
  return GuardRefusal{403,
                      absl::StrCat("the Host \"", Shown(host), "\" is not a name of this server; ",
                                   takes_names_ ? "if it should be, start it with --allowed-host"
                                                : "ask it as localhost or by its address")};
}

std::optional<GuardRefusal> BrowserGuard::CheckPost(const HttpRequest& request) const {
  for (const auto& [name, value] : request.headers) {
    if (name != "origin" || IsConfigured(value)) continue;
    return GuardRefusal{403, absl::StrCat("pages of the origin \"", Shown(value),
                                          "\" may not use this server; if they should, start it "
                                          "with --cors-origin")};
  }
  const std::string_view type = request.Header("content-type");
  if (IsJson(type)) return std::nullopt;
  return GuardRefusal{415, absl::StrCat("the Content-Type is \"", Shown(type),
                                        "\", want application/json (with curl: -H 'Content-Type: "
                                        "application/json')")};
}

bool BrowserGuard::IsConfigured(std::string_view origin) const {
  return std::count(origins_.begin(), origins_.end(), origin) > 0;
}

std::shared_ptr<HttpExchange> BrowserGuard::ForOrigin(
    const HttpRequest& request, std::shared_ptr<HttpExchange> exchange) const {
  const std::string_view origin = request.Header("origin");
  if (!IsConfigured(origin)) return exchange;
  return std::make_shared<OriginExchange>(std::move(exchange), origin);
}

bool BrowserGuard::AnswerPreflight(const HttpRequest& request, std::string_view method,
                                   HttpExchange* exchange) const {
  if (request.method != "OPTIONS" || !IsConfigured(request.Header("origin")) ||
      request.Header("access-control-request-method").empty()) {
    return false;
  }
  exchange->Send(200, "text/plain", "",
                 {{"Access-Control-Allow-Methods", std::string(method)},
                  {"Access-Control-Allow-Headers", "authorization, content-type, x-request-id"},
                  {"Access-Control-Max-Age", "600"}});
  return true;
}

}  // namespace tandem
