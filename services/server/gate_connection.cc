#include "services/server/gate_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

namespace tandem {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// What is read at a time: of a server more, as it sends KV blocks.
constexpr size_t kReadOfClientBytes = size_t{16} << 10;
constexpr size_t kReadOfServerBytes = size_t{64} << 10;
static_assert(kReadOfClientBytes >= SocketStream::kMaxRecordBytes);
static_assert(kMaxHeaderBlockBytes + 2 * kReadOfClientBytes <= GateShared::kScratchBytes);
// Then others have their turn.
constexpr int kReadsInARow = 8;
// Bytes kept that every connection is charged for anyway; what is beyond is charged in such steps.
constexpr int64_t kIncludedBytes = int64_t{8} << 10;
// GOAWAY, after which every stream is still served that the client began before it heard, and a
// PING whose acknowledgement says that it has. gRPC takes that for one that it does not await, and
// counts its own PINGs from 0.
constexpr std::string_view kGoodbye{
    "\0\0\x8\x7\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0"
    "\0\0\x8\x6\0\0\0\0\0goodbye!",
    34};
static_assert(2 * kReadOfServerBytes + kGoodbye.size() <= GateShared::kScratchBytes);

}  // namespace

// ---- Sockets ----

void GateSocket::Close() {
  stream_.SayGoodbye();
  stream_.Detach();
  error_code ignored;
  socket_.close(ignored);
}

