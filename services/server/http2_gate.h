// What stands before a gRPC server: it accepts the connections and gives gRPC a socket pair for
// each, through which it passes bytes both ways, looking at nothing but the nine bytes before each
// HTTP/2 frame (http2_frames.h).
//
// gRPC 1.51 makes a call out of every header block that it reads before any code of ours hears of
// it, obeys its own limit of streams only once the client says that it has heard of it, buffers one
// header field whole before it looks at its limit, and knows no bound of connections. So here:
//
// - TLS ends, where there is any; gRPC reads what it said, in the clear;
// - a connection that does not begin like HTTP/2 within its time is none;
// - a header block is passed on once it is whole, within a size and a time;
// - a connection has at most so many calls: past it nothing more is read of it until one ends. One
//   that its client has reset counts for a moment longer;
// - of all connections together only so many calls are unserved (gated_calls.h): past it they wait
//   for their turns, one header block a turn, clients by turns, of which none has more than half;
// - a connection has at most so many PINGs and SETTINGS that gRPC has not answered: past it nothing
//   more is read of it before it has;
// - each connection is charged to the memory budget, and one without calls may be cut for others;
//   so may, inside a fleet with a secret, one of whose calls none has proven itself.
//
// No frame is dropped or put in another order, and none is made up but those of SayGoodbye. A
// client that keeps to the server's settings meets none of it, but for a moment where it has reset
// a call and begins another one at the limit. One that does not wait for the settings, and begins
// more calls than they allow before it sends the first messages, waits until those calls have had
// their time.

#ifndef TANDEM_SERVICES_SERVER_HTTP2_GATE_H_
#define TANDEM_SERVICES_SERVER_HTTP2_GATE_H_

#include <grpcpp/server.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/memory_budget.h"
#include "services/server/tls_identity.h"

namespace tandem {

// A connection is charged for what gRPC takes (16 to 22 KiB were measured), and 8 KiB of what is
// read and cannot be passed on yet. More of that is charged as it comes.
inline constexpr int64_t kGateConnectionBytes = int64_t{32} << 10;
// Descriptors of a connection: the client's and a pair.
inline constexpr int kGateDescriptors = 3;
// Calls that gRPC has not served yet, over all connections of a server.
inline constexpr int kMaxUnservedCalls = 256;
// PINGs and SETTINGS of a connection. gRPC makes up an answer to each, however little is read.
inline constexpr int kMaxUnanswered = 64;
inline constexpr std::chrono::seconds kPrefaceTimeout{10};
inline constexpr std::chrono::seconds kHeaderBlockTimeout{10};
// For what gRPC sent before it ended the connection.
inline constexpr std::chrono::seconds kGateReadTimeout{10};
// For clients to hear a goodbye.
inline constexpr std::chrono::milliseconds kGoodbyeTimeout{1'000};

struct Http2GateOptions {
  std::string address;  // As ListenSocket takes it.
  TlsListener tls;
  MemoryBudget* budget = nullptr;              // Outlives the gate.
  int max_streams = 0;                         // Calls of a connection at a time.
  int64_t max_connections = int64_t{1} << 20;  // By when the budget is used up.
  int max_unserved = kMaxUnservedCalls;
  std::chrono::milliseconds goodbye_timeout = kGoodbyeTimeout;
  bool awaits_proof = false;  // GatedConnection::SetProven.
  std::chrono::milliseconds preface_timeout = kPrefaceTimeout;
  std::chrono::milliseconds header_timeout = kHeaderBlockTimeout;
  // For so long, up to twice, a call counts that its client has reset.
  std::chrono::milliseconds rest{100};
  // While others wait, a connection whose unserved calls have not changed for so long ends.
  std::chrono::milliseconds stuck_timeout{2'000};
  // As long as gRPC's own pings allow.
  std::chrono::milliseconds keepalive_time{20'000}, keepalive_timeout{10'000};
  std::chrono::milliseconds unread_timeout{60'000};
};

class Http2Gate {
 public:
  // Bound, and deaf until Serve. Unavailable if the address cannot be.
  static absl::StatusOr<std::unique_ptr<Http2Gate>> Open(const Http2GateOptions& options);
  // After the server's Shutdown and before its end (gated_server.h): what the server has sent goes
  // out, for at most kGateFlushTimeout.
  ~Http2Gate();

  int port() const;
  // For `server`, which has no port of its own. Once.
  void Serve(grpc::Server* server);
  // Before the server's Shutdown: it gets no new connection when this returns.
  void StopAccepting();
  // After StopAccepting: tells every client to begin its next calls elsewhere. gRPC's Shutdown
  // alone would end the calls that come before its clients have heard.
  void SayGoodbye();
  // All have heard it and the calls that they began before are served, or `goodbye_timeout` is
  // over.
  bool goodbye_over() const;
  // Beside the server's Shutdown, which waits for connections: ends each that has no call, once
  // what gRPC has written is passed on, whether or not its client acknowledges anything.
  void CloseIdle();

  int num_unserved() const;

 private:
  class Impl;
  explicit Http2Gate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

inline constexpr std::chrono::milliseconds kGateFlushTimeout{250};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_HTTP2_GATE_H_
