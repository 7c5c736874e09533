#include "tests/simulation/transfer_explorer_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {
namespace {

constexpr int64_t kBlockBytes = 64;
constexpr int64_t kLeaseUs = 1000;
constexpr int kGarbage = 99;

uint32_t ChecksumOf(int content) { return static_cast<uint32_t>(content) * 0x9E3779B1u; }

template <typename T>
T TakeOut(std::vector<T>* from, int index) {
  T taken = std::move((*from)[static_cast<size_t>(index)]);
  from->erase(from->begin() + index);
  return taken;
}

}  // namespace

TransferWorld::TransferWorld(const TransferWorldOptions& options)
    : options_(options),
      sources_(static_cast<size_t>(options.attempts)),
      source_pool_(options.source_blocks),
      source_content_(static_cast<size_t>(options.source_blocks)),
      sinks_(static_cast<size_t>(options.attempts)),
      sink_pool_(options.sink_blocks),
      sink_content_(static_cast<size_t>(options.sink_blocks)),
      reservations_(kBlockBytes),
      grants_(options.sink_blocks) {
  for (int i = 0; i < options.attempts; ++i) Post({.kind = Kind::kSubmit, .attempt = i});
}

void TransferWorld::Post(Message message) {
  if (!(IsForSource(message.kind) ? source_alive_ : sink_alive_)) return;
  messages_.insert(std::upper_bound(messages_.begin(), messages_.end(), message), message);
}

// ---- What can happen ----

std::vector<Choice> TransferWorld::Choices() const {
  std::vector<Choice> choices;
  const auto add = [&choices](Choice::Kind kind, size_t index = 0) {
    choices.push_back({.kind = kind, .index = static_cast<int>(index)});
  };
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (i > 0 && messages_[i] == messages_[i - 1]) continue;
    add(Choice::kDeliver, i);
    if (options_.duplicates > 0) add(Choice::kDuplicateMessage, i);
  }
  for (size_t i = 0; i < frames_.size(); ++i) {
    if (!frames_[i].place) {
      add(Choice::kArrive, i);
      if (options_.duplicates > 0 && frames_[i].replayed == 0) add(Choice::kDuplicateFrame, i);
      const Source& source = sources_[static_cast<size_t>(frames_[i].attempt)];
      if (source_alive_ && frames_[i].replayed == 0 && source.transfer->ended()) {
        add(Choice::kWithdraw, i);
      }
      continue;
    }
    if (source_alive_) add(Choice::kLand, i);
    if (!source_alive_) add(Choice::kLandFailed, i);
    if (source_alive_ && options_.corruptions > 0) add(Choice::kLandCorrupt, i);
  }
  for (size_t i = 0; i < completions_.size(); ++i) add(Choice::kFrameSent, i);
  if (!received_.empty()) add(Choice::kFrameHandled);  // The engine's queue keeps its order.
  for (size_t i = 0; i < sources_.size(); ++i) {
    const std::optional<PrefillTransfer>& transfer = sources_[i].transfer;
    if (!transfer || transfer->ended()) continue;
    if (transfer->state() == PrefillTransfer::State::kQueued) {
      if (source_pool_.num_available() >= options_.blocks) add(Choice::kStart, i);
    } else if (sources_[i].computed < options_.blocks) {
      add(Choice::kCompute, i);
    }
    PrefillTransfer late = *transfer;
    late.Expire(kLeaseUs);
    if (late.ended() && (options_.timeouts > 0 || !sink_alive_)) add(Choice::kExpireLease, i);
  }
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (sinks_[i].running) add(Choice::kFinish, i);
    const std::optional<DecodeTransfer>& transfer = sinks_[i].transfer;
    if (!transfer || transfer->over()) continue;
    DecodeTransfer late = *transfer;
    late.Expire(kLeaseUs);
    if (late.over() && (options_.timeouts > 0 || !source_alive_))
      add(Choice::kExpireReservation, i);
    const bool granted = transfer->state() == DecodeTransfer::State::kGranted;
    if (!source_alive_ && !granted) add(Choice::kDeadline, i);
  }
  if (options_.cancels > 0 && sink_alive_) {
    for (size_t i = 0; i < sinks_.size(); ++i) add(Choice::kCancel, i);
  }
  if (options_.crashes > 0) {
    add(Choice::kCrashPrefill);
    add(Choice::kCrashPrefillSilent);
    add(Choice::kCrashDecode);
    add(Choice::kCrashDecodeSilent);
  }
  return choices;
}

