#include "runtime/base/memory_budget.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/ip_address.h"

namespace tandem {
namespace {

// The part of the limit that may be on its way out before a client makes no more room for itself.
constexpr int64_t kLeavingShare = 4;
// The part of the limit up to which a client that asks for more has others' idle holdings go.
constexpr int64_t kWorkingShare = 4;
// The part of the limit by which what clients hold idle may differ and still be alike: 16
// connections.
constexpr int64_t kSlackShare = 256;

}  // namespace

int64_t MemoryBudget::held_bytes() const {
  MutexLock lock(&mu_);
  return held_bytes_;
}

int64_t MemoryBudget::returned_bytes() const {
  MutexLock lock(&mu_);
  return returned_bytes_;
}

int64_t MemoryBudget::num_refused() const {
  MutexLock lock(&mu_);
  return num_refused_;
}

void MemoryBudget::Delist(Holding* holding) {
  if (holding->bytes_ == 0) return;
  const auto found = clients_.find(holding->client_);
  Client& client = found->second;
  Unrank(holding->client_, client);
  const Order order{holding->bytes_, -holding->number_, holding};
  client.may_be_cut.erase(order);
  if (client.idle.erase(holding->number_) > 0) client.idle_bytes -= holding->bytes_;
  client.bytes -= holding->bytes_;
  held_bytes_ -= holding->bytes_;
  holding->bytes_ = 0;
  Rank(holding->client_, client);
  if (client.bytes == 0) clients_.erase(found);
}

void MemoryBudget::Enlist(Holding* holding, int64_t bytes) {
  if (bytes == 0) return;
  Client& client = clients_[holding->client_];
  Unrank(holding->client_, client);
  client.bytes += bytes;
  held_bytes_ += bytes;
  holding->bytes_ = bytes;
  if (holding->may_be_cut_ && holding->idle_) {
    client.idle_bytes += bytes;
    client.idle.emplace(holding->number_, holding);
  } else if (holding->may_be_cut_) {
    client.may_be_cut.emplace(bytes, -holding->number_, holding);
  }
  Rank(holding->client_, client);
}

void MemoryBudget::Rank(const std::string& name, const Client& client) {
  if (!client.may_be_cut.empty()) by_bytes_.emplace(client.bytes, name);
  if (client.idle.empty()) return;
  by_idle_.emplace(client.idle_bytes / Slack(), -client.idle.begin()->first, name);
}

void MemoryBudget::Unrank(const std::string& name, const Client& client) {
  by_bytes_.erase({client.bytes, name});
  if (client.idle.empty()) return;
  by_idle_.erase({client.idle_bytes / Slack(), -client.idle.begin()->first, name});
}

int64_t MemoryBudget::Slack() const { return std::max<int64_t>(1, limit_bytes_ / kSlackShare); }

void MemoryBudget::Left(Holding* holding) {
  leaving_bytes_ -= holding->leaving_bytes_;
  returned_bytes_ += std::exchange(holding->leaving_bytes_, 0);
}

MemoryBudget::Holding* MemoryBudget::IdleVictim(Holding* asking, int64_t bytes) {
  if (by_idle_.empty()) return nullptr;
  const auto& [most_slacks, age, name] = *by_idle_.rbegin();
  const auto own = clients_.find(asking->client_);
  const int64_t more_bytes = bytes - asking->bytes_;
  const int64_t own_bytes = (own == clients_.end() ? 0 : own->second.bytes) + more_bytes;
  const int64_t own_idle_bytes = (own == clients_.end() ? 0 : own->second.idle_bytes) + more_bytes;
  const int64_t own_working_bytes = own_bytes - own_idle_bytes;
  const bool holds_much = own_working_bytes > limit_bytes_ / kWorkingShare;
  bool other = name != asking->client_;
  if (asking->idle_) {  // Whoever holds much makes room for it by what is its own.
    other = other && !holds_much && most_slacks >= own_idle_bytes / Slack();
  } else if (own_bytes > limit_bytes_ / kWorkingShare) {
    return nullptr;
  }
  if (!other && leaving_bytes_ > limit_bytes_ / kLeavingShare) return nullptr;
  const auto client = other ? clients_.find(name) : own;
  if (client == clients_.end()) return nullptr;
  for (const auto& [number, oldest] : client->second.idle) {
    if (oldest != asking) return oldest;
  }
  return nullptr;
}

MemoryBudget::Holding* MemoryBudget::Victim(Holding* asking, int64_t bytes) {
  if (Holding* const idle = IdleVictim(asking, bytes)) return idle;
  const auto own = clients_.find(asking->client_);
  const int64_t own_bytes = (own == clients_.end() ? 0 : own->second.bytes) + bytes -
                            asking->bytes_ + (asking->idle_ ? Slack() : 0);
  const auto most = by_bytes_.empty() ? by_bytes_.end() : std::prev(by_bytes_.end());
  const bool other =
      most != by_bytes_.end() && most->second != asking->client_ && most->first >= own_bytes;
  const auto client = other ? clients_.find(most->second) : own;
  if (client == clients_.end()) return nullptr;
  if (!other && leaving_bytes_ > limit_bytes_ / kLeavingShare) return nullptr;
  // Where its own client is the one, `asking` counts as large as it would be.
  const Order as_it_would_be{other ? 0 : bytes, -asking->number_, asking};
  const auto& may_be_cut = client->second.may_be_cut;
  for (auto largest = may_be_cut.rbegin(); largest != may_be_cut.rend(); ++largest) {
    if (*largest < as_it_would_be && !other) return nullptr;
    if (std::get<Holding*>(*largest) != asking) return std::get<Holding*>(*largest);
  }
  return nullptr;
}

absl::Status MemoryBudget::Exhausted(int64_t bytes) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "memory: %d more bytes wanted for this client, %d of %d are in use (--memory-limit)", bytes,
      held_bytes_, limit_bytes_));
}

