// The smallest world in which a KV transfer can go wrong: one prefill and one decode worker, each a
// tiny pool around the real machines, and a network that may deliver in any order.
//
// A world is a value. Choices() lists everything that can happen next; Apply() makes one of it
// happen; Violation() says what must not have. Frames are read from the source block when they
// arrive and when they land, and written to the sink block at both moments, so that any block
// reused too early shows in its content.

#ifndef TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_
#define TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kv_cache/block_pool.h"
#include "runtime/protocol/decode_transfer.h"
#include "runtime/protocol/grant_policy.h"
#include "runtime/protocol/prefill_transfer.h"
#include "runtime/protocol/reservation_table.h"
#include "runtime/protocol/tombstones.h"

namespace tandem {

// Sizes, and how often the environment may do its worst.
struct TransferWorldOptions {
  int attempts = 2;
  int blocks = 2;       // Of each attempt.
  int first_block = 0;  // The first that the decode side lacks: from here on they travel.
  int source_blocks = 3;
  int sink_blocks = 3;
  int cancels = 0;
  int duplicates = 0;   // Of a message or a frame.
  int corruptions = 0;  // Of a frame's payload.
  int crashes = 0;
  int timeouts = 0;  // Of a lease or a reservation at any time; any number once a peer is dead.
};

struct Choice {
  enum Kind : uint8_t {
    kDeliver,       // Message number `index`.
    kStart,         // The prefill worker schedules attempt `index`.
    kCompute,       // It computes the attempt's next block.
    kArrive,        // Frame `index` reaches the receiver.
    kLand,          // Its last byte is written.
    kLandFailed,    // Its sender died.
    kWithdraw,      // Frame `index`, of an ended job, never leaves.
    kFrameSent,     // The source learns that frame `index` of `completions` has gone.
    kFrameHandled,  // The decode engine handles received frame `index`.
    kFinish,        // A committed sequence ends.
    kExpireLease,
    kExpireReservation,
    kDeadline,  // Of an attempt that a silent prefill worker keeps waiting.
    // Only these are the environment's: nothing may depend on them to make progress.
    kCancel,
    kDuplicateMessage,
    kDuplicateFrame,
    kLandCorrupt,
    kCrashPrefill,        // Noticed at once.
    kCrashPrefillSilent,  // Noticed by nobody.
    kCrashDecode,
    kCrashDecodeSilent,
  };
  Kind kind = kDeliver;
  int index = 0;

  bool is_fault() const { return kind >= kCancel; }
};

class TransferWorld {
 public:
  explicit TransferWorld(const TransferWorldOptions& options);

  std::vector<Choice> Choices() const;
  void Apply(const Choice& choice);
  std::string Describe(const Choice& choice) const;

  // Empty if all invariants hold.
  std::string Violation() const;
  // Nothing is under way. Violation() then also counts leaks and missing ends.
  bool Quiescent() const;
  int num_completed() const;

  // Equal for worlds that will behave alike.
  std::string State() const;

 private:
  enum class Kind : uint8_t {
    kSubmit,  // Router to decode worker.
    kCancel,
    kPrefillSubmit,  // Decode to prefill worker.
    kGrant,
    kResend,
    kCommitted,
    kPrefillCancel,
    kStart,  // Prefill to decode worker.
    kRefused,
    kFirstToken,
    kDone,
  };
  struct Message {
    Kind kind = Kind::kSubmit;
    int attempt = 0;
    Reservation reservation;
    int ordinal = 0;
    auto operator<=>(const Message&) const = default;
  };
  struct Frame {
    int attempt = 0;
    FrameHeader header;
    BlockId source_block = 0;
    int replayed = 0;  // A duplicate carries its content; 0: it is read from source_block.
    std::optional<FramePlace> place;
  };
  struct Completion {
    int attempt = 0;
    int ordinal = 0;
    BlockId block = 0;
    auto operator<=>(const Completion&) const = default;
  };
  struct Source {  // What the prefill worker knows of an attempt.
    std::optional<PrefillTransfer> transfer;
    std::vector<BlockId> blocks;
    int computed = 0;
  };
  struct Sink {  // What the decode worker knows of an attempt.
    std::optional<DecodeTransfer> transfer;
    std::vector<BlockId> blocks;  // From first_block on.
    bool running = false;         // Committed, decoding.
    bool ended = false;
    int first_tokens = 0;  // Given to the router.
    int ends = 0;          // Terminal events given to the router.
  };

  static JobId JobOf(int attempt) { return static_cast<JobId>(attempt); }
  int Content(int attempt, int ordinal) const { return 1 + attempt * options_.blocks + ordinal; }
  static bool IsForSource(Kind kind) {
    return kind >= Kind::kPrefillSubmit && kind <= Kind::kPrefillCancel;
  }
  void Happen(const Choice& choice);
  // Whenever it is delivered: such messages are dropped at once, which loses no behaviour.
  bool ChangesNothing(const Message& message) const;
  void Post(Message message);
  void Deliver(const Message& message);
  void DeliverToSource(const Message& message);
  void DeliverToSink(const Message& message);
  void StartPrompt(int attempt);
  void ComputeBlock(int attempt);
  void DriveSource(int attempt);  // Frames and Done as soon as they may go.
  void EndSource(int attempt, absl::Status why);
  void Grant();
  void AfterSinkEvent(int attempt);
  void CloseReservation(int attempt);
  void EndSink(int attempt);
  void Arrive(int index);
  void Drop(int index);  // The source learns, later, that the frame has gone.
  void Land(int index, bool ok, bool corrupt);
  void HandleFrame(int index);
  void CrashPrefill(bool noticed);
  void CrashDecode(bool noticed);

  TransferWorldOptions options_;
  std::vector<Message> messages_;  // Sorted: a multiset.
  std::vector<Frame> frames_;
  std::vector<Completion> completions_;
  std::vector<ReceivedFrame> received_;

  bool source_alive_ = true;
  std::vector<Source> sources_;
  BlockPool source_pool_;
  std::vector<int> source_content_;  // By block.
  Tombstones<JobId> source_tombstones_{8};

  bool sink_alive_ = true;
  std::vector<Sink> sinks_;
  BlockPool sink_pool_;
  std::vector<int> sink_content_;
  ReservationTable reservations_;
  GrantPolicy grants_;
  Tombstones<JobId> sink_tombstones_{8};
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_