void TransferWorld::Apply(const Choice& choice) {
  Happen(choice);
  std::erase_if(messages_, [this](const Message& message) { return ChangesNothing(message); });
}

bool TransferWorld::ChangesNothing(const Message& message) const {
  const Source& source = sources_[static_cast<size_t>(message.attempt)];
  const Sink& sink = sinks_[static_cast<size_t>(message.attempt)];
  if (IsForSource(message.kind)) return source.transfer && source.transfer->ended();
  if (sink.running) return message.kind != Kind::kCancel;
  return sink.transfer && sink.transfer->over();
}

void TransferWorld::Happen(const Choice& choice) {
  const int index = choice.index;
  const size_t at = static_cast<size_t>(index);
  switch (choice.kind) {
    case Choice::kDeliver:
      return Deliver(TakeOut(&messages_, index));
    case Choice::kStart:
      return StartPrompt(index);
    case Choice::kCompute:
      return ComputeBlock(index);
    case Choice::kArrive:
      return Arrive(index);
    case Choice::kLand:
      return Land(index, /*ok=*/true, /*corrupt=*/false);
    case Choice::kLandFailed:
      return Land(index, /*ok=*/false, /*corrupt=*/false);
    case Choice::kWithdraw:
      return Drop(index);
    case Choice::kFrameSent: {
      const Completion sent = TakeOut(&completions_, index);
      source_pool_.Unpin(sent.block);
      sources_[static_cast<size_t>(sent.attempt)].transfer->OnFrameSent(sent.ordinal, true);
      return DriveSource(sent.attempt);
    }
    case Choice::kFrameHandled:
      return HandleFrame(index);
    case Choice::kFinish:
      return EndSink(index);
    case Choice::kExpireLease:
      if (sink_alive_) --options_.timeouts;
      sources_[at].transfer->Expire(kLeaseUs);
      return EndSource(index, sources_[at].transfer->outcome());
    case Choice::kExpireReservation:
      if (source_alive_) --options_.timeouts;
      sinks_[at].transfer->Expire(kLeaseUs);
      return AfterSinkEvent(index);
    case Choice::kDeadline:
      sinks_[at].transfer->OnPeerLost(absl::DeadlineExceededError("deadline"));
      return AfterSinkEvent(index);
    case Choice::kCancel:
      --options_.cancels;
      return Post({.kind = Kind::kCancel, .attempt = index});
    case Choice::kDuplicateMessage:
      --options_.duplicates;
      return Post(messages_[at]);
    case Choice::kDuplicateFrame: {
      --options_.duplicates;
      Frame copy = frames_[at];
      copy.replayed = source_content_[static_cast<size_t>(copy.source_block)];
      frames_.push_back(copy);
      return;
    }
    case Choice::kLandCorrupt:
      --options_.corruptions;
      return Land(index, /*ok=*/true, /*corrupt=*/true);
    case Choice::kCrashPrefill:
      return CrashPrefill(/*noticed=*/true);
    case Choice::kCrashPrefillSilent:
      return CrashPrefill(/*noticed=*/false);
    case Choice::kCrashDecode:
      return CrashDecode(/*noticed=*/true);
    case Choice::kCrashDecodeSilent:
      return CrashDecode(/*noticed=*/false);
  }
}

// ---- Prefill worker ----

void TransferWorld::Deliver(const Message& message) {
  return IsForSource(message.kind) ? DeliverToSource(message) : DeliverToSink(message);
}

void TransferWorld::DeliverToSource(const Message& message) {
  Source& source = sources_[static_cast<size_t>(message.attempt)];
  const JobId job = JobOf(message.attempt);
  if (message.kind == Kind::kPrefillSubmit) {
    if (source.transfer || !source_tombstones_.Admits(job)) return;
    source.transfer.emplace(PrefillTransfer::Options{.job = job,
                                                     .first_block = options_.first_block,
                                                     .num_blocks = options_.blocks,
                                                     .block_bytes = kBlockBytes,
                                                     .lease_us = kLeaseUs},
                            /*now_us=*/0);
    return;
  }
  if (!source.transfer) {
    if (message.kind == Kind::kPrefillCancel) source_tombstones_.Add(job, 1, 0);
    return;
  }
  switch (message.kind) {
    case Kind::kGrant:
      source.transfer->OnGrant({.job = job, .reservation = message.reservation});
      return DriveSource(message.attempt);
    case Kind::kResend:
      source.transfer->OnResend({.job = job, .ordinal = message.ordinal});
      return DriveSource(message.attempt);
    case Kind::kCommitted:
      return EndSource(message.attempt, absl::OkStatus());
    default:
      return EndSource(message.attempt, absl::CancelledError());
  }
}

