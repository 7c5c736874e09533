// How fast a link is, and that it is there: what its receiving end reports, once each.

#ifndef TANDEM_RUNTIME_TRANSPORT_LINK_PROBE_H_
#define TANDEM_RUNTIME_TRANSPORT_LINK_PROBE_H_

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

// Not thread-safe.
class LinkProbe {
 public:
  // `listener` outlives this.
  LinkProbe(KvTransport::Listener* listener, std::string peer, std::string path)
      : listener_(listener), peer_(std::move(peer)), path_(std::move(path)) {}

  // A probe has arrived and been checksummed; the last one of them is reported.
  void Count(const FrameHeader& header) {
    if (header.ordinal == 0) {
      first_seconds_ = SecondsNow();
    } else if (header.ordinal + 1 == header.reservation.index) {
      const double seconds = std::max(SecondsNow() - first_seconds_, 1e-9);
      Report(static_cast<double>(header.ordinal) * static_cast<double>(header.length_bytes) /
             seconds);
    }
  }
  void Report(double bytes_per_second) {
    if (std::exchange(reported_, true)) return;
    listener_->OnLinkProbed({.peer = peer_, .path = path_, .bytes_per_second = bytes_per_second});
  }

  // The link is no more: what was reported is taken back.
  void Close() {
    if (std::exchange(reported_, false)) listener_->OnLinkClosed(peer_, path_);
  }

 private:
  KvTransport::Listener* const listener_;
  const std::string peer_;
  const std::string path_;
  double first_seconds_ = 0;
  bool reported_ = false;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_LINK_PROBE_H_