bool GateSocket::Polls(short events) {
  pollfd polled{.fd = socket_.native_handle(), .events = events, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

void GateSocket::Await(SocketStream::Awaits awaits, OnReady on_ready) {
  const auto ready = awaits == SocketStream::Awaits::kReadable
                         ? asio::posix::stream_descriptor::wait_read
                         : asio::posix::stream_descriptor::wait_write;
  socket_.async_wait(ready, std::move(on_ready));
}

// ---- A connection ----

GateConnection::GateConnection(GateShared* gate, int descriptor, const std::string& address)
    : gate_(gate),
      client_(gate->io, descriptor, gate->options.tls),
      calls_(std::make_shared<GatedConnection>(gate->calls, address)) {}

bool GateConnection::Begin() {
  holding_ = std::make_unique<MemoryBudget::Holding>(gate_->options.budget, calls_->client(),
                                                     [weak = weak_from_this(), io = gate_->io] {
                                                       asio::post(*io, [weak] {
                                                         if (const auto self = weak.lock())
                                                           self->Close();
                                                       });
                                                     });
  holding_->SetIdle(true);  // Where it may be cut.
  if (!holding_->Set(gate_->connection_bytes).ok()) return false;
  due_ = Clock::now() + gate_->options.preface_timeout;
  AwaitReadable(&up_);
  return true;
}

bool GateConnection::OpenGrpc() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return false;
  grpc_ = std::make_unique<GateSocket>(gate_->io, pair[0]);
  GatedConnection::Name(pair[1], calls_);
  calls_->SetPassOn([weak = weak_from_this(), io = gate_->io](std::function<void()> done) {
    asio::post(*io, [weak, done = std::move(done)] {
      if (const auto self = weak.lock()) return self->WhenPassedOn(done);
      done();
    });
  });
  if (gate_->options.awaits_proof) {
    calls_->SetOnProven([weak = weak_from_this(), io = gate_->io] {
      asio::post(*io, [weak] {
        if (const auto self = weak.lock()) self->CountCalls();
      });
    });
  }
  gate_->give_to_grpc(pair[1]);
  AwaitReadable(&down_);
  return true;
}

void GateConnection::Close() {
  if (std::exchange(closed_, true)) return;
  client_.Close();
  if (grpc_ != nullptr) grpc_->Close();
  std::string().swap(up_.kept);
  std::string().swap(down_.kept);
  calls_->SetPassOn(nullptr);
  calls_->SetOnProven(nullptr);
  PassedOn();
  due_ = flush_due_ = Clock::time_point::max();
  // gRPC cancels them now.
  just_reset_ += static_cast<int>(streams_.size());
  streams_.clear();
  CountCalls();
  gate_->on_closed();
}

void GateConnection::CloseIfIdle() {
  const bool silent = down_.judged_bytes == 0 && (grpc_ == nullptr || !grpc_->Polls(POLLIN));
  if (!closed_ && streams_.empty() && silent) Close();
}

void GateConnection::Abandon() {
  Close();
  holding_.reset();
}

bool GateConnection::Tick(Clock::time_point now) {
  if (closed_ && just_reset_ + reset_before_ == 0) {
    holding_.reset();
    return false;
  }
  if (just_reset_ + reset_before_ > 0 && now >= forget_due_) {
    forget_due_ = now + gate_->options.rest;
    reset_before_ = std::exchange(just_reset_, 0);
    CountCalls();
  }
  if (closed_) return true;
  if (gate_->closes_idle) CloseIfIdle();
  // A client that waits for the end of its own calls and has sent its last byte waits for nobody.
  const bool left = at_limit_ || unheard_ ? client_.Polls(POLLRDHUP) : queued_ && client_.Polls(0);
  const bool in_the_way =
      !gate_->turns.empty() && calls_->StuckSince(now - gate_->options.stuck_timeout);
  if (left || in_the_way || std::min(due_, flush_due_) <= now) {
    Close();
  } else if (down_.writing && flush_due_ == Clock::time_point::max() && grpc_->Polls(0)) {
    flush_due_ = now + kGateReadTimeout;
  }
  return true;
}

// ---- Passing bytes on ----

// Until there is nothing to do: then it has made sure to be called again. May be called at any
// time.
void GateConnection::Advance(Flow* flow) {
  if (flow->writing) return;
  for (int i = 0; i < kReadsInARow && !closed_; ++i) {
    char* const scratch = gate_->scratch;
    size_t size = flow->kept.copy(scratch, GateShared::kScratchBytes);
    Verdict verdict = Judge(flow, &size);
    if (verdict == Verdict::kReadOn && flow->judged_bytes == 0) {
      if (flow->ended) return End(flow);
      const ssize_t got = From(*flow).stream().Read(
          scratch + size, up(*flow) ? kReadOfClientBytes : kReadOfServerBytes);
      if (got == SocketStream::kWouldBlock) {
        if (!up(*flow)) PassedOn();
        return AwaitReadable(flow);
      }
      if (got == SocketStream::kLost && up(*flow)) return Close();
      if (got <= 0) {
        flow->ended = true;
        continue;
      }
      size += static_cast<size_t>(got);
      verdict = Judge(flow, &size);
    }
    if (verdict == Verdict::kBroken || closed_) return Close();

    size_t written = 0;
    if (flow->judged_bytes > 0) {
      const ssize_t done = To(*flow).stream().Write({scratch, flow->judged_bytes});
      if (done == SocketStream::kLost && !up(*flow)) return Close();
      if (done == SocketStream::kLost) {  // gRPC has ended. What it sent before still goes out.
        std::string().swap(flow->kept);
        flow->judged_bytes = 0;
        return;
      }
      written = static_cast<size_t>(std::max<ssize_t>(0, done));
    }
    flow->judged_bytes -= written;
    Keep(flow, {scratch + written, size - written});
    if (!Charge()) return Close();
    if (up(*flow)) SetDue(verdict, written > 0);
    if (flow->judged_bytes > 0) return AwaitWritable(flow);
    if (verdict == Verdict::kWait) return;
  }
  if (!closed_) AdvanceLater(flow);
}

void GateConnection::AdvanceLater(Flow* flow) {
  asio::post(*gate_->io, [self = shared_from_this(), flow] { self->Advance(flow); });
}

void GateConnection::AwaitReadable(Flow* flow) {
  if (std::exchange(flow->reading, true)) return;
  From(*flow).AwaitReadable([self = shared_from_this(), flow](const error_code& error) {
    flow->reading = false;
    if (!error) self->Advance(flow);
  });
}

void GateConnection::AwaitWritable(Flow* flow) {
  flow->writing = true;
  To(*flow).AwaitWritable([self = shared_from_this(), flow](const error_code& error) {
    flow->writing = false;
    if (!error) self->Advance(flow);
  });
}

void GateConnection::End(Flow* flow) {
  if (!up(*flow) || grpc_ == nullptr) return Close();
  grpc_->stream().EndWriting();
}

void GateConnection::Keep(Flow* flow, std::string_view bytes) {
  if (bytes != flow->kept) std::string(bytes).swap(flow->kept);
}

bool GateConnection::Charge() {
  const auto kept = static_cast<int64_t>(up_.kept.size() + down_.kept.size());
  const int64_t bytes = (kept / kIncludedBytes) * kIncludedBytes;
  if (bytes == kept_bytes_) return true;
  kept_bytes_ = bytes;
  return holding_->Set(gate_->connection_bytes + bytes).ok();
}

void GateConnection::WhenPassedOn(std::function<void()> done) {
  if (closed_ || (down_.judged_bytes == 0 && !grpc_->Polls(POLLIN))) return done();
  when_passed_on_.push_back(std::move(done));
}

void GateConnection::PassedOn() {
  for (const auto& done : std::exchange(when_passed_on_, {})) done();
}

// An unfinished header block, or the beginning of a frame, has its time.
void GateConnection::SetDue(Verdict verdict, bool passed) {
  if (!up_.frames.greeted()) return;
  if (verdict == Verdict::kWait || up_.judged_bytes > 0 || up_.kept.empty()) {
    due_ = Clock::time_point::max();
  } else if (passed || due_ == Clock::time_point::max()) {
    due_ = Clock::now() + gate_->options.header_timeout;
  }
}

// ---- Calls ----

// Judges the pieces that stand in the scratch, as far as they may be passed on.
GateConnection::Verdict GateConnection::Judge(Flow* flow, size_t* size) {
  while (true) {
    if (GoodbyeIsDue(*flow)) InsertGoodbye(size);
    const std::string_view bytes(gate_->scratch, *size);
    const Http2Piece piece = flow->frames.Peek(bytes.substr(flow->judged_bytes));
    switch (piece.kind) {
      case Http2Piece::Kind::kMore:
        return Verdict::kReadOn;
      case Http2Piece::Kind::kBroken:
        return Verdict::kBroken;
      case Http2Piece::Kind::kHeaders:
        if (!MayBeginCall(piece.stream)) return Verdict::kWait;
        break;
      case Http2Piece::Kind::kBytes:
        if (grpc_ == nullptr && !OpenGrpc()) return Verdict::kBroken;
        if (up(*flow) && piece.asks && !MayAsk()) return Verdict::kWait;
        if (!up(*flow) && piece.answers) OnAnswer();
        if (!up(*flow) && piece.asks) ++num_awaited_;
        if (up(*flow) && piece.answers) num_awaited_ = std::max(0, num_awaited_ - 1);
        if (piece.ends) EndCall(piece.stream, up(*flow));
        break;
    }
    flow->frames.Take(piece);
    flow->judged_bytes += piece.bytes;
  }
}

void GateConnection::SayGoodbye() {
  leaving_ = true;
  if (!closed_ && grpc_ != nullptr) Advance(&down_);
}

bool GateConnection::GoodbyeIsDue(const Flow& flow) const {
  return !up(flow) && leaving_ && !goodbye_said_ && flow.frames.between_frames();
}

void GateConnection::InsertGoodbye(size_t* size) {
  char* const at = gate_->scratch + down_.judged_bytes;
  std::copy_backward(at, gate_->scratch + *size, gate_->scratch + *size + kGoodbye.size());
  kGoodbye.copy(at, kGoodbye.size());
  *size += kGoodbye.size();
  down_.judged_bytes += kGoodbye.size();
  goodbye_said_ = true;
  ++num_awaited_;
}

// False: `up` goes on once it may.
bool GateConnection::MayBeginCall(uint32_t stream) {
  if (stream <= last_stream_) return true;  // The end of a call, or nothing to gRPC.
  if (queued_) return false;
  at_limit_ = num_open() >= gate_->options.max_streams;
  if (at_limit_) return false;
  const std::string& client = calls_->client();
  if (!has_turn_ && (gate_->turns.Of(client) != nullptr || !gate_->calls->HasRoomOrAwait(client))) {
    gate_->turns.Add(client, shared_from_this());
    queued_ = true;
    return false;
  }
  has_turn_ = false;
  last_stream_ = stream;
  streams_.insert(stream);
  CountCalls();
  return true;
}

// False: `up` goes on once one has been answered.
bool GateConnection::MayAsk() {
  unheard_ = num_unanswered_ >= kMaxUnanswered;
  if (!unheard_) ++num_unanswered_;
  return !unheard_;
}

void GateConnection::OnAnswer() {
  num_unanswered_ = std::max(0, num_unanswered_ - 1);
  if (std::exchange(unheard_, false)) AdvanceLater(&up_);
}

void GateConnection::EndCall(uint32_t stream, bool by_client) {
  if (streams_.erase(stream) == 0) return;
  if (by_client || up_.ended) ++just_reset_;  // gRPC cancels them in both cases.
  CountCalls();
}

void GateConnection::TakeTurn() {
  queued_ = false;
  has_turn_ = true;
  Advance(&up_);
  has_turn_ = false;
}

void GateConnection::CountCalls() {
  calls_->SetOpen(num_open());
  const bool stranger = gate_->options.awaits_proof && !calls_->proven();
  if (const bool may_be_cut = stranger || streams_.empty(); may_be_cut != may_be_cut_) {
    may_be_cut_ = may_be_cut;
    holding_->SetMayBeCut(may_be_cut_);
  }
  if (at_limit_ && num_open() < gate_->options.max_streams && !closed_) {
    at_limit_ = false;
    AdvanceLater(&up_);
  }
}

}  // namespace tandem
