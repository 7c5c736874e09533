#include "tools/tandem/chat.h"

#include <boost/json.hpp>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "runtime/base/flags.h"
#include "runtime/base/status_macros.h"
#include "tools/tandem/http_client.h"

namespace tandem {
namespace {

namespace json = boost::json;

struct ChatOptions {
  std::string target = "http://127.0.0.1:8000";
  HttpTlsFlags tls;
  std::string model = "default";
  std::string system;
  std::string message;
  double temperature = 0.7;
  int32_t max_tokens = 256;
  int64_t seed = -1;
};

// The message of an OpenAI error body, or the body itself.
std::string ErrorMessage(const std::string& body) {
  boost::system::error_code error;
  const json::value value = json::parse(body, error);
  if (error || !value.is_object()) return body;
  const json::value* const inner = value.as_object().if_contains("error");
  if (inner == nullptr || !inner->is_object()) return body;
  const json::value* const message = inner->as_object().if_contains("message");
  return message != nullptr && message->is_string() ? std::string(message->as_string()) : body;
}

// The text that a chunk adds; an error event becomes a Status.
absl::StatusOr<std::string> ChunkText(std::string_view data) {
  boost::system::error_code error;
  const json::value chunk = json::parse(json::string_view(data.data(), data.size()), error);
  if (error || !chunk.is_object()) {
    return absl::InternalError(absl::StrCat("not a chunk: ", std::string(data)));
  }
  if (chunk.as_object().contains("error")) {
    return absl::UnavailableError(ErrorMessage(std::string(data)));
  }
  const json::value* const choices = chunk.as_object().if_contains("choices");
  if (choices == nullptr || !choices->is_array() || choices->as_array().empty()) return "";
  const json::object* const choice = choices->as_array()[0].if_object();
  const json::value* const delta = choice == nullptr ? nullptr : choice->if_contains("delta");
  if (delta == nullptr || !delta->is_object()) return "";
  const json::value* const content = delta->as_object().if_contains("content");
  if (content == nullptr || !content->is_string()) return "";
  return std::string(content->as_string());
}

// Prints the answer as it streams and returns it whole.
absl::StatusOr<std::string> Ask(const HttpTarget& target, const ChatOptions& options,
                                const json::array& messages) {
  json::object request = {{"model", options.model},
                          {"messages", messages},
                          {"stream", true},
                          {"max_tokens", options.max_tokens},
                          {"temperature", options.temperature}};
  if (options.seed >= 0) request["seed"] = options.seed;
  TANDEM_ASSIGN_OR_RETURN(auto connection, HttpConnection::Connect(target));
  EventStreamParser events;
  std::string answer, body;
  absl::Status failed;
  bool done = false;
  const auto on_data = [&](std::string_view data) {
    if (data == "[DONE]") {
      done = true;
      return true;
    }
    const absl::StatusOr<std::string> text = ChunkText(data);
    if (!text.ok()) {
      failed = text.status();
      return false;
    }
    answer += *text;
    std::fputs(text->c_str(), stdout);
    std::fflush(stdout);
    return true;
  };
  TANDEM_ASSIGN_OR_RETURN(const int status,
                          connection->Send("/v1/chat/completions", json::serialize(request),
                                           [&](std::string_view piece) {
                                             if (body.size() < 65536) body.append(piece);
                                             return events.Feed(piece, on_data);
                                           }));
  std::fputs("\n", stdout);
  if (status != 200) {
    return absl::UnavailableError(absl::StrCat("HTTP ", status, ": ", ErrorMessage(body)));
  }
  TANDEM_RETURN_IF_ERROR(failed);
  if (!done) return absl::UnavailableError("the stream ended before its end");
  return answer;
}

}  // namespace

int ChatMain(const std::vector<std::string>& arguments) {
  ChatOptions options;
  FlagSet flags("tandem chat [flags]",
                "Reads messages line by line and streams the answers. Ctrl-D ends it.");
  flags.Add("target", &options.target, "URL", "the server");
  options.tls.Declare(&flags);
  flags.Add("model", &options.model, "NAME", "the served model");
  flags.Add("system", &options.system, "TEXT", "a system message, where the template takes one");
  flags.Add("message", &options.message, "TEXT", "ask this one thing and exit");
  flags.Add("temperature", &options.temperature, "X", "0 is greedy", 0, 2);
  flags.Add("max-tokens", &options.max_tokens, "N", "longest answer", 1);
  flags.Add("seed", &options.seed, "N", "-1: the server draws one", -1);
  const auto rest = flags.Parse(arguments);
  if (flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const auto target = ParseHttpTarget(options.target, options.tls);
  absl::Status usage = rest.ok() ? target.status() : rest.status();
  if (usage.ok() && !rest->empty()) {
    usage = absl::InvalidArgumentError("unexpected argument " + rest->front());
  }
  if (!usage.ok()) {
    std::cerr << "tandem chat: " << usage.message() << "\n";
    return 2;
  }

  json::array messages;
  if (!options.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.system}});
  }
  std::string line = options.message;
  while (true) {
    if (options.message.empty()) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
      if (!std::getline(std::cin, line)) break;
      if (line.empty()) continue;
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    const absl::StatusOr<std::string> answer = Ask(*target, options, messages);
    if (!answer.ok()) {
      std::cerr << "tandem chat: " << answer.status().message() << "\n";
      if (!options.message.empty()) return 1;
      messages.pop_back();  // The next line starts from what was answered.
      continue;
    }
    if (!options.message.empty()) return 0;
    messages.push_back({{"role", "assistant"}, {"content", *answer}});
  }
  std::fputs("\n", stdout);
  return 0;
}

}  // namespace tandem
