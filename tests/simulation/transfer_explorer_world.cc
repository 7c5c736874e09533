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
constexpr int64_t kDeadlineUs = 1'000'000;
constexpr int kGarbage = 99;
constexpr SessionId kSession = 1;
const PrefillPeer kPrefill{.worker = {.name = "p"}, .address = "p"};

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
      source_blocks_(options.source_blocks),
      sinks_(static_cast<size_t>(options.attempts)),
      sink_blocks_(options.sink_blocks) {
  source_leases_.emplace();
  source_.emplace(NewPrefillSide());
  receiver_.emplace(kBlockBytes);
  sink_leases_.emplace();
  sink_.emplace(NewDecodeSide());
  for (int i = 0; i < options.attempts; ++i) Post({.kind = Kind::kSubmit, .attempt = i});
}

PrefillSide TransferWorld::NewPrefillSide() const {
  return PrefillSide(
      {.block_bytes = kBlockBytes, .lease_us = kLeaseUs, .max_frames_ahead = options_.frames_ahead},
      {});
}

DecodeSide TransferWorld::NewDecodeSide() const {
  LivenessTimes times;
  times.lease_us = kLeaseUs;
  return DecodeSide({.num_blocks = options_.sink_blocks, .times = times}, {});
}

void TransferWorld::Attach() {
  source_->set_parts({.blocks = &source_blocks_,
                      .leases = &*source_leases_,
                      .outbox = this,
                      .host = this,
                      .now_us = &now_us_});
  sink_->set_parts({.blocks = &sink_blocks_,
                    .receiver = &*receiver_,
                    .leases = &*sink_leases_,
                    .outbox = this,
                    .host = this,
                    .now_us = &now_us_});
}

AttemptKey TransferWorld::KeyOf(int attempt) {
  return {.attempt = {.request = {.counter = JobOf(attempt)}}};
}

int TransferWorld::AttemptOf(const AttemptKey& key) {
  return static_cast<int>(key.attempt.request.counter);
}

absl::Status TransferWorld::Blocks::Checksums(std::span<const BlockId> blocks, uint32_t* crc32c) {
  for (const BlockId block : blocks) *crc32c++ = ChecksumOf(at(block));
  return absl::OkStatus();
}

void TransferWorld::Blocks::AppendState(std::string* bytes) const {
  pool.AppendState(bytes);
  for (const int of_block : content) bytes->push_back(static_cast<char>(of_block));
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
      if (frames_[i].withdrawn) add(Choice::kWithdraw, i);
      continue;
    }
    if (source_alive_) add(Choice::kLand, i);
    if (!source_alive_) add(Choice::kLandFailed, i);
    if (source_alive_ && options_.corruptions > 0) add(Choice::kLandCorrupt, i);
  }
  for (size_t i = 0; i < completions_.size(); ++i) add(Choice::kFrameSent, i);
  if (!received_.empty()) add(Choice::kFrameHandled);  // The engine's queue keeps its order.
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    if (source.state == Source::kUnknown || source.state == Source::kOver) continue;
    if (source.state == Source::kWaiting) {
      if (source_blocks_.pool.num_available() >= options_.blocks) add(Choice::kStart, i);
    } else if (source.computed < options_.blocks) {
      add(Choice::kCompute, i);
    }
    if (options_.timeouts > 0 || !sink_alive_) add(Choice::kExpireLease, i);
  }
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (sinks_[i].running) add(Choice::kFinish, i);
    if (sinks_[i].running && options_.steps > 0 && !step_) add(Choice::kBeginStep, i);
    if (!sink_alive_ || !sink_->Has(i)) continue;
    const bool granted = !sinks_[i].blocks.empty();
    if (granted && (options_.timeouts > 0 || !source_alive_)) add(Choice::kExpireReservation, i);
    if (!source_alive_ && !granted) add(Choice::kDeadline, i);
  }
  if (step_) add(Choice::kFinishStep);
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
  Attach();
  Happen(choice);
  if (sink_alive_) sink_->GrantHeld();
  std::erase_if(messages_, [this](const Message& message) { return ChangesNothing(message); });
}