absl::Status MemoryBudget::Set(Holding* holding, int64_t bytes) {
  MutexLock lock(&mu_);
  if (holding->was_cut_) {
    if (bytes == 0) {
      Left(holding);
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "memory: cut off, as this client held most when %d bytes were in use (--memory-limit)",
        limit_bytes_));
  }
  if (bytes == holding->bytes_) return absl::OkStatus();
  while (held_bytes_ - holding->bytes_ + bytes > limit_bytes_ && bytes > holding->bytes_) {
    Holding* const victim = Victim(holding, bytes);
    if (victim == nullptr) {
      ++num_refused_;
      return Exhausted(bytes - holding->bytes_);
    }
    ++num_cut_;
    leaving_bytes_ += victim->bytes_;
    victim->leaving_bytes_ = victim->bytes_;
    Delist(victim);
    victim->was_cut_ = true;
    victim->cut_();
  }
  returned_bytes_ += std::max<int64_t>(0, holding->bytes_ - bytes);
  Delist(holding);
  Enlist(holding, bytes);
  return absl::OkStatus();
}

// What only the holding's own thread changes it may read without the lock.
void MemoryBudget::SetMayBeCut(Holding* holding, bool may_be_cut) {
  may_be_cut = may_be_cut && holding->cut_ != nullptr;
  if (may_be_cut == holding->may_be_cut_) return;
  MutexLock lock(&mu_);
  const int64_t bytes = holding->bytes_;
  Delist(holding);
  holding->may_be_cut_ = may_be_cut;
  Enlist(holding, bytes);
}

void MemoryBudget::SetIdle(Holding* holding, bool idle) {
  if (idle == holding->idle_) return;
  MutexLock lock(&mu_);
  const int64_t bytes = holding->bytes_;
  Delist(holding);
  holding->idle_ = idle;
  Enlist(holding, bytes);
}

absl::StatusOr<std::shared_ptr<MemoryBudget::Holding>> MemoryBudget::Hold(const std::string& client,
                                                                          int64_t bytes) {
  auto holding = std::make_shared<Holding>(this, client);
  if (const absl::Status status = holding->Set(bytes); !status.ok()) return status;
  return holding;
}

MemoryBudget::Holding::Holding(MemoryBudget* budget, std::string client, std::function<void()> cut)
    : budget_(budget),
      client_(std::move(client)),
      cut_(std::move(cut)),
      may_be_cut_(cut_ != nullptr) {
  MutexLock lock(&budget_->mu_);
  number_ = budget_->next_number_++;
}

MemoryBudget::Holding::~Holding() {
  MutexLock lock(&budget_->mu_);
  budget_->Left(this);
  budget_->returned_bytes_ += bytes_;
  budget_->Delist(this);
}

int64_t MemoryBudget::Holding::bytes() const {
  MutexLock lock(&budget_->mu_);
  return bytes_;
}

std::string ClientOfPeer(const std::string& peer) {
  std::string host = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  for (const char* scheme : {"ipv4:", "ipv6:"}) {
    if (host.rfind(scheme, 0) == 0) host.erase(0, std::strlen(scheme));
  }
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos) host.resize(colon);
  host = WithoutBrackets(host);
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return host;
  char text[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return inet_ntop(AF_INET, v6.s6_addr + 12, text, sizeof(text));
  std::memset(v6.s6_addr + 8, 0, 8);
  return inet_ntop(AF_INET6, &v6, text, sizeof(text));
}

}  // namespace tandem
