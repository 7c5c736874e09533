// Frames of one link that wait for their turn, in the order of sends. Who hands them on says which
// of them have gone (OnFrameSent); of those that are withdrawn or left, it is told here which.

#ifndef TANDEM_RUNTIME_TRANSPORT_FRAME_QUEUE_H_
#define TANDEM_RUNTIME_TRANSPORT_FRAME_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/protocol/peer_messages.h"
#include "runtime/transport/frame_wire.h"

namespace tandem {

// Not thread-safe.
class FrameQueue {
 public:
  struct Frame {
    FrameHeader header;
    int32_t block = 0;     // Means nothing in a probe, as the next one.
    uint64_t send_id = 0;  // Used once.
    bool probe() const { return IsProbe(header); }
  };

  void Push(const FrameHeader& header, int32_t block, uint64_t send_id) {
    frames_.push_back({.header = header, .block = block, .send_id = send_id});
  }
  // Those that measure a fresh link.
  void PushProbes(int64_t block_bytes) {
    const int32_t count = NumProbes(block_bytes);
    for (int32_t i = 0; i < count; ++i) Push(ProbeHeader(i, count, block_bytes), 0, 0);
  }

  bool empty() const { return frames_.empty(); }
  size_t size() const { return frames_.size(); }
  // There is one.
  const Frame& front() const { return frames_.front(); }
  Frame Pop() {
    Frame next = frames_.front();
    frames_.pop_front();
    return next;
  }

  // False: it does not wait (any more).
  bool Withdraw(uint64_t send_id) {
    return std::erase_if(frames_, [send_id](const Frame& frame) {
             return !frame.probe() && frame.send_id == send_id;
           }) > 0;
  }

  // Leaves none. Of which sends they were.
  std::vector<uint64_t> Clear() {
    std::vector<uint64_t> sends;
    for (const Frame& frame : std::exchange(frames_, {})) {
      if (!frame.probe()) sends.push_back(frame.send_id);
    }
    return sends;
  }

 private:
  std::deque<Frame> frames_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_FRAME_QUEUE_H_