void TransferWorld::StartPrompt(int attempt) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  source.blocks = *source_pool_.Allocate(options_.blocks);
  source.transfer->Start();
  Post({.kind = Kind::kStart, .attempt = attempt});
}

void TransferWorld::ComputeBlock(int attempt) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  const int ordinal = source.computed++;
  const int content = Content(attempt, ordinal);
  source_content_[static_cast<size_t>(source.blocks[static_cast<size_t>(ordinal)])] = content;
  source.transfer->OnBlockReady(ordinal, ChecksumOf(content));
  if (source.computed == options_.blocks) {
    source.transfer->OnFirstTokenSent();
    Post({.kind = Kind::kFirstToken, .attempt = attempt});
  }
  DriveSource(attempt);
}

void TransferWorld::DriveSource(int attempt) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  while (const std::optional<FrameHeader> header = source.transfer->TakeFrame()) {
    const BlockId block = source.blocks[header->ordinal];
    source_pool_.Pin(block);
    frames_.push_back({.attempt = attempt, .header = *header, .source_block = block});
  }
  if (const std::optional<Done> done = source.transfer->TakeDone()) {
    Post({.kind = Kind::kDone, .attempt = attempt, .ordinal = done->num_frames});
  }
}

void TransferWorld::EndSource(int attempt, absl::Status why) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  source.transfer->End(why);
  if (absl::IsUnavailable(why)) Post({.kind = Kind::kRefused, .attempt = attempt});
  source_pool_.Release(std::exchange(source.blocks, {}));
}

// ---- Transport ----

void TransferWorld::Arrive(int index) {
  Frame& frame = frames_[static_cast<size_t>(index)];
  frame.place = reservations_.Begin(frame.header);
  if (frame.place) {
    sink_content_[static_cast<size_t>(frame.place->block)] = kGarbage;  // Half written.
    return;
  }
  Drop(index);
}

void TransferWorld::Drop(int index) {
  const Frame dropped = TakeOut(&frames_, index);
  if (dropped.replayed != 0 || !source_alive_) return;
  completions_.push_back(
      {dropped.attempt, static_cast<int>(dropped.header.ordinal), dropped.source_block});
  std::sort(completions_.begin(), completions_.end());
}

void TransferWorld::Land(int index, bool ok, bool corrupt) {
  const Frame frame = TakeOut(&frames_, index);
  const int read = frame.replayed != 0 ? frame.replayed
                                       : source_content_[static_cast<size_t>(frame.source_block)];
  const int content = corrupt || !ok ? kGarbage : read;
  sink_content_[static_cast<size_t>(frame.place->block)] = content;
  received_.push_back(reservations_.Finish(*frame.place, ok, ChecksumOf(content)));
  if (frame.replayed != 0 || !source_alive_) return;
  completions_.push_back(
      {frame.attempt, static_cast<int>(frame.header.ordinal), frame.source_block});
  std::sort(completions_.begin(), completions_.end());
}

void TransferWorld::HandleFrame(int index) {
  const ReceivedFrame frame = TakeOut(&received_, index);
  if (frame.outcome == FrameOutcome::kOrphaned) {
    sink_pool_.Unpin(frame.block);
    return Grant();
  }
  const int attempt = static_cast<int>(frame.job);
  DecodeTransfer& transfer = *sinks_[static_cast<size_t>(attempt)].transfer;
  if (transfer.over()) return;
  const bool was_verified = transfer.verified(frame.ordinal);
  if (const std::optional<Resend> resend = transfer.OnFrame(frame, /*now_us=*/0)) {
    Post({.kind = Kind::kResend, .attempt = attempt, .ordinal = resend->ordinal});
  }
  if (!was_verified && transfer.verified(frame.ordinal)) sink_pool_.Unpin(frame.block);
  AfterSinkEvent(attempt);
}

// ---- Decode worker ----