bool TransferWorld::ChangesNothing(const Message& message) const {
  const Sink& sink = sinks_[static_cast<size_t>(message.attempt)];
  if (IsForSource(message.kind)) {
    return sources_[static_cast<size_t>(message.attempt)].state == Source::kOver;
  }
  if (sink.running) return message.kind != Kind::kCancel;
  return sink.known && sink.ended;
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
      return Sent(TakeOut(&frames_, index));
    case Choice::kFrameSent:
      return source_->OnFrameSent(TakeOut(&completions_, index).send_id, /*ok=*/true);
    case Choice::kFrameHandled:
      return sink_->OnFrameReceived(TakeOut(&received_, index));
    case Choice::kFinish:
    case Choice::kDeadline:
      return EndAttempt(index);
    case Choice::kBeginStep:
      return BeginStep(index);
    case Choice::kFinishStep:
      return FinishStep();
    case Choice::kExpireLease:
      if (sink_alive_) --options_.timeouts;
      now_us_ = kLeaseUs;
      source_->ExpireLease({.decode = kSession, .job = JobOf(index)});
      now_us_ = 0;
      return;
    case Choice::kExpireReservation:
      if (source_alive_) --options_.timeouts;
      now_us_ = kLeaseUs;
      sink_->ExpireReservation(JobOf(index));
      now_us_ = 0;
      return;
    case Choice::kCancel:
      --options_.cancels;
      return Post({.kind = Kind::kCancel, .attempt = index});
    case Choice::kDuplicateMessage:
      --options_.duplicates;
      return Post(messages_[at]);
    case Choice::kDuplicateFrame: {
      --options_.duplicates;
      Frame copy = frames_[at];
      copy.replayed = source_blocks_.at(copy.source_block);
      copy.withdrawn = false;
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
  const JobId job = JobOf(message.attempt);
  switch (message.kind) {
    case Kind::kPrefillSubmit:
      if (source_->OnSubmit({.key = {.decode = kSession, .job = job},
                             .serial = job,
                             .first_block = options_.first_block,
                             .num_blocks = options_.blocks,
                             .time_left_us = kDeadlineUs},
                            absl::OkStatus(), /*retry_after_us=*/0)) {
        SourceOf(job).state = Source::kWaiting;
      }
      return;
    case Kind::kGrant:
      return source_->OnMessage(kSession, Grant{.job = job, .reservation = message.reservation});
    case Kind::kResend:
      return source_->OnMessage(kSession, Resend{.job = job, .ordinal = message.ordinal});
    case Kind::kCommitted:
      return source_->OnMessage(kSession, Committed{.job = job});
    default:
      return source_->OnMessage(kSession, PrefillCancel{.job = job, .time_left_us = kDeadlineUs});
  }
}

void TransferWorld::StartPrompt(int attempt) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  source.state = Source::kComputing;
  source.blocks = *source_blocks_.pool.Allocate(options_.blocks);
  source_->OnStarted({.decode = kSession, .job = JobOf(attempt)}, /*cached_tokens=*/0, {});
}

void TransferWorld::ComputeBlock(int attempt) {
  Source& source = sources_[static_cast<size_t>(attempt)];
  const JobKey key{.decode = kSession, .job = JobOf(attempt)};
  const int ordinal = source.computed++;
  source_blocks_.at(source.blocks[static_cast<size_t>(ordinal)]) = Content(attempt, ordinal);
  const auto final_blocks = std::span(source.blocks).first(static_cast<size_t>(source.computed));
  const absl::Status read =
      source.computed < options_.blocks
          ? source_->OnChunk(key, final_blocks)
          : source_->OnFirstToken(key, {.job = key.job, .tokens = {{.token = 1}}},
                                  /*goes_on=*/true, final_blocks);
  TANDEM_CHECK(read.ok()) << read.message();
}

void TransferWorld::EndPrompt(const JobKey& key) {
  Source& source = SourceOf(key.job);
  source_blocks_.pool.Release(std::exchange(source.blocks, {}));
  source = {.state = Source::kOver};
}

