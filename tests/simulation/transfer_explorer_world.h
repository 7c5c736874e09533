// The smallest world in which a KV transfer can go wrong: one prefill and one decode worker, each a
// tiny pool around its engine's side of the transfer, and a network that may deliver in any order.
//
// A world is a value. Choices() lists everything that can happen next; Apply() makes one of it
// happen; Violation() says what must not have. Frames are read from the source block when they
// arrive and when they land, and written to the sink block at both moments, so that any block
// reused too early shows in its content.

#ifndef TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_
#define TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/decode_side.h"
#include "runtime/engine/outbox.h"
#include "runtime/engine/prefill_side.h"
#include "runtime/engine/transfer_blocks.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/kv_cache/step_limbo.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/tombstones.h"

namespace tandem {

// Sizes, and how often the environment may do its worst.
struct TransferWorldOptions {
  int attempts = 2;
  int blocks = 2;       // Each attempt's.
  int first_block = 0;  // The first that the decode side lacks: from here on they travel.
  int source_blocks = 3;
  int sink_blocks = 3;
  int cancels = 0;
  int duplicates = 0;   // A message or a frame comes again.
  int corruptions = 0;  // A frame's payload is damaged.
  int crashes = 0;
  int frames_ahead = 8;
  int steps = 0;  // Sequences that decode take one.
  int timeouts =
      0;  // A lease or a reservation ends at any time; any number do once a peer is dead.
};

struct Choice {
  enum Kind : uint8_t {
    kDeliver,       // Message number `index`.
    kStart,         // The prefill worker schedules attempt `index`.
    kCompute,       // It computes the attempt's next block.
    kArrive,        // Frame `index` reaches the receiver.
    kLand,          // The frame's last byte is written.
    kLandFailed,    // The frame's sender died.
    kWithdraw,      // Frame `index`, of an ended job, never leaves.
    kFrameSent,     // The source learns that frame `index` of `completions` has gone.
    kFrameHandled,  // The decode engine handles received frame `index`.
    kFinish,        // A committed sequence ends.
    kBeginStep,     // A step with the committed sequence `index`,
    kFinishStep,    // which is over.
    kExpireLease,
    kExpireReservation,
    kDeadline,  // An attempt ends that a silent prefill worker keeps waiting.
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

class TransferWorld final : private PeerOutbox, private DecodeHost, private PrefillHost {
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
    uint64_t send_id = 0;
    bool withdrawn = false;
    int replayed = 0;  // A duplicate carries its content; 0: it is read from source_block.
    std::optional<FramePlace> place;
  };
  struct Completion {
    int attempt = 0;
    int ordinal = 0;
    BlockId block = 0;
    uint64_t send_id = 0;
    auto operator<=>(const Completion&) const = default;
  };
  // A worker's blocks: who holds them, and what is in them.
  struct Blocks final : TransferBlocks {
    explicit Blocks(int num_blocks) : pool(num_blocks), content(static_cast<size_t>(num_blocks)) {}
    void Pin(BlockId block) override { pool.Pin(block); }
    void Unpin(BlockId block) override { pool.Unpin(block); }
    absl::Status Checksums(std::span<const BlockId> blocks, uint32_t* crc32c) override;
    int& at(BlockId block) { return content[static_cast<size_t>(block)]; }
    void AppendState(std::string* bytes) const;

    BlockPool pool;
    std::vector<int> content;  // By block.
  };
  struct Source {  // An attempt at the prefill worker, as far as it is computed.
    enum State : uint8_t { kUnknown, kWaiting, kComputing, kOver } state = kUnknown;
    std::vector<BlockId> blocks;
    int computed = 0;
  };
  struct Sink {  // An attempt at the decode worker, as its router knows it.
    bool known = false;
    std::vector<BlockId> blocks;  // Granted: from first_block on.
    bool running = false;         // Committed, decoding.
    uint64_t last_step = 0;       // With a run of it.
    bool completed = false;
    bool ended = false;
    int first_tokens = 0;  // Given to the router.
    int ends = 0;          // Terminal events given to the router.
  };

