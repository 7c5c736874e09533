#include "services/router/worker_pool.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"

namespace tandem {
namespace {

constexpr int64_t kResolvePeriodUs = 1'000'000;

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveWorkers(const std::string& name) {
  const std::optional<HostPort> parts = ParseHostPort(name);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not name:port"));
  }
  const std::string host = WithoutBrackets(parts->host), port = absl::StrCat(parts->port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", gai_strerror(error)));
  }
  std::set<std::string> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(info->ai_addr, info->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    addresses.insert(info->ai_family == AF_INET6 ? absl::StrCat("[", text, "]:", port)
                                                 : absl::StrCat(text, ":", port));
  }
  freeaddrinfo(found);
  if (addresses.empty()) return absl::UnavailableError(absl::StrCat(name, ": no address"));
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

WorkerPool::WorkerPool(const WorkerPoolOptions& options, RouterCore* core, const Clock* clock)
    : options_(options), core_(core), clock_(clock) {
  core_->SetRestartWatch([this](const WorkerId& worker) { RestartWatch(worker); });
  {
    MutexLock lock(&mu_);
    for (const std::string& address : options_.addresses) AddChannel(address);
  }
  resolved_ = options_.dns_name.empty();
  thread_ = std::thread([this] { Run(); });
}

WorkerPool::~WorkerPool() { Close(); }

void WorkerPool::Close() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
  }
  due_.Signal();
  if (thread_.joinable()) thread_.join();
}

void WorkerPool::RestartWatch(const WorkerId& worker) {
  for (const auto& channel : channels()) {
    if (channel->worker() == worker) channel->RestartWatch();
  }
}

std::vector<std::shared_ptr<WorkerChannel>> WorkerPool::channels() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<WorkerChannel>> all;
  for (const auto& [address, channel] : channels_) all.push_back(channel);
  return all;
}

void WorkerPool::Wake() {
  {
    MutexLock lock(&mu_);
    woken_ = true;
  }
  due_.Signal();
}

int64_t WorkerPool::TendLookup(int64_t now_us) {
  if (lookup_ != nullptr) {
    MutexLock lock(&lookup_->mu);
    if (!lookup_->done) return now_us + kResolvePeriodUs;  // It wakes this thread.
  }
  if (const auto ended = std::exchange(lookup_, nullptr); ended != nullptr) {
    MutexLock lock(&ended->mu);
    // A resolver that is down says nothing about the workers.
    if (ended->addresses.ok()) Follow(*ended->addresses);
  }
  if (now_us >= next_lookup_us_) {
    next_lookup_us_ = now_us + kResolvePeriodUs;
    BeginLookup();
  }
  return next_lookup_us_;
}

void WorkerPool::BeginLookup() {
  lookup_ = std::make_shared<Lookup>();
  {
    MutexLock lock(&lookup_->mu);
    lookup_->wake = [this] { Wake(); };
  }
  std::thread([lookup = lookup_, name = options_.dns_name, resolve = options_.resolve] {
    pthread_setname_np(pthread_self(), "dns");
    auto addresses = resolve(name);
    MutexLock lock(&lookup->mu);
    lookup->addresses = std::move(addresses);
    lookup->done = true;
    if (lookup->wake) lookup->wake();
  }).detach();
}

void WorkerPool::AddChannel(const std::string& address) {
  channels_[address] = std::make_shared<WorkerChannel>(address, options_.channel, core_,
                                                       &next_session_, [this] { Wake(); });
}

void WorkerPool::Follow(const std::vector<std::string>& addresses) {
  resolved_ = true;
  const std::set<std::string> wanted(addresses.begin(), addresses.end());
  core_->OnExpected(wanted);
  // A name may drop an address before its worker has gone: wait for that.
  std::vector<std::shared_ptr<WorkerChannel>> gone;
  for (const auto& channel : channels()) {
    if (wanted.count(channel->address()) == 0 && !channel->connected()) gone.push_back(channel);
  }
  {
    MutexLock lock(&mu_);
    for (const auto& channel : gone) channels_.erase(channel->address());
    for (const std::string& address : wanted) {
      if (channels_.count(address) > 0) continue;
      LogInfo("worker address found", {{"address", address}});
      AddChannel(address);
    }
  }
  for (const auto& channel : gone) {
    LogInfo("worker address gone", {{"address", channel->address()}});
    channel->Close();
  }
}

void WorkerPool::Run() {
  pthread_setname_np(pthread_self(), "workers");
  while (true) {
    const int64_t now_us = clock_->NowUs();
    int64_t next_us = now_us + 3'600'000'000;
    if (!options_.dns_name.empty()) next_us = TendLookup(now_us);
    for (const auto& channel : channels()) next_us = std::min(next_us, channel->Tend(now_us));

    MutexLock lock(&mu_);
    while (!woken_ && !closing_) {
      const int64_t left_us = next_us - clock_->NowUs();
      if (left_us <= 0) break;
      due_.WaitFor(&mu_, std::chrono::microseconds(left_us));
    }
    woken_ = false;
    if (closing_) break;
  }
  if (lookup_ != nullptr) {
    MutexLock lock(&lookup_->mu);
    lookup_->wake = nullptr;
  }
  for (const auto& channel : channels()) channel->Close();
}

}  // namespace tandem
