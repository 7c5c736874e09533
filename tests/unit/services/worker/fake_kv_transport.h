// A transport that does nothing but remember what it is asked for.

#ifndef TANDEM_TESTS_UNIT_SERVICES_WORKER_FAKE_KV_TRANSPORT_H_
#define TANDEM_TESTS_UNIT_SERVICES_WORKER_FAKE_KV_TRANSPORT_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

class FakeKvTransport final : public KvTransport {
 public:
  struct Sent {
    FrameHeader header;
    int32_t block = -1;
    uint64_t send_id = 0;
    bool operator==(const Sent&) const = default;
  };
  static constexpr char kAddress[] = "the sender's address";

  std::string_view name() const override { return "fake"; }
  const KvPool& pool() const override { return pool_; }
  absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string&, const std::string&,
                                                         LostCallback) override {
    return absl::FailedPreconditionError("there is no way in");
  }
  absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(const std::string& receiver_address,
                                                           LostCallback on_lost) override {
    MutexLock lock(&mu_);
    receivers_.push_back(receiver_address);
    on_lost_ = std::move(on_lost);
    return std::make_unique<Outbound>(this);
  }

  // The link that was opened last is lost.
  void Lose(const absl::Status& why) EXCLUDES(mu_) {
    LostCallback on_lost;
    {
      MutexLock lock(&mu_);
      on_lost = on_lost_;
    }
    on_lost(why);
  }
  std::vector<Sent> sent() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return sent_;
  }
  std::vector<uint64_t> withdrawn() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return withdrawn_;
  }
  std::vector<std::string> receivers() EXCLUDES(mu_) {  // One for each link.
    MutexLock lock(&mu_);
    return receivers_;
  }
  int num_open() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return num_open_;
  }

 private:
  class Outbound final : public KvOutbound {
   public:
    explicit Outbound(FakeKvTransport* transport) : transport_(transport) {
      ++transport_->num_open_;  // Under its lock.
    }
    ~Outbound() override {
      MutexLock lock(&transport_->mu_);
      --transport_->num_open_;
    }
    const std::string& address() const override { return transport_->address_; }
    void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override {
      MutexLock lock(&transport_->mu_);
      transport_->sent_.push_back({header, block, send_id});
    }
    void Withdraw(uint64_t send_id) override {
      MutexLock lock(&transport_->mu_);
      transport_->withdrawn_.push_back(send_id);
    }

   private:
    FakeKvTransport* const transport_;
  };

  const KvPool pool_;
  const std::string address_ = kAddress;
  Mutex mu_;
  LostCallback on_lost_ GUARDED_BY(mu_);
  std::vector<Sent> sent_ GUARDED_BY(mu_);
  std::vector<uint64_t> withdrawn_ GUARDED_BY(mu_);
  std::vector<std::string> receivers_ GUARDED_BY(mu_);
  int num_open_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVICES_WORKER_FAKE_KV_TRANSPORT_H_