void TransferWorld::ToDecode(SessionId, PrefillToDecode message) {
  const auto post = [this](Kind kind, JobId job, int ordinal = 0) {
    Post({.kind = kind, .attempt = static_cast<int>(job), .ordinal = ordinal});
  };
  if (const auto* start = std::get_if<Start>(&message)) {
    post(Kind::kStart, start->job);
  } else if (const auto* refused = std::get_if<PrefillRefused>(&message)) {
    post(Kind::kRefused, refused->job);
  } else if (const auto* first = std::get_if<FirstToken>(&message)) {
    post(Kind::kFirstToken, first->job);
  } else if (const auto* done = std::get_if<Done>(&message)) {
    post(Kind::kDone, done->job, done->num_frames);
  }
}

void TransferWorld::SendFrame(SessionId, const FrameHeader& header, BlockId block,
                              uint64_t send_id) {
  const auto of = std::find_if(sources_.begin(), sources_.end(), [block](const Source& source) {
    return std::count(source.blocks.begin(), source.blocks.end(), block) > 0;
  });
  frames_.push_back({.attempt = static_cast<int>(of - sources_.begin()),
                     .header = header,
                     .source_block = block,
                     .send_id = send_id});
}

void TransferWorld::WithdrawFrame(SessionId, uint64_t send_id) {
  for (Frame& frame : frames_) {
    if (frame.send_id == send_id && frame.replayed == 0) frame.withdrawn = true;
  }
}

// ---- Transport ----

void TransferWorld::Arrive(int index) {
  Frame& frame = frames_[static_cast<size_t>(index)];
  frame.place = receiver_->Begin(frame.header);
  if (frame.place) {
    sink_blocks_.at(frame.place->block) = kGarbage;  // Half written.
    return;
  }
  Sent(TakeOut(&frames_, index));
}

void TransferWorld::Sent(const Frame& frame) {
  if (frame.replayed != 0 || !source_alive_) return;
  completions_.push_back(
      {frame.attempt, static_cast<int>(frame.header.ordinal), frame.source_block, frame.send_id});
  std::sort(completions_.begin(), completions_.end());
}

void TransferWorld::Land(int index, bool ok, bool corrupt) {
  const Frame frame = TakeOut(&frames_, index);
  const int read = frame.replayed != 0 ? frame.replayed : source_blocks_.at(frame.source_block);
  const int content = corrupt || !ok ? kGarbage : read;
  sink_blocks_.at(frame.place->block) = content;
  received_.push_back(receiver_->Finish(*frame.place, ok, ChecksumOf(content)));
  Sent(frame);
}

// ---- Decode worker ----

void TransferWorld::DeliverToSink(const Message& message) {
  const int attempt = message.attempt;
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  const JobId job = JobOf(attempt);
  const auto say = [this](PrefillToDecode said) { sink_->OnMessage(kPrefill.worker, said); };
  switch (message.kind) {
    case Kind::kSubmit:
      if (sink.known || !sink_tombstones_.Admits(job)) return;
      sink.known = true;
      return sink_->Submit(
          {.attempt = KeyOf(attempt), .peer = kPrefill, .deadline_us = kDeadlineUs},
          {.job = job,
           .spec = {.choices = {0}},
           .first_block = options_.first_block,
           .num_blocks = options_.blocks});
    case Kind::kCancel:
      if (!sink.known) {
        // A repeated abort gets the same answer, which ends nothing twice.
        const bool first = sink_tombstones_.size() == 0 || sink.ends == 0;
        if (sink_tombstones_.Add(job, 1, 0) && first) ++sink.ends;
        return;
      }
      return EndAttempt(attempt);
    case Kind::kStart:
      return say(Start{.job = job});
    case Kind::kRefused:
      return say(PrefillRefused{.job = job, .status = absl::UnavailableError("refused")});
    case Kind::kFirstToken:
      return say(FirstToken{.job = job, .tokens = {{.token = 1}}});
    default:
      return say(Done{.job = job, .num_frames = message.ordinal});
  }
}

