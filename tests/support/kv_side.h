// A KV transport with all that it borrows, and what it reports: for tests of transports.

#ifndef TANDEM_TESTS_SUPPORT_KV_SIDE_H_
#define TANDEM_TESTS_SUPPORT_KV_SIDE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

inline constexpr int64_t kBlockBytes = 64 << 10;
inline constexpr auto kPatience = std::chrono::seconds(30);
inline constexpr JobId kJob = 3;

// A device whose addresses are the host's with a bit flipped: who follows one faults.
class FarMemory final : public DeviceCopier {
 public:
  static std::byte* Across(const void* address) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(address) ^
                                        (uintptr_t{1} << 62));
  }
  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    TANDEM_RETURN_IF_ERROR(Count(to));
    std::memcpy(to, Across(device), size_bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    TANDEM_RETURN_IF_ERROR(Count(from));
    std::memcpy(Across(device), from, size_bytes);
    return Crc32c(Across(device), size_bytes);
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override {
    return Upload(device, Across(from), size_bytes);
  }

  absl::StatusOr<std::byte*> AllocatePinned(size_t size_bytes) override {
    if (broken) return absl::ResourceExhaustedError("no memory can be pinned");
    TANDEM_ASSIGN_OR_RETURN(std::byte* const memory, DeviceCopier::AllocatePinned(size_bytes));
    MutexLock lock(&mu_);
    pinned_.insert(memory);
    return memory;
  }
  void FreePinned(std::byte* memory) override {
    {
      MutexLock lock(&mu_);
      pinned_.erase(memory);
    }
    DeviceCopier::FreePinned(memory);
  }
  int64_t num_pinned() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return std::ssize(pinned_);
  }

  std::atomic<bool> broken = false;
  std::atomic<int64_t> copies = 0;
  std::atomic<int64_t> detours = 0;  // Those of them whose host side is not pinned.

 private:
  absl::Status Count(const void* host) EXCLUDES(mu_) {
    ++copies;
    MutexLock lock(&mu_);
    if (!pinned_.contains(static_cast<const std::byte*>(host))) ++detours;
    return broken ? absl::InternalError("the device has failed") : absl::OkStatus();
  }

  Mutex mu_;
  std::set<const std::byte*> pinned_ GUARDED_BY(mu_);
};

// Where the host has a block of a pool, a far one too.
inline std::byte* HostBlock(const KvPool& pool, int32_t block) {
  return pool.memory == MemoryKind::kHost ? pool.block(block)
                                          : FarMemory::Across(pool.block(block));
}

// Collects what a transport reports; waits for it.
class Recorder final : public KvTransport::Listener {
 public:
  void OnFrameSent(uint64_t send_id, bool ok) override {
    MutexLock lock(&mu_);
    EXPECT_TRUE(sent_.emplace(send_id, ok).second) << "frame " << send_id << " completed twice";
    changed_.SignalAll();
  }
  void OnFrameReceived(const ReceivedFrame& frame, int64_t payload_bytes) override {
    MutexLock lock(&mu_);
    received_.push_back(frame);
    changed_.SignalAll();
  }
  void OnLinkProbed(const LinkReport& report) override {
    MutexLock lock(&mu_);
    reports_.push_back(report);
    changed_.SignalAll();
  }
  void OnLinkClosed(const std::string& peer, const std::string& path) override {
    MutexLock lock(&mu_);
    closed_.emplace_back(peer, path);
    changed_.SignalAll();
  }
  void OnLost(const absl::Status& why) {
    MutexLock lock(&mu_);
    std::fprintf(stderr, "lost: %s\n", why.ToString().c_str());
    lost_.push_back(why);
    changed_.SignalAll();
  }

