#include "tools/tandem/load_generator.h"

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

namespace json = boost::json;

// The first few ids are special tokens in most vocabularies.
constexpr int32_t kFirstPlainToken = 16;

struct PlannedRequest {
  std::string body;
  int64_t due_us = 0;
};

int32_t Draw(Random* random, const TokenRange& range) {
  return static_cast<int32_t>(random->Between(range.low, range.high));
}

std::vector<PlannedRequest> Plan(const LoadOptions& options) {
  Random random(options.seed);
  const auto draw_id = [&] {
    return static_cast<int32_t>(random.Between(kFirstPlainToken, options.vocabulary - 1));
  };
  std::vector<int32_t> prefix(options.shared_prefix_tokens);
  for (int32_t& id : prefix) id = draw_id();
  std::vector<PlannedRequest> plan(options.requests);
  double due_seconds = 0;
  for (PlannedRequest& request : plan) {
    json::array ids(prefix.begin(), prefix.end());
    const int32_t length =
        std::max<int32_t>(Draw(&random, options.prompt_tokens), options.shared_prefix_tokens + 1);
    while (static_cast<int32_t>(ids.size()) < length) ids.push_back(draw_id());
    const json::object body = {{"model", options.model},
                               {"prompt", std::move(ids)},
                               {"max_tokens", Draw(&random, options.output_tokens)},
                               {"temperature", options.temperature},
                               {"seed", static_cast<int64_t>(random.Next() >> 1)},
                               {"ignore_eos", true},
                               {"stream", true},
                               {"stream_options", {{"include_usage", true}}}};
    request.body = json::serialize(body);
    if (options.rate_per_second > 0) {
      due_seconds += -std::log(1 - random.Unit()) / options.rate_per_second;
      request.due_us = static_cast<int64_t>(due_seconds * 1e6);
    }
  }
  return plan;
}

// Reads one chunk of the stream into the record. False ends the request.
bool ReadChunk(std::string_view data, int64_t now_us, bool* done, RequestRecord* record) {
  if (data == "[DONE]") {
    *done = true;
    return true;
  }
  boost::system::error_code error;
  const json::value chunk = json::parse(json::string_view(data.data(), data.size()), error);
  const json::object* const object = error ? nullptr : chunk.if_object();
  if (object == nullptr || object->contains("error")) {
    record->error = std::string(data);
    return false;
  }
  if (const json::value* choices = object->if_contains("choices");
      choices != nullptr && choices->is_array() && !choices->as_array().empty()) {
    record->token_us.push_back(now_us);
  }
  if (const json::value* usage = object->if_contains("usage");
      usage != nullptr && usage->is_object()) {
    const auto number = [](const json::object& from, json::string_view key) {
      const json::value* const value = from.if_contains(key);
      return value != nullptr && value->is_int64() ? static_cast<int32_t>(value->as_int64()) : 0;
    };
    record->prompt_tokens = number(usage->as_object(), "prompt_tokens");
    record->output_tokens = number(usage->as_object(), "completion_tokens");
    if (const json::value* details = usage->as_object().if_contains("prompt_tokens_details");
        details != nullptr && details->is_object()) {
      record->cached_tokens = number(details->as_object(), "cached_tokens");
    }
  }
  return true;
}

void RunRequest(const LoadOptions& options, const PlannedRequest& request,
                const std::function<int64_t()>& now_us, std::unique_ptr<HttpConnection>* connection,
                RequestRecord* record) {
  EventStreamParser events;
  std::string body;
  bool done = false;
  absl::StatusOr<int> status = absl::UnknownError("");
  // A kept-alive connection may have been closed by the server meanwhile: then once more, afresh.
  for (const bool reused : {*connection != nullptr, false}) {
    if (*connection == nullptr) {
      const auto silence = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3));
      auto fresh = HttpConnection::Connect(options.target, silence);
      if (!fresh.ok()) {
        status = fresh.status();
        break;
      }
      *connection = *std::move(fresh);
    }
    status = (*connection)->Send("/v1/completions", request.body, [&](std::string_view piece) {
      if (body.size() < 4096) body.append(piece);
      return events.Feed(
          piece, [&](std::string_view data) { return ReadChunk(data, now_us(), &done, record); });
    });
    if (status.ok()) break;
    connection->reset();
    if (!reused || !body.empty()) break;
  }
  record->end_us = now_us();
  if (!status.ok()) {
    record->error = std::string(status.status().message());
  } else if (*status == 429 || *status == 503) {
    record->outcome = CallOutcome::kRejected;
    record->error = absl::StrCat("HTTP ", *status);
  } else if (*status != 200) {
    record->error = absl::StrCat("HTTP ", *status, ": ", body);
  } else if (record->error.empty() && !done) {
    record->error = "the stream ended before its end";
  } else if (record->error.empty()) {
    record->outcome = CallOutcome::kCompleted;
  }
  if (record->outcome == CallOutcome::kFailed) connection->reset();
}

}  // namespace

LoadResult GenerateLoad(const LoadOptions& options, const std::function<void(int)>& on_progress) {
  const std::vector<PlannedRequest> plan = Plan(options);
  LoadResult result;
  result.requests.resize(plan.size());
  std::atomic<size_t> next{0};
  Mutex progress_mu;
  int ended = 0;

  const SteadyClock clock;
  const auto start = std::chrono::steady_clock::now();
  const int64_t start_us = clock.NowUs();
  const auto now_us = [&] { return clock.NowUs() - start_us; };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.connections; ++i) {
    threads.emplace_back([&] {
      std::unique_ptr<HttpConnection> connection;
      while (true) {
        const size_t index = next.fetch_add(1);
        if (index >= plan.size()) return;
        RequestRecord& record = result.requests[index];
        if (options.rate_per_second > 0) {
          std::this_thread::sleep_until(start + std::chrono::microseconds(plan[index].due_us));
          record.due_us = plan[index].due_us;
        } else {
          record.due_us = now_us();
        }
        RunRequest(options, plan[index], now_us, &connection, &record);
        MutexLock lock(&progress_mu);
        on_progress(++ended);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  result.wall_us = now_us();
  return result;
}

}  // namespace tandem