void TransferWorld::ToPrefill(const PrefillPeer&, DecodeToPrefill message) {
  const auto post = [this](Kind kind, JobId job, Reservation reservation = {}, int ordinal = 0) {
    Post({.kind = kind,
          .attempt = static_cast<int>(job),
          .reservation = reservation,
          .ordinal = ordinal});
  };
  if (const auto* submit = std::get_if<PrefillSubmit>(&message)) {
    post(Kind::kPrefillSubmit, submit->job);
  } else if (const auto* grant = std::get_if<struct Grant>(&message)) {
    post(Kind::kGrant, grant->job, grant->reservation);
  } else if (const auto* resend = std::get_if<Resend>(&message)) {
    post(Kind::kResend, resend->job, {}, resend->ordinal);
  } else if (const auto* committed = std::get_if<Committed>(&message)) {
    post(Kind::kCommitted, committed->job);
  } else if (const auto* cancel = std::get_if<PrefillCancel>(&message)) {
    post(Kind::kPrefillCancel, cancel->job);
  }
}

std::vector<BlockId> TransferWorld::AppendBlocks(const AttemptKey& key, int32_t num_blocks) {
  return SinkOf(key).blocks = *sink_blocks_.pool.Allocate(num_blocks);
}

void TransferWorld::OnFirstToken(const AttemptKey& key, const FirstToken&, int32_t) {
  ++SinkOf(key).first_tokens;
}

void TransferWorld::OnTransferred(const AttemptKey& key) {
  SinkOf(key).running = SinkOf(key).completed = true;
}

// At once, and to its end.
void TransferWorld::ComputeHere(const AttemptKey& key) { EndAttempt(AttemptOf(key)); }

void TransferWorld::EndAttempt(const AttemptKey& key, RouterEvent) { EndAttempt(AttemptOf(key)); }

void TransferWorld::EndAttempt(int attempt) {
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  sink_->End(JobOf(attempt));
  sink.running = false;
  sink.ended = true;
  ++sink.ends;
  sink_limbo_.Release(std::exchange(sink.blocks, {}), sink.last_step, &sink_blocks_.pool);
}

void TransferWorld::BeginStep(int attempt) {
  --options_.steps;
  Sink& sink = sinks_[static_cast<size_t>(attempt)];
  sink.last_step = ++steps_begun_;
  step_ = {.attempt = attempt, .written = sink.blocks.back()};
}

// It has written one token more into the last block, whoever has that now.
void TransferWorld::FinishStep() {
  const Step step = *std::exchange(step_, std::nullopt);
  if (!sinks_[static_cast<size_t>(step.attempt)].running) sink_blocks_.at(step.written) = kGarbage;
  sink_limbo_.Finish(steps_begun_, &sink_blocks_.pool);
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
  source_leases_.emplace();
  source_.emplace(NewPrefillSide());
  if (noticed) sink_->OnPrefillLost(kPrefill.worker, absl::UnavailableError("it crashed"));
}

void TransferWorld::CrashDecode(bool noticed) {
  --options_.crashes;
  sink_alive_ = false;
  messages_.clear();
  received_.clear();
  for (const Frame& frame : frames_) Sent(frame);
  frames_.clear();
  sinks_.assign(sinks_.size(), {});
  step_.reset();
  receiver_.emplace(kBlockBytes);
  sink_leases_.emplace();
  sink_.emplace(NewDecodeSide());
  if (noticed) source_->OnDecodeLost(kSession);
}

// ---- Invariants ----

bool TransferWorld::Quiescent() const {
  const bool source_done =
      !source_alive_ || std::all_of(sources_.begin(), sources_.end(), [](const Source& s) {
        return s.state == Source::kUnknown || s.state == Source::kOver;
      });
  const bool sink_done = !sink_alive_ || std::all_of(sinks_.begin(), sinks_.end(),
                                                     [](const Sink& s) { return s.ends > 0; });
  return source_done && sink_done && messages_.empty() && frames_.empty() && completions_.empty() &&
         received_.empty() && !step_;
}

int TransferWorld::num_completed() const {
  return static_cast<int>(
      std::count_if(sinks_.begin(), sinks_.end(), [](const Sink& s) { return s.completed; }));
}

