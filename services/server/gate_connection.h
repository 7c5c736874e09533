// One client's connection behind http2_gate.h, whose thread all of this is of. Internal to the
// gate.

#ifndef TANDEM_SERVICES_SERVER_GATE_CONNECTION_H_
#define TANDEM_SERVICES_SERVER_GATE_CONNECTION_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/client_turns.h"
#include "runtime/base/memory_budget.h"
#include "services/server/gated_calls.h"
#include "services/server/http2_frames.h"
#include "services/server/http2_gate.h"
#include "services/server/socket_stream.h"

namespace tandem {

class GateConnection;

// What all connections of a gate share; outlives them.
struct GateShared {
  static constexpr size_t kScratchBytes = size_t{129} << 10;

  Http2GateOptions options;
  int64_t connection_bytes = 0;  // What each is charged, with kIncludedBytes of what is kept.
  boost::asio::io_context* io = nullptr;
  std::function<void(int descriptor)> give_to_grpc;  // Which closes it.
  std::shared_ptr<UnservedCalls> calls;
  std::function<void()> on_closed;                     // One was.
  bool closes_idle = false;                            // Http2Gate::CloseIdle.
  ClientTurns<std::shared_ptr<GateConnection>> turns;  // To pass one header block each.
  char scratch[kScratchBytes] = {};                    // For the connection that is reading.
};

// A socket that is read and written without waiting.
class GateSocket {
 public:
  using OnReady = std::function<void(const boost::system::error_code& error)>;

  GateSocket(boost::asio::io_context* io, int descriptor)
      : socket_(*io, descriptor), stream_(descriptor) {}
  GateSocket(boost::asio::io_context* io, int descriptor, const TlsListener& tls)
      : socket_(*io, descriptor), stream_(descriptor, tls, kAlpnHttp2) {}

  SocketStream& stream() { return stream_; }
  // Until a Read, or a Write, that would have blocked makes sense again. Not if it is closed first.
  void AwaitReadable(OnReady on_ready) { Await(stream_.read_awaits(), std::move(on_ready)); }
  void AwaitWritable(OnReady on_ready) { Await(stream_.write_awaits(), std::move(on_ready)); }
  // Whether poll tells one of `events`.
  bool Polls(short events);
  void Close();

 private:
  void Await(SocketStream::Awaits awaits, OnReady on_ready);

  boost::asio::posix::stream_descriptor socket_;
  SocketStream stream_;
};

class GateConnection : public std::enable_shared_from_this<GateConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  // `address` as gRPC would name the peer.
  GateConnection(GateShared* gate, int descriptor, const std::string& address);

  // False if there is no room for it.
  bool Begin();
  // It is this connection's turn to pass a header block.
  void TakeTurn();
  // Now and then, some 100 ms apart. False: it is over.
  bool Tick(Clock::time_point now);
  // Tells the client to begin no call any more (RFC 9113 §6.8).
  void SayGoodbye();
  // The client knows, and all calls that it began before have been passed on; or it is over.
  bool goodbye_heard() const {
    return closed_ || (goodbye_said_ && num_awaited_ == 0 && up_.judged_bytes == 0);
  }
  void Close();
  void CloseIfIdle();
  void Abandon();  // Closes, once the gate's thread has ended.
  bool greeted() const { return up_.frames.greeted(); }

 private:
  // One direction.
  struct Flow {
    explicit Flow(Http2Frames::Sender sender) : frames(sender) {}

    Http2Frames frames;
    std::string kept;         // Read, but not passed on yet...
    size_t judged_bytes = 0;  // ...of which so much may be, as soon as there is room for it.
    bool ended = false;       // The sender has sent all.
    bool reading = false;     // The sender has nothing to read.
    bool writing = false;     // The receiver has no room.
  };
  enum class Verdict { kReadOn, kWait, kBroken };

  bool up(const Flow& flow) const { return &flow == &up_; }
  GateSocket& From(const Flow& flow) { return up(flow) ? client_ : *grpc_; }
  GateSocket& To(const Flow& flow) { return up(flow) ? *grpc_ : client_; }

  void Advance(Flow* flow);
  void AdvanceLater(Flow* flow);
  void AwaitReadable(Flow* flow);
  void AwaitWritable(Flow* flow);
  void End(Flow* flow);
  void Keep(Flow* flow, std::string_view bytes);
  bool Charge();
  void SetDue(Verdict verdict, bool passed);
  void WhenPassedOn(std::function<void()> done);
  void PassedOn();

  Verdict Judge(Flow* flow, size_t* size);
  bool GoodbyeIsDue(const Flow& flow) const;
  void InsertGoodbye(size_t* size);
  bool OpenGrpc();
  bool MayBeginCall(uint32_t stream);
  bool MayAsk();
  void OnAnswer();
  void EndCall(uint32_t stream, bool by_client);
  void CountCalls();
  // With those that were reset a moment ago.
  int num_open() const { return static_cast<int>(streams_.size()) + just_reset_ + reset_before_; }

  GateShared* const gate_;
  GateSocket client_;
  std::unique_ptr<GateSocket> grpc_;  // Once the preface has come.
  const std::shared_ptr<GatedConnection> calls_;
  std::unique_ptr<MemoryBudget::Holding> holding_;
  int64_t kept_bytes_ = 0;  // Charged for what is kept.
  Flow up_{Http2Frames::Sender::kClient}, down_{Http2Frames::Sender::kServer};
  std::vector<std::function<void()>> when_passed_on_;  // What gRPC had written by then.
  bool closed_ = false;
  Clock::time_point due_ = Clock::time_point::max();        // For the preface or a header block.
  Clock::time_point flush_due_ = Clock::time_point::max();  // For what gRPC sent before it ended.

  std::set<uint32_t> streams_;  // The ids of calls that are open.
  uint32_t last_stream_ = 0;
  int just_reset_ = 0, reset_before_ = 0;  // Calls that were reset a moment ago.
  Clock::time_point forget_due_;           // The latter are, at that time.
  bool at_limit_ = false;                  // `up` waits for one of them to end...
  bool queued_ = false;                    // ...or for its turn.
  bool has_turn_ = false;
  bool leaving_ = false;       // The client is to hear it...
  bool goodbye_said_ = false;  // ...and it is on its way.
  int num_awaited_ = 0;        // Answers that the client owes.
  int num_unanswered_ = 0;     // Answers that the client is owed.
  bool unheard_ = false;       // `up` waits for an answer.
  bool may_be_cut_ = true;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_GATE_CONNECTION_H_
