#include "services/server/gated_calls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/memory_budget.h"

namespace tandem {
namespace {

constexpr std::string_view kDescriptor = "fd:";

// Descriptors are the process's, and so is this. As many entries as descriptors were ever open.
struct Connections {
  Mutex mu;
  std::map<std::string, std::shared_ptr<GatedConnection>, std::less<>> by_peer GUARDED_BY(mu);
};

Connections& All() {
  static auto* const all = new Connections;
  return *all;
}

std::shared_ptr<GatedConnection> Find(const std::string& peer) {
  if (!peer.starts_with(kDescriptor)) return nullptr;
  MutexLock lock(&All().mu);
  const auto found = All().by_peer.find(peer);
  return found == All().by_peer.end() ? nullptr : found->second;
}

}  // namespace

int UnservedCalls::count() const {
  MutexLock lock(&mu_);
  return count_;
}

bool UnservedCalls::HasRoomOrAwait(const std::string& client) {
  MutexLock lock(&mu_);
  const auto its = by_client_.find(client);
  if (count_ < most_ && (its == by_client_.end() || its->second < most_ / 2)) return true;
  awaited_ = true;
  return false;
}

void UnservedCalls::Stop() {
  MutexLock lock(&mu_);
  awaited_ = false;
}

GatedConnection::GatedConnection(std::shared_ptr<UnservedCalls> calls, std::string address)
    : calls_(std::move(calls)), address_(std::move(address)), client_(ClientOfPeer(address_)) {}

int GatedConnection::num_unserved() const {
  return std::max(open_, served_ + leaving_) - std::min(open_, served_);
}

void GatedConnection::Change(int open, int served, int leaving) {
  const int before = num_unserved();
  open_ = open;
  served_ = served;
  leaving_ = leaving;
  const int more = num_unserved() - before;
  calls_->count_ += more;
  int& its = calls_->by_client_[client_];
  its += more;
  if (its == 0) calls_->by_client_.erase(client_);
  changed_ = Clock::now();
  if (calls_->awaited_ && more < 0) {
    calls_->awaited_ = false;
    calls_->on_room_();
  }
}

void GatedConnection::SetOpen(int open) {
  MutexLock lock(&calls_->mu_);
  Change(open, served_, leaving_);
}

void GatedConnection::AddServed(int served, int leaving) {
  MutexLock lock(&calls_->mu_);
  Change(open_, served_ + served, leaving_ + leaving);
}

void GatedConnection::WhenPassedOn(std::function<void()> done) {
  {
    MutexLock lock(&pass_mu_);
    if (pass_on_ != nullptr) return pass_on_(std::move(done));
  }
  done();
}

void GatedConnection::SetPassOn(std::function<void(std::function<void()>)> pass_on) {
  MutexLock lock(&pass_mu_);
  pass_on_ = std::move(pass_on);
}

void GatedConnection::SetProven() {
  if (proven_.exchange(true)) return;
  MutexLock lock(&pass_mu_);
  if (on_proven_ != nullptr) on_proven_();
}

void GatedConnection::SetOnProven(std::function<void()> proven) {
  MutexLock lock(&pass_mu_);
  on_proven_ = std::move(proven);
}

bool GatedConnection::StuckSince(Clock::time_point time) const {
  MutexLock lock(&calls_->mu_);
  return num_unserved() > 0 && changed_ <= time;
}

void GatedConnection::Name(int descriptor, std::shared_ptr<GatedConnection> connection) {
  MutexLock lock(&All().mu);
  All().by_peer.insert_or_assign(std::string(kDescriptor) + std::to_string(descriptor),
                                 std::move(connection));
}

std::string NameOfPeer(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return std::string(kUnixAddress);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]:", ntohs(v6.sin6_port));
}

std::string AddressOfPeer(const std::string& peer) {
  const auto connection = Find(peer);
  return connection == nullptr ? peer : connection->address();
}

std::string ClientOfCall(const std::string& peer) { return ClientOfPeer(AddressOfPeer(peer)); }

void SetPeerProven(const std::string& peer) {
  if (const auto connection = Find(peer); connection != nullptr) connection->SetProven();
}

ServedCall::ServedCall(const std::string& peer) : connection_(Find(peer)) {
  if (connection_ != nullptr) connection_->AddServed(1, 0);
}

ServedCall::~ServedCall() {
  if (connection_ != nullptr) connection_->AddServed(leaving_ ? 0 : -1, leaving_ ? -1 : 0);
}

void ServedCall::Leave() {
  if (std::exchange(leaving_, true) || connection_ == nullptr) return;
  connection_->AddServed(-1, 1);
}

}  // namespace tandem