  static JobId JobOf(int attempt) { return static_cast<JobId>(attempt); }
  static AttemptKey KeyOf(int attempt);
  static int AttemptOf(const AttemptKey& key);
  Source& SourceOf(JobId job) { return sources_[static_cast<size_t>(job)]; }
  Sink& SinkOf(const AttemptKey& key) { return sinks_[static_cast<size_t>(AttemptOf(key))]; }
  int Content(int attempt, int ordinal) const { return 1 + attempt * options_.blocks + ordinal; }
  static bool IsForSource(Kind kind) {
    return kind >= Kind::kPrefillSubmit && kind <= Kind::kPrefillCancel;
  }
  void Happen(const Choice& choice);
  // Whenever it is delivered: such messages are dropped at once, which loses no behaviour.
  bool ChangesNothing(const Message& message) const;
  void Attach();  // The sides to this world: they may be copied from another.
  void Post(Message message);
  void Deliver(const Message& message);
  void DeliverToSource(const Message& message);
  void DeliverToSink(const Message& message);
  void StartPrompt(int attempt);
  void ComputeBlock(int attempt);
  void EndAttempt(int attempt);
  void BeginStep(int attempt);
  void FinishStep();
  void Arrive(int index);
  void Sent(const Frame& frame);  // The source learns, later, that the frame has gone.
  void Land(int index, bool ok, bool corrupt);
  void CrashPrefill(bool noticed);
  void CrashDecode(bool noticed);
  PrefillSide NewPrefillSide() const;
  DecodeSide NewDecodeSide() const;
  std::string ViolationAtRest() const;

  // PeerOutbox.
  void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) override;
  void ToDecode(SessionId decode, PrefillToDecode message) override;
  void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                 uint64_t send_id) override;
  void WithdrawFrame(SessionId decode, uint64_t send_id) override;
  void OnTransferred(int64_t) override {}
  void OnPeerPaused(const WorkerId&, PauseReason, const std::string&) override {}
  // DecodeHost.
  int32_t GrantableBlocks() const override { return sink_blocks_.pool.num_available(); }
  void MakeRoom(uint64_t, int32_t) override {}
  std::vector<BlockId> AppendBlocks(const AttemptKey& key, int32_t num_blocks) override;
  void OnFirstToken(const AttemptKey& key, const FirstToken& first, int32_t) override;
  void OnTransferred(const AttemptKey& key) override;
  void ComputeHere(const AttemptKey& key) override;
  void EndAttempt(const AttemptKey& key, RouterEvent last) override;
  // PrefillHost.
  void EndPrompt(const JobKey& key) override;

  TransferWorldOptions options_;
  std::vector<Message> messages_;  // Sorted: a multiset.
  std::vector<Frame> frames_;
  std::vector<Completion> completions_;
  std::vector<ReceivedFrame> received_;

  int64_t now_us_ = 0;  // Later only while something expires.
  bool source_alive_ = true;
  std::vector<Source> sources_;
  Blocks source_blocks_;
  std::optional<LeaseKeeper> source_leases_;
  std::optional<PrefillSide> source_;

  bool sink_alive_ = true;
  std::vector<Sink> sinks_;
  StepLimbo sink_limbo_;
  uint64_t steps_begun_ = 0;
  struct Step {
    int attempt = 0;
    BlockId written = 0;
  };
  std::optional<Step> step_;  // At most one runs.
  Blocks sink_blocks_;
  std::optional<KvReceiver> receiver_;
  std::optional<LeaseKeeper> sink_leases_;
  std::optional<DecodeSide> sink_;
  Tombstones<JobId> sink_tombstones_{8};
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIMULATION_TRANSFER_EXPLORER_WORLD_H_
