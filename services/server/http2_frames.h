// What one end of an HTTP/2 connection sends (RFC 9113), cut into pieces by the nine bytes that
// begin each frame. Payloads are not looked at.

#ifndef TANDEM_SERVICES_SERVER_HTTP2_FRAMES_H_
#define TANDEM_SERVICES_SERVER_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

// A header block: HEADERS and its CONTINUATIONs, with what begins each frame. gRPC answers metadata
// beyond half of it by itself.
inline constexpr size_t kMaxHeaderBlockBytes = size_t{32} << 10;
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

struct Http2Piece {
  enum class Kind {
    kMore,     // More bytes are needed first.
    kBytes,    // The preface, a frame, or as much of it as there is: to be passed as it comes.
    kHeaders,  // A client's header block, whole.
    kBroken,   // No HTTP/2, or a header block that is too long.
  };
  Kind kind = Kind::kMore;
  size_t bytes = 0;      // The size of the piece.
  size_t left = 0;       // What is left of its frame behind it.
  uint32_t stream = 0;   // The stream whose frame begins here; else 0.
  bool ends = false;     // For who sends it, the stream is over: RST_STREAM, a server's END_STREAM.
  bool asks = false;     // The other end has to answer: PING, SETTINGS...
  bool answers = false;  // ...and does.
  bool in_block = false;  // More of its header block follows in other frames.
};

class Http2Frames {
 public:
  enum class Sender { kClient, kServer };

  explicit Http2Frames(Sender sender) : sender_(sender) {}

  // The next piece. `bytes` begin where the last one that was taken ended.
  Http2Piece Peek(std::string_view bytes);
  // What Peek has just said is passed on.
  void Take(const Http2Piece& piece);

  // A client's preface was taken, or a server's first frame.
  bool greeted() const { return greeted_; }
  // A frame of another stream, or of the connection, may stand here.
  bool between_frames() const { return greeted_ && left_ == 0 && !in_server_block_; }

 private:
  Http2Piece PeekBlock(std::string_view bytes);

  const Sender sender_;
  bool greeted_ = false;
  size_t left_ = 0;  // What is still to come of the frame that has begun.
  bool in_server_block_ = false;
  size_t in_block_ = 0;  // What whole frames of the header block that comes next hold.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_HTTP2_FRAMES_H_
