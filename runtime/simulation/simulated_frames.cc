// The KV frames of a simulated worker: read, on their way, landed, and what goes wrong with each.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/crc32c.h"
#include "runtime/simulation/simulated_worker.h"
#include "runtime/simulation/world.h"

namespace tandem {

// The block is read when the frame is sent, and not later than its completion is told; the bytes
// land when they land, whatever has become of the session.
void SimulatedWorker::SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                                uint64_t send_id) {
  if (dead()) return;
  Say([=, this] {
    const auto link = life_->decodes.find(decode);
    if (world_->options().frame_us == 0 || link == life_->decodes.end()) {
      ReadAndSend(decode, header, block, send_id);
      return;
    }
    link->second.waiting.push_back({.header = header, .block = block, .send_id = send_id});
    StartNextFrame(decode);
  });
}

void SimulatedWorker::StartNextFrame(SessionId decode) {
  const auto link = life_->decodes.find(decode);
  if (link == life_->decodes.end() || link->second.sending || link->second.waiting.empty()) return;
  const DecodeLink::WaitingFrame frame = link->second.waiting.front();
  link->second.waiting.pop_front();
  link->second.sending = true;
  world_->network()->InProcess(&process_, world_->options().frame_us, [this, decode, frame] {
    ReadAndSend(decode, frame.header, frame.block, frame.send_id);
    if (const auto sent = life_->decodes.find(decode); sent != life_->decodes.end()) {
      sent->second.sending = false;
      StartNextFrame(decode);
    }
  });
}

void SimulatedWorker::WithdrawFrame(SessionId decode, uint64_t send_id) {
  if (dead()) return;
  Say([=, this] {
    const auto link = life_->decodes.find(decode);
    if (link == life_->decodes.end()) return;
    const auto taken = std::erase_if(
        link->second.waiting,
        [send_id](const DecodeLink::WaitingFrame& frame) { return frame.send_id == send_id; });
    if (taken == 0) return;
    Post(FrameSent{send_id, /*ok=*/false});
  });
}

void SimulatedWorker::OnPeerPaused(const WorkerId& prefill, PauseReason reason,
                                   const std::string&) {
  world_->Log(process_.name, "peer paused", prefill.incarnation, static_cast<uint64_t>(reason));
}

void SimulatedWorker::ReadAndSend(SessionId decode, const FrameHeader& header, BlockId block,
                                  uint64_t send_id) {
  VirtualNetwork* const network = world_->network();
  Random* const random = world_->random();
  const SimulatedFaults& faults = network->faults();
  const auto found = life_->decodes.find(decode);
  const bool fails = found == life_->decodes.end() || random->Chance(faults.failed_frame);
  if (random->Chance(faults.stuck_frame)) {
    life_->stuck.insert(block);
    return;
  }
  const auto slow = [&] { return random->Chance(faults.slow_frame); };
  const int64_t read_us =
      world_->now_us() + (slow() ? random->Between(0, 1'000'000) : network->Delay());
  SimulatedWorker* const target = fails ? nullptr : found->second.decode;
  const uint64_t target_life = fails ? 0 : found->second.decode_life;
  network->InProcess(&process_, process_.life, read_us, [=, this] {
    Frame frame{.header = header, .payload = {}, .torn = random->Chance(faults.torn_frame)};
    const auto bytes = life_->executor->BlockBytes(block);
    frame.payload.assign(bytes.begin(), bytes.end());
    Post(FrameSent{send_id, !fails});
    if (fails || random->Chance(faults.lost_frame)) return;
    const int copies = random->Chance(faults.repeated_frame) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const int64_t arrives_us =
          world_->now_us() +
          (random->Chance(faults.slow_frame) ? random->Between(0, 4'000'000) : network->Delay());
      network->InProcess(&target->process_, target_life, arrives_us,
                         [target, frame] { target->Arrive(frame); });
    }
  });
}

void SimulatedWorker::Arrive(const Frame& sent) {
  Random* const random = world_->random();
  const SimulatedFaults& faults = world_->network()->faults();
  Frame frame = sent;
  if (random->Chance(faults.corrupt_payload)) {
    frame.payload[random->Below(frame.payload.size())] ^=
        static_cast<uint8_t>(uint64_t{1} << random->Below(8));
  }
  const bool mangled = random->Chance(faults.corrupt_header);
  if (mangled) {
    uint32_t* const fields[] = {&frame.header.reservation.index,
                                &frame.header.reservation.generation, &frame.header.ordinal,
                                &frame.header.length_bytes, &frame.header.crc32c};
    *fields[random->Below(5)] ^= uint32_t{1} << random->Below(3);
  }
  const auto place = life_->receiver->Begin(frame.header);
  world_->Log(process_.name, "frame", frame.header.ordinal, place.has_value());
  if (!place.has_value()) return;
  world_->CountFrame();
  if (random->Chance(faults.stuck_frame)) {
    life_->stuck.insert(place->block);
    ++life_->stuck_landings;
    return;
  }
  const int64_t lands_us = random->Chance(faults.slow_frame) ? random->Between(0, 2'000'000)
                                                             : world_->network()->Delay();
  world_->network()->InProcess(&process_, lands_us, [this, frame, mangled, place = *place] {
    const auto bytes = life_->executor->BlockBytes(place.block);
    const size_t written = frame.torn ? bytes.size() / 2 : bytes.size();
    std::copy_n(frame.payload.begin(), written, bytes.begin());
    const ReceivedFrame received =
        life_->receiver->Finish(place, !frame.torn, Crc32c(bytes.data(), bytes.size()));
    const auto owner = life_->granted.find(frame.header.reservation);
    if (!mangled && owner != life_->granted.end() && owner->second != received.job) {
      world_->Violate(absl::StrFormat("%s: a frame for job %d was written into blocks of job %d",
                                      process_.name, owner->second, received.job));
    }
    Post(FrameArrived{received});
  });
}

}  // namespace tandem