void TransferWorld::DeliverToSink(const Message& message) {
  const int attempt = message.attempt;
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  const JobId job = JobOf(attempt);
  if (message.kind == Kind::kSubmit) {
    if (sink.transfer || !sink_tombstones_.Admits(job)) return;
    sink.transfer.emplace(DecodeTransfer::Options{.job = job,
                                                  .first_block = options_.first_block,
                                                  .num_blocks = options_.blocks,
                                                  .timeout_us = kLeaseUs});
    return Post({.kind = Kind::kPrefillSubmit, .attempt = attempt});
  }
  if (message.kind == Kind::kCancel) {
    if (!sink.transfer) {
      // A repeated abort gets the same answer, which ends nothing twice.
      const bool first = sink_tombstones_.size() == 0 || sink.ends == 0;
      if (sink_tombstones_.Add(job, 1, 0) && first) ++sink.ends;
      return;
    }
    if (sink.running) return EndSink(attempt);
    sink.transfer->OnPeerLost(absl::CancelledError());
    return AfterSinkEvent(attempt);
  }
  if (!sink.transfer) return;
  switch (message.kind) {
    case Kind::kStart:
      if (sink.transfer->OnStart()) {
        grants_.Want(job, options_.blocks - options_.first_block);
      }
      break;
    case Kind::kRefused:
      sink.transfer->OnRefused(absl::UnavailableError("refused"));
      break;
    case Kind::kFirstToken:
      if (sink.transfer->OnFirstToken(/*now_us=*/0)) ++sink.first_tokens;
      break;
    default:
      sink.transfer->OnDone({.job = job, .num_frames = message.ordinal}, /*now_us=*/0);
  }
  AfterSinkEvent(attempt);
}

void TransferWorld::AfterSinkEvent(int attempt) {
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  if (sink.transfer->over() && !sink.running && !sink.ended) {
    CloseReservation(attempt);
    grants_.Remove(JobOf(attempt));
    if (sink.transfer->state() == DecodeTransfer::State::kComplete) {
      sink.running = true;
      Post({.kind = Kind::kCommitted, .attempt = attempt});
    } else {
      Post({.kind = Kind::kPrefillCancel, .attempt = attempt});
      EndSink(attempt);
    }
  }
  Grant();
}

void TransferWorld::CloseReservation(int attempt) {
  const Sink& sink = sinks_[static_cast<size_t>(attempt)];
  const std::vector<int32_t> in_flight = reservations_.Close(sink.transfer->reservation());
  for (size_t i = 0; i < sink.blocks.size(); ++i) {
    if (sink.transfer->verified(options_.first_block + static_cast<int32_t>(i))) continue;
    const bool lands = std::count(in_flight.begin(), in_flight.end(), sink.blocks[i]) > 0;
    if (!lands) sink_pool_.Unpin(sink.blocks[i]);
  }
}

void TransferWorld::EndSink(int attempt) {
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  sink.running = false;
  sink.ended = true;
  ++sink.ends;
  sink_pool_.Release(std::exchange(sink.blocks, {}));
  Grant();
}

void TransferWorld::Grant() {
  while (const std::optional<JobId> next = grants_.Next(sink_pool_.num_available())) {
    const int attempt = static_cast<int>(*next);
    Sink& sink = sinks_[static_cast<size_t>(attempt)];
    sink.blocks = *sink_pool_.Allocate(options_.blocks - options_.first_block);
    for (const BlockId block : sink.blocks) sink_pool_.Pin(block);
    const Reservation reservation = reservations_.Open(*next, options_.first_block, sink.blocks);
    sink.transfer->OnGranted(reservation, /*now_us=*/0);
    Post({.kind = Kind::kGrant, .attempt = attempt, .reservation = reservation});
  }
}

// ---- Crashes ----

void TransferWorld::CrashPrefill(bool noticed) {
  --options_.crashes;
  source_alive_ = false;
  completions_.clear();
  std::erase_if(messages_, [](const Message& m) { return m.kind >= Kind::kPrefillSubmit; });
  // What was on its way is cut off; what had begun to land will be reported as failed.
  std::erase_if(frames_, [](const Frame& f) { return !f.place; });
  sources_.assign(sources_.size(), {});
  if (!noticed) return;
  for (int i = 0; i < options_.attempts; ++i) {
    std::optional<DecodeTransfer>& transfer = sinks_[static_cast<size_t>(i)].transfer;
    if (!transfer || transfer->over()) continue;
    transfer->OnPeerLost(absl::UnavailableError("prefill worker lost"));
    AfterSinkEvent(i);
  }
}

