#include "runtime/transport/nccl/nccl_library.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Multiprocessors that a communicator takes from the steps, at most, while blocks move.
constexpr int kMaxCtas = 4;

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);

NcclResult Result(ncclResult_t result) { return static_cast<NcclResult>(result); }

absl::Status Status(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(doing, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

class NcclLibrary final : public NcclApi {
 public:
  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId made;
    const ncclResult_t result = ncclGetUniqueId(&made);
    std::memcpy(id->internal, made.internal, sizeof(made.internal));
    return Result(result);
  }
  NcclResult CommInitRank(NcclComm* comm, int num_ranks, const NcclUniqueId& id,
                          int rank) override {
    ncclUniqueId theirs;
    std::memcpy(theirs.internal, id.internal, sizeof(theirs.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxCtas;
    *comm = nullptr;
    return Result(ncclCommInitRankConfig(comm, num_ranks, theirs, rank, &config));
  }
  NcclResult CommGetAsyncError(NcclComm comm, NcclResult* state) override {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
    *state = Result(result);
    return Result(asked);
  }
  NcclResult GroupStart() override { return Result(ncclGroupStart()); }
  NcclResult GroupEnd() override { return Result(ncclGroupEnd()); }
  NcclResult Send(const void* from, size_t size_bytes, int peer, NcclComm comm,
                  NcclStream stream) override {
    return Result(ncclSend(from, size_bytes, ncclUint8, peer, comm, stream));
  }
  NcclResult Recv(void* to, size_t size_bytes, int peer, NcclComm comm,
                  NcclStream stream) override {
    return Result(ncclRecv(to, size_bytes, ncclUint8, peer, comm, stream));
  }
  NcclResult CommAbort(NcclComm comm) override { return Result(ncclCommAbort(comm)); }
  std::string GetLastError(NcclComm comm) override { return ncclGetLastError(comm); }

  absl::StatusOr<std::byte*> Malloc(size_t size_bytes) override {
    void* memory = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Status(cudaMalloc(&memory, size_bytes), "allocating room for KV blocks on their way"));
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) override { (void)cudaFree(memory); }
  absl::StatusOr<NcclStream> StreamCreate() override {
    NcclStream stream = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    return stream;
  }
  absl::Status StreamSynchronize(NcclStream stream) override {
    return Status(cudaStreamSynchronize(stream), "waiting for the device");
  }
  void StreamDestroy(NcclStream stream) override { (void)cudaStreamDestroy(stream); }
  absl::StatusOr<NcclStreamEvent> EventCreate() override {
    NcclStreamEvent event = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
    return event;
  }
  absl::Status EventRecord(NcclStreamEvent event, NcclStream stream) override {
    return Status(cudaEventRecord(event, stream), "recording an event");
  }
  absl::StatusOr<bool> EventPassed(NcclStreamEvent event) override {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaErrorNotReady) return false;
    TANDEM_RETURN_IF_ERROR(Status(state, "asking for an event"));
    return true;
  }
  void EventDestroy(NcclStreamEvent event) override { (void)cudaEventDestroy(event); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(const std::string& interface) {
  // "=": that name, and not what begins with it.
  setenv("NCCL_SOCKET_IFNAME", interface.empty() ? "=lo" : ("=" + interface).c_str(), 1);
  if (interface.empty()) setenv("NCCL_IB_DISABLE", "1", 1);
  // Two ranks that send have no use for them: memory and a multicast group for each link, and a
  // port that tells anybody of this host about links.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  setenv("NCCL_RAS_ENABLE", "0", 1);
  unsetenv("NCCL_COMM_ID");  // Ids come from peers that have proven themselves alone.
  return std::make_unique<NcclLibrary>();
}

}  // namespace tandem
