// What UcxLinks keeps about each link and message; private to its two source files.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/ucx/ucx_links.h"

namespace tandem {

enum MessageId : unsigned { kFrameId = 1, kAckId = 2 };

struct UcxLinks::Outbound {
  uint64_t link = 0;
  std::string peer;
  UcxAddress remote;
  std::shared_ptr<LostCallbackOnce> on_lost;
  ucp_ep_h endpoint = nullptr;
  std::unique_ptr<absl::Status> error = std::make_unique<absl::Status>();  // By the endpoint.
  bool broken = false;

  struct Waiting {
    FrameHeader header;
    int32_t block = 0;
    uint64_t send_id = 0;
    bool probe = false;
  };
  std::deque<Waiting> waiting;
  std::set<uint64_t> unacknowledged;  // Records.
};

struct UcxLinks::Inbound {
  uint64_t link = 0;
  std::string peer;
  UcxAddress remote;
  bool attached = false;
  std::shared_ptr<LostCallbackOnce> on_lost;
  ucp_ep_h endpoint = nullptr;
  std::unique_ptr<absl::Status> error = std::make_unique<absl::Status>();
  bool broken = false;
  std::vector<UcxAck> early_acks;  // Of probes that came before Attach.
  double first_probe_seconds = 0;
};

// Exists until the message has left UCX and its frame is acknowledged or given up.
struct UcxLinks::SendRecord {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  uint64_t outbound = 0;
  uint64_t send_id = 0;
  bool probe = false;
  bool in_ucx = false;
  bool acknowledged = false;
  bool abandoned = false;
  bool reported = false;
  UcxFrameMessage message;  // UCX reads it until the send completes.
};

struct UcxLinks::AckRecord {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  UcxAck message;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_