void TransferWorld::CrashDecode(bool noticed) {
  --options_.crashes;
  sink_alive_ = false;
  messages_.clear();
  received_.clear();
  for (const Frame& frame : frames_) {
    if (frame.replayed != 0) continue;
    completions_.push_back(
        {frame.attempt, static_cast<int>(frame.header.ordinal), frame.source_block});
  }
  std::sort(completions_.begin(), completions_.end());
  frames_.clear();
  sinks_.assign(sinks_.size(), {});
  reservations_ = ReservationTable(kBlockBytes);
  if (!noticed) return;
  for (int i = 0; i < options_.attempts; ++i) {
    std::optional<PrefillTransfer>& transfer = sources_[static_cast<size_t>(i)].transfer;
    if (transfer && !transfer->ended()) EndSource(i, absl::UnavailableError("decode worker lost"));
  }
}

// ---- Invariants ----

bool TransferWorld::Quiescent() const {
  const bool source_done =
      !source_alive_ || std::all_of(sources_.begin(), sources_.end(), [](const Source& s) {
        return !s.transfer || s.transfer->ended();
      });
  const bool sink_done = !sink_alive_ || std::all_of(sinks_.begin(), sinks_.end(),
                                                     [](const Sink& s) { return s.ends > 0; });
  return source_done && sink_done && messages_.empty() && frames_.empty() && completions_.empty() &&
         received_.empty();
}

int TransferWorld::num_completed() const {
  return static_cast<int>(std::count_if(sinks_.begin(), sinks_.end(), [](const Sink& s) {
    return s.transfer && s.transfer->state() == DecodeTransfer::State::kComplete;
  }));
}

std::string TransferWorld::Violation() const {
  if (source_alive_) {
    if (const absl::Status audit = source_pool_.Audit(); !audit.ok()) {
      return "source pool: " + std::string(audit.message());
    }
    for (const Frame& frame : frames_) {
      const int content = source_content_[static_cast<size_t>(frame.source_block)];
      if (frame.replayed == 0 &&
          content != Content(frame.attempt, static_cast<int>(frame.header.ordinal))) {
        return absl::StrFormat("source block %d changed under a send", frame.source_block);
      }
    }
  }
  if (sink_alive_) {
    if (const absl::Status audit = sink_pool_.Audit(); !audit.ok()) {
      return "sink pool: " + std::string(audit.message());
    }
    for (int i = 0; i < options_.attempts; ++i) {
      const Sink& sink = sinks_[static_cast<size_t>(i)];
      if (sink.ends > 1) return absl::StrFormat("attempt %d ended %d times", i, sink.ends);
      if (sink.first_tokens > 1) return absl::StrFormat("attempt %d: first token again", i);
      for (int o = options_.first_block; sink.running && o < options_.blocks; ++o) {
        const auto at = static_cast<size_t>(o - options_.first_block);
        if (at >= sink.blocks.size()) {
          return absl::StrFormat("attempt %d runs without block %d", i, o);
        }
        const int content = sink_content_[static_cast<size_t>(sink.blocks[at])];
        if (content != Content(i, o)) {
          return absl::StrFormat("attempt %d runs on content %d in block %d", i, content, o);
        }
      }
    }
    for (const Frame& frame : frames_) {
      if (!frame.place) continue;
      const BlockState state = sink_pool_.state(frame.place->block);
      if (state != BlockState::kInFlight && state != BlockState::kQuarantined) {
        return absl::StrFormat("sink block %d is written but not pinned", frame.place->block);
      }
    }
  }
  if (!Quiescent()) return "";
  if (source_alive_ && source_pool_.Counts().free != options_.source_blocks) {
    return absl::StrFormat("source leaks %d blocks",
                           options_.source_blocks - source_pool_.Counts().free);
  }
  if (sink_alive_ && sink_pool_.Counts().free != options_.sink_blocks) {
    return absl::StrFormat("sink leaks %d blocks", options_.sink_blocks - sink_pool_.Counts().free);
  }
  return "";
}

