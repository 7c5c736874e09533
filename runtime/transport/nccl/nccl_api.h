// The calls that links make of NCCL, and of CUDA around them: by NCCL's names and with its types,
// but without its headers, so that a build without CUDA compiles what makes them and tests have a
// stand-in (tests/support/fake_nccl.h). The real ones are in nccl_library.cc.
//
// Memory and streams are the device's. Communicators are non-blocking: a call that answers
// kInProgress has only begun, and until CommGetAsyncError gives another state its communicator may
// get no other call but CommAbort.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_API_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_API_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// NCCL's and CUDA's own, which nobody here looks into.
struct ncclComm;
struct CUstream_st;
struct CUevent_st;

namespace tandem {

using NcclComm = ncclComm*;           // ncclComm_t
using NcclStream = CUstream_st*;      // cudaStream_t
using NcclStreamEvent = CUevent_st*;  // cudaEvent_t

struct NcclUniqueId {  // ncclUniqueId
  char internal[128];
};

enum class NcclResult : int {  // ncclResult_t
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Any thread; one thread at a time uses a communicator or a stream.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // Waits for no peer. Whoever is told the id may join.
  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Null in `comm`: there is none, and nothing to abort.
  virtual NcclResult CommInitRank(NcclComm* comm, int num_ranks, const NcclUniqueId& id,
                                  int rank) = 0;
  virtual NcclResult CommGetAsyncError(NcclComm comm, NcclResult* state) = 0;
  // What a thread sends or receives between these two is one launch, enqueued on the stream once
  // GroupEnd is no longer in progress, which is asked of the communicator; what a call between them
  // answers, kSuccess or kInProgress, is no more than that it was taken. GroupEnd comes even if one
  // of them has failed.
  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;
  // Within a group. What is sent is matched with what the peer receives by their order alone.
  virtual NcclResult Send(const void* from, size_t size_bytes, int peer, NcclComm comm,
                          NcclStream stream) = 0;
  virtual NcclResult Recv(void* to, size_t size_bytes, int peer, NcclComm comm,
                          NcclStream stream) = 0;
  // Ends what is under way and frees the communicator; waits for the device, for no peer.
  virtual NcclResult CommAbort(NcclComm comm) = 0;
  // What failed last, in NCCL's words.
  virtual std::string GetLastError(NcclComm comm) = 0;

  virtual absl::StatusOr<std::byte*> Malloc(size_t size_bytes) = 0;
  virtual void Free(std::byte* memory) = 0;  // Waits for all of the device.
  virtual absl::StatusOr<NcclStream> StreamCreate() = 0;
  // Returns when all that was enqueued has ended.
  virtual absl::Status StreamSynchronize(NcclStream stream) = 0;
  virtual void StreamDestroy(NcclStream stream) = 0;
  virtual absl::StatusOr<NcclStreamEvent> EventCreate() = 0;
  virtual absl::Status EventRecord(NcclStreamEvent event, NcclStream stream) = 0;
  virtual absl::StatusOr<bool> EventPassed(NcclStreamEvent event) = 0;
  virtual void EventDestroy(NcclStreamEvent event) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_API_H_
