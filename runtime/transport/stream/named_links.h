// The sender's ends of a transport's links, each of which waits for a stream (frame_stream.h): its
// receiver dials one, which names the link by its token, once.

#ifndef TANDEM_RUNTIME_TRANSPORT_STREAM_NAMED_LINKS_H_
#define TANDEM_RUNTIME_TRANSPORT_STREAM_NAMED_LINKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/holders.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/stream/frame_stream.h"

namespace tandem {

// What a transport does with one. Any thread.
class SendingLink {
 public:
  virtual ~SendingLink() = default;
  // As of KvOutbound.
  virtual void Send(const FrameHeader& header, int32_t block, uint64_t send_id) = 0;
  virtual void Withdraw(uint64_t send_id) = 0;
  // Its stream, until OnStreamGone. False if the link is closed.
  virtual bool Join(FrameStream* stream) = 0;
  virtual void OnWritten(bool ok) = 0;
  // The receiver says that it is ready; a link that did not ask is lost.
  virtual void OnReady() {
    Close(absl::InvalidArgumentError("the receiver says that it is ready, and nobody asked"));
  }
  virtual void OnStreamGone() = 0;
  // Any number of times; the first one says why.
  virtual void Close(const absl::Status& why) = 0;
};

// For a carrier to serve.
class NamedLinks final : public FrameServer {
 public:
  // Streams hold the transport, whose `holders` outlive this.
  explicit NamedLinks(Holders* holders) : holders_(holders) {}

  // The engine's end, which tells the peer `address`; `link` waits under `token`.
  // FailedPrecondition if another does.
  absl::StatusOr<std::unique_ptr<KvOutbound>> Open(const std::string& token, std::string address,
                                                   std::shared_ptr<SendingLink> link,
                                                   std::shared_ptr<LostCallbackOnce> on_lost)
      EXCLUDES(mu_);
  std::unique_ptr<FrameSource> Accept(FrameStream* stream) override;

 private:
  class Source;
  class Outbound;

  // The link that waits for a stream, which it waits for no more. Null if there is none.
  std::shared_ptr<SendingLink> Forget(const std::string& token) EXCLUDES(mu_);

  Holders* const holders_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<SendingLink>> awaited_ GUARDED_BY(mu_);  // By token.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_STREAM_NAMED_LINKS_H_