std::string TransferWorld::State() const {
  std::string bytes;
  bytes.reserve(512);
  for (const int budget : {options_.cancels, options_.duplicates, options_.corruptions,
                           options_.crashes, options_.timeouts, source_alive_ + 2 * sink_alive_}) {
    bytes.push_back(static_cast<char>(budget));
  }
  for (const Message& m : messages_) {
    for (const int field :
         {static_cast<int>(m.kind), m.attempt, m.ordinal, static_cast<int>(m.reservation.slot),
          static_cast<int>(m.reservation.generation)}) {
      bytes.push_back(static_cast<char>(field));
    }
  }
  bytes.push_back('F');
  std::vector<std::string> frames;
  for (const Frame& f : frames_) {
    std::string& frame = frames.emplace_back();
    for (const int field : {f.attempt, static_cast<int>(f.header.ordinal),
                            static_cast<int>(f.header.reservation.slot),
                            static_cast<int>(f.header.reservation.generation), f.source_block,
                            f.replayed, f.place ? f.place->block : -1}) {
      frame.push_back(static_cast<char>(field));
    }
  }
  std::sort(frames.begin(), frames.end());
  for (const std::string& frame : frames) bytes += frame;
  bytes.push_back('R');
  for (const ReceivedFrame& r : received_) {
    for (const int field :
         {static_cast<int>(r.job), r.ordinal, r.block, static_cast<int>(r.outcome)}) {
      bytes.push_back(static_cast<char>(field));
    }
  }
  bytes.push_back('C');
  for (const Completion& c : completions_) {
    for (const int field : {c.attempt, c.ordinal, static_cast<int>(c.block)}) {
      bytes.push_back(static_cast<char>(field));
    }
  }
  bytes.push_back('S');
  for (const Source& source : sources_) {
    bytes.push_back(static_cast<char>(source.transfer ? source.computed : -1));
    if (source.transfer) source.transfer->AppendState(&bytes);
    for (const BlockId block : source.blocks) bytes.push_back(static_cast<char>(block));
    bytes.push_back('|');
  }
  for (const Sink& sink : sinks_) {
    bytes.push_back(
        static_cast<char>(sink.running + 2 * sink.ended + 4 * sink.first_tokens + 16 * sink.ends));
    if (sink.transfer) sink.transfer->AppendState(&bytes);
    for (const BlockId block : sink.blocks) bytes.push_back(static_cast<char>(block));
    bytes.push_back('|');
  }
  source_pool_.AppendState(&bytes);
  for (const int content : source_content_) bytes.push_back(static_cast<char>(content));
  source_tombstones_.AppendState(&bytes);
  bytes.push_back('|');
  sink_pool_.AppendState(&bytes);
  for (const int content : sink_content_) bytes.push_back(static_cast<char>(content));
  sink_tombstones_.AppendState(&bytes);
  bytes.push_back('|');
  reservations_.AppendState(&bytes);
  grants_.AppendState(&bytes);
  return bytes;
}

std::string TransferWorld::Describe(const Choice& choice) const {
  static const char* const kChoices[] = {"deliver",
                                         "start",
                                         "compute",
                                         "frame arrives",
                                         "frame lands",
                                         "landing fails",
                                         "frame withdrawn",
                                         "frame sent",
                                         "frame handled",
                                         "sequence ends",
                                         "lease expires",
                                         "reservation expires",
                                         "deadline",
                                         "router cancels",
                                         "duplicate message",
                                         "duplicate frame",
                                         "frame lands corrupt",
                                         "prefill crashes",
                                         "prefill falls silent",
                                         "decode crashes",
                                         "decode falls silent"};
  static const char* const kKinds[] = {"Submit",  "Cancel",     "PrefillSubmit", "Grant",
                                       "Resend",  "Committed",  "PrefillCancel", "Start",
                                       "Refused", "FirstToken", "Done"};
  std::string text = kChoices[choice.kind];
  const size_t at = static_cast<size_t>(choice.index);
  switch (choice.kind) {
    case Choice::kDeliver:
    case Choice::kDuplicateMessage:
      return absl::StrFormat("%s %s of attempt %d", text,
                             kKinds[static_cast<size_t>(messages_[at].kind)],
                             messages_[at].attempt);
    case Choice::kArrive:
    case Choice::kLand:
    case Choice::kLandFailed:
    case Choice::kLandCorrupt:
    case Choice::kDuplicateFrame:
      return absl::StrFormat("%s: block %d of attempt %d", text, frames_[at].header.ordinal,
                             frames_[at].attempt);
    case Choice::kFrameHandled:
      return absl::StrFormat("%s: outcome %d for sink block %d", text,
                             static_cast<int>(received_[at].outcome), received_[at].block);
    default:
      return absl::StrFormat("%s (%d)", text, choice.index);
  }
}

}  // namespace tandem