std::string TransferWorld::Violation() const {
  if (source_alive_) {
    if (const absl::Status audit = source_blocks_.pool.Audit(); !audit.ok()) {
      return "source pool: " + std::string(audit.message());
    }
    for (const Frame& frame : frames_) {
      const int content = source_blocks_.content[static_cast<size_t>(frame.source_block)];
      if (frame.replayed == 0 &&
          content != Content(frame.attempt, static_cast<int>(frame.header.ordinal))) {
        return absl::StrFormat("source block %d changed under a send", frame.source_block);
      }
    }
  }
  if (sink_alive_) {
    if (const absl::Status audit = sink_blocks_.pool.Audit(); !audit.ok()) {
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
        const int content = sink_blocks_.content[static_cast<size_t>(sink.blocks[at])];
        if (content != Content(i, o)) {
          return absl::StrFormat("attempt %d runs on content %d in block %d", i, content, o);
        }
      }
    }
    for (const Frame& frame : frames_) {
      if (!frame.place) continue;
      const BlockState state = sink_blocks_.pool.state(frame.place->block);
      if (state != BlockState::kInFlight && state != BlockState::kQuarantined) {
        return absl::StrFormat("sink block %d is written but not pinned", frame.place->block);
      }
    }
  }
  return Quiescent() ? ViolationAtRest() : "";
}

std::string TransferWorld::ViolationAtRest() const {
  const int source_free = static_cast<int>(source_blocks_.pool.Counts().free);
  if (source_alive_ && source_free != options_.source_blocks) {
    return absl::StrFormat("source leaks %d blocks", options_.source_blocks - source_free);
  }
  if (source_alive_ && !source_leases_->ReservationRenewals().empty()) return "a reservation stays";
  const int sink_free = static_cast<int>(sink_blocks_.pool.Counts().free);
  if (sink_alive_ && sink_free != options_.sink_blocks) {
    return absl::StrFormat("sink leaks %d blocks", options_.sink_blocks - sink_free);
  }
  if (sink_alive_ && !sink_leases_->LeaseRenewals().empty()) return "a lease stays";
  return "";
}

std::string TransferWorld::State() const {
  std::string bytes;
  bytes.reserve(512);
  for (const int budget :
       {options_.cancels, options_.duplicates, options_.corruptions, options_.crashes,
        options_.timeouts, options_.steps, source_alive_ + 2 * sink_alive_}) {
    bytes.push_back(static_cast<char>(budget));
  }
  for (const Message& m : messages_) {
    for (const int field :
         {static_cast<int>(m.kind), m.attempt, m.ordinal, static_cast<int>(m.reservation.index),
          static_cast<int>(m.reservation.generation)}) {
      bytes.push_back(static_cast<char>(field));
    }
  }
  bytes.push_back('F');
  std::vector<std::string> frames;
  for (const Frame& f : frames_) {
    std::string& frame = frames.emplace_back();
    for (const int field :
         {f.attempt, static_cast<int>(f.header.ordinal),
          static_cast<int>(f.header.reservation.index),
          static_cast<int>(f.header.reservation.generation), f.source_block, f.replayed,
          static_cast<int>(f.withdrawn), f.place ? f.place->block : -1}) {
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
    bytes.push_back(static_cast<char>(source.state + 4 * source.computed));
    for (const BlockId block : source.blocks) bytes.push_back(static_cast<char>(block));
    bytes.push_back('|');
  }
  for (const Sink& sink : sinks_) {
    for (const int field : {sink.known + 2 * sink.running + 4 * sink.completed + 8 * sink.ended,
                            sink.first_tokens, sink.ends}) {
      bytes.push_back(static_cast<char>(field));
    }
    for (const BlockId block : sink.blocks) bytes.push_back(static_cast<char>(block));
    bytes.push_back(sink.last_step == steps_begun_ && step_ ? 's' : '|');
  }
  if (step_) bytes.push_back(static_cast<char>(step_->written));
  sink_limbo_.AppendState(&bytes);
  source_blocks_.AppendState(&bytes);
  source_->AppendState(&bytes);
  bytes.push_back('|');
  sink_blocks_.AppendState(&bytes);
  sink_tombstones_.AppendState(&bytes);
  bytes.push_back('|');
  receiver_->Table().AppendState(&bytes);
  sink_->AppendState(&bytes);
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
                                         "step begins",
                                         "step ends",
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