  // False if `done` does not come true in time.
  template <typename Done>
  bool WaitUntil(const Done& done) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(&mu_);
    while (!done()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    return true;
  }
  bool WaitForSent(size_t count) {
    return WaitUntil([&] { return sent_.size() >= count; });
  }
  bool WaitForReceived(size_t count) {
    return WaitUntil([&] { return received_.size() >= count; });
  }
  bool WaitForProbe() {
    return WaitUntil([&] { return !reports_.empty(); });
  }
  bool WaitForClosed(const std::string& peer, const std::string& path) {
    return WaitUntil([&] {
      return closed_.size() == 1 && closed_[0].first == peer && closed_[0].second == path;
    });
  }
  bool WaitForLoss() {
    return WaitUntil([&] { return !lost_.empty(); });
  }

  std::map<uint64_t, bool> sent() {
    MutexLock lock(&mu_);
    return sent_;
  }
  std::vector<ReceivedFrame> received() {
    MutexLock lock(&mu_);
    return received_;
  }
  std::vector<LinkReport> reports() {
    MutexLock lock(&mu_);
    return reports_;
  }
  std::vector<absl::Status> lost() {
    MutexLock lock(&mu_);
    return lost_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, bool> sent_;
  std::vector<ReceivedFrame> received_;
  std::vector<LinkReport> reports_;
  std::vector<absl::Status> lost_;
  std::vector<std::pair<std::string, std::string>> closed_;
};

// A transport with everything that it borrows. One that needs more derives from it, and destroys
// the transport before that goes.
struct Side {
  virtual ~Side() = default;
  KvTransport::LostCallback OnLost() {
    return [this](const absl::Status& why) { recorder.OnLost(why); };
  }

  // For a transport that registers a pool.
  std::byte* AllocatePool(int32_t num_blocks) {
    const size_t bytes = static_cast<size_t>(num_blocks) * kBlockBytes;
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
    std::memset(memory.get(), 0, bytes);
    return memory.get();
  }

  std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, &std::free};
  FarMemory far_memory;
  Recorder recorder;
  KvReceiver receiver{kBlockBytes};
  std::unique_ptr<KvTransport> transport;
  std::string target;
};

// A pool of a device's, in the side's memory.
inline KvPool FarPool(Side* side, int32_t num_blocks) {
  return {.base = FarMemory::Across(side->AllocatePool(num_blocks)),
          .kv = {.num_blocks = num_blocks, .block_bytes = kBlockBytes},
          .memory = MemoryKind::kDevice,
          .copier = &side->far_memory};
}

struct Link {
  std::unique_ptr<KvOutbound> outbound;
  std::unique_ptr<KvInbound> inbound;
};

inline Link Connect(Side* from, Side* to) {
  Link link;
  auto inbound = to->transport->OpenInbound("sender", from->target, to->OnLost());
  EXPECT_TRUE(inbound.ok()) << inbound.status();
  auto outbound = from->transport->OpenOutbound((*inbound)->address(), from->OnLost());
  EXPECT_TRUE(outbound.ok()) << outbound.status();
  link.inbound = *std::move(inbound);
  link.outbound = *std::move(outbound);
  link.inbound->Attach(link.outbound->address());
  return link;
}

inline void FillPool(const KvPool& pool, uint64_t seed) {
  Random random(seed);
  auto* words = reinterpret_cast<uint64_t*>(HostBlock(pool, 0));
  for (int64_t i = 0; i < pool.kv.block_bytes * pool.kv.num_blocks / 8; ++i)
    words[i] = random.Next();
}

inline FrameHeader HeaderFor(const KvPool& pool, int32_t block, Reservation reservation,
                             int32_t ordinal) {
  FrameHeader header{.reservation = reservation,
                     .ordinal = static_cast<uint32_t>(ordinal),
                     .length_bytes = static_cast<uint32_t>(pool.kv.block_bytes)};
  header.crc32c = FrameChecksum(
      header, Crc32c(HostBlock(pool, block), static_cast<size_t>(pool.kv.block_bytes)));
  return header;
}

inline std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> out;
  for (int32_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_KV_SIDE_H_
