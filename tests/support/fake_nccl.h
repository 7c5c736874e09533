// NCCL and CUDA's streams without a GPU, as nccl_api.h has them and NCCL's manual describes: for
// tests, between threads of a process and between processes.
//
// Ranks meet at a Unix socket whose name is in the unique id; rank 0 is of the process that made
// it. Nothing happens before both have joined, which, as an abort, waits for what the GPU does.
// What is enqueued on the streams happens in order, as if there were one: CUDA promises no more,
// and whatever waits for its peer holds up all others of the GPU. An object is a GPU. A group of
// Sends waits for the peer's group of as many Recvs, which get what was sent next. NCCL is not
// known to need groups that are alike; this does. Memory is far (kv_side.h): who follows an address
// without asking faults. A peer that has gone is not noticed: what waits for it does so until it is
// aborted, as a kernel on a GPU would.

#ifndef TANDEM_TESTS_SUPPORT_FAKE_NCCL_H_
#define TANDEM_TESTS_SUPPORT_FAKE_NCCL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "runtime/base/mutex.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

class FakeNccl final : public NcclApi {
 public:
  enum class Call : uint8_t {
    kGetUniqueId,
    kCommInitRank,
    kCommGetAsyncError,
    kGroupStart,
    kGroupEnd,
    kSend,
    kRecv,
    kCommAbort,
    kMalloc,
    kStreamCreate,
    kStreamSynchronize,
    kEventCreate,
    kEventRecord,
    kEventPassed,
  };

  FakeNccl();
  ~FakeNccl() override;  // Fails the test if something of it is still there.

  // The `number`-th of these calls from now on, 1 being the next, fails, once, and does nothing
  // but for CommAbort, which ends what is under way all the same.
  void Fail(Call call, int number = 1) EXCLUDES(mu_);
  // From now on each of these has no end: CommInitRank, and groups with a Send or Recv, stay in
  // progress, GetUniqueId and CommAbort do not return.
  void Hang(Call call) EXCLUDES(mu_);
  // Nothing hangs any more but what is in progress.
  void Release() EXCLUDES(mu_);
  // While true, streams do not begin to move anything.
  void Hold(bool hold) EXCLUDES(mu_);
  // Every unique id is the same, as where NCCL was told one.
  void RepeatIds() EXCLUDES(mu_);
  // The state of all communicators, from now on.
  void Break(NcclResult state) EXCLUDES(mu_);
  // How often it was called.
  int64_t calls(Call call) EXCLUDES(mu_);
  int64_t num_comms() EXCLUDES(mu_);

  // False if it does not come true in time.
  bool WaitForCalls(Call call, int64_t count) EXCLUDES(mu_);
  bool WaitForFailure(Call call) EXCLUDES(mu_);  // What was to fail has.
  bool WaitForComms(int64_t count) EXCLUDES(mu_);

  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult CommInitRank(NcclComm* comm, int num_ranks, const NcclUniqueId& id, int rank) override;
  NcclResult CommGetAsyncError(NcclComm comm, NcclResult* state) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult Send(const void* from, size_t size_bytes, int peer, NcclComm comm,
                  NcclStream stream) override;
  NcclResult Recv(void* to, size_t size_bytes, int peer, NcclComm comm, NcclStream stream) override;
  NcclResult CommAbort(NcclComm comm) override;
  std::string GetLastError(NcclComm comm) override { return "as the test wants it"; }

  absl::StatusOr<std::byte*> Malloc(size_t size_bytes) override;
  void Free(std::byte* memory) override;
  absl::StatusOr<NcclStream> StreamCreate() override;
  absl::Status StreamSynchronize(NcclStream stream) override;
  void StreamDestroy(NcclStream stream) override;
  absl::StatusOr<NcclStreamEvent> EventCreate() override;
  absl::Status EventRecord(NcclStreamEvent event, NcclStream stream) override;
  absl::StatusOr<bool> EventPassed(NcclStreamEvent event) override;
  void EventDestroy(NcclStreamEvent event) override;

  class Pair;  // A communicator's part that its operations share.

 private:
  class Gpu;

  // Counts it; whether it is to fail.
  bool Fails(Call call) EXCLUDES(mu_);
  bool Hangs(Call call) EXCLUDES(mu_);
  void HangIfAsked(Call call) EXCLUDES(mu_);
  void WaitWhileHeld() EXCLUDES(mu_);
  NcclResult Add(Call call, std::byte* memory, size_t size_bytes, int peer, NcclComm comm,
                 NcclStream stream);

  Mutex mu_;
  CondVar changed_;
  std::map<Call, int64_t> calls_ GUARDED_BY(mu_);
  std::map<Call, int64_t> failing_ GUARDED_BY(mu_);  // The number of the call.
  std::set<Call> hanging_ GUARDED_BY(mu_);
  bool repeats_ids_ GUARDED_BY(mu_) = false;
  bool holds_ GUARDED_BY(mu_) = false;
  NcclResult broken_ GUARDED_BY(mu_) = NcclResult::kSuccess;
  int64_t num_comms_ GUARDED_BY(mu_) = 0;
  int64_t num_others_ GUARDED_BY(mu_) = 0;                // Streams, events and memory.
  std::map<std::string, int> listening_ GUARDED_BY(mu_);  // Sockets, by id.
  const std::unique_ptr<Gpu> gpu_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_FAKE_NCCL_H_
