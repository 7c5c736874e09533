#include "runtime/transport/stream/named_links.h"

#include <utility>

namespace tandem {

class NamedLinks::Source final : public FrameSource {
 public:
  Source(NamedLinks* links, FrameStream* stream)
      : hold_(links->holders_), links_(links), stream_(stream) {}
  ~Source() override {
    if (const auto link = Link(); link != nullptr) link->OnStreamGone();
  }

  absl::Status Begin(const std::string& token) override EXCLUDES(mu_) {
    const std::shared_ptr<SendingLink> link = links_->Forget(token);
    if (link == nullptr) return absl::NotFoundError("no KV link of that token");
    bool peer_gone = false;
    {
      MutexLock lock(&mu_);
      link_ = link;
      peer_gone = peer_gone_;
    }
    if (peer_gone) link->Close(PeerGone());
    return link->Join(stream_) ? absl::OkStatus() : absl::UnavailableError("closed");
  }
  void OnWritten(bool ok) override { Link()->OnWritten(ok); }
  void OnReady() override { Link()->OnReady(); }
  void OnPeerGone() override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      peer_gone_ = true;
    }
    if (const auto link = Link(); link != nullptr) link->Close(PeerGone());
  }

 private:
  static absl::Status PeerGone() { return absl::UnavailableError("the peer ended the stream"); }
  std::shared_ptr<SendingLink> Link() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return link_;
  }

  const Holders::Hold hold_;  // Goes last.
  NamedLinks* const links_;
  FrameStream* const stream_;
  Mutex mu_;
  std::shared_ptr<SendingLink> link_ GUARDED_BY(mu_);  // From Begin.
  bool peer_gone_ GUARDED_BY(mu_) = false;
};

class NamedLinks::Outbound final : public KvOutbound {
 public:
  Outbound(NamedLinks* links, std::string token, std::string address,
           std::shared_ptr<SendingLink> link, std::shared_ptr<LostCallbackOnce> on_lost)
      : links_(links),
        token_(std::move(token)),
        address_(std::move(address)),
        link_(std::move(link)),
        on_lost_(std::move(on_lost)) {}
  ~Outbound() override {
    on_lost_->Clear();
    links_->Forget(token_);
    link_->Close(absl::CancelledError("the session ended"));
  }
  const std::string& address() const override { return address_; }
  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override {
    link_->Send(header, block, send_id);
  }
  void Withdraw(uint64_t send_id) override { link_->Withdraw(send_id); }

 private:
  NamedLinks* const links_;
  const std::string token_;
  const std::string address_;
  const std::shared_ptr<SendingLink> link_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
};

absl::StatusOr<std::unique_ptr<KvOutbound>> NamedLinks::Open(
    const std::string& token, std::string address, std::shared_ptr<SendingLink> link,
    std::shared_ptr<LostCallbackOnce> on_lost) {
  {
    MutexLock lock(&mu_);
    if (!awaited_.emplace(token, link).second) {
      return absl::FailedPreconditionError("KV link token: in use already");
    }
  }
  return std::make_unique<Outbound>(this, token, std::move(address), std::move(link),
                                    std::move(on_lost));
}

std::unique_ptr<FrameSource> NamedLinks::Accept(FrameStream* stream) {
  return std::make_unique<Source>(this, stream);
}

std::shared_ptr<SendingLink> NamedLinks::Forget(const std::string& token) {
  MutexLock lock(&mu_);
  const auto found = awaited_.find(token);
  if (found == awaited_.end()) return nullptr;
  std::shared_ptr<SendingLink> link = std::move(found->second);
  awaited_.erase(found);
  return link;
}

}  // namespace tandem
