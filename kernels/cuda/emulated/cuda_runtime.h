// The calls of the CUDA runtime that a backend makes, for machines without a GPU, by CUDA's names:
// kernels/cuda includes <cuda_runtime.h> and, built for the host, gets this.
//
// Device memory is the host's, ends at a page that nobody may touch, and is bytes of 0xFF until
// something is written to it. What is enqueued on a stream happens later, on a thread of its own,
// in order, and only once somebody waits (kernels/fenced/fenced_stream.h). An error of a kernel
// stays.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_CUDA_RUNTIME_H_
#define TANDEM_KERNELS_CUDA_EMULATED_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#define CUDART_VERSION 13000

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorContained = 226,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorTensorMemoryLeak = 721,
  cudaErrorMpsClientTerminated = 810,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorExternalDevice = 911,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major;
  int minor;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

// What SetDriver has said; before, it is as new as CUDA.
cudaError_t cudaDriverGetVersion(int* version);

// The machine has kNumGpus, of which a process sees what CUDA_VISIBLE_DEVICES says now
// (visible_gpus.h). All have one memory.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index);

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** data, size_t size_bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t size_bytes);
cudaError_t cudaFreeHost(void* data);

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

// While a stream is captured, what is enqueued on it is kept; nobody may wait for it.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

namespace tandem::emulated {

// `work` says whether it went well. `call` is what FailCall calls it.
cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> work,
                    const char* call = "a kernel's launch");

inline constexpr int kNumGpus = 3;
// As visible_gpus.h has it.
std::string UuidOf(int gpu);

// How many bytes were to be copied to the host since the last call.
size_t TakeDownloadedBytes();

// What was made and not yet given back: pieces of memory, streams, events, graphs.
int64_t NumObjects();

// The machine's driver is for `cuda`, as CUDART_VERSION is written; 0: it has none. Without one, or
// with an older one than CUDA, no GPU is seen.
void SetDriver(int cuda);

// From now on what is enqueued on any stream, if it has not begun, begins no more before this says
// so: a kernel that hangs. Signal handlers may set it.
void Hang(bool hangs);
// From now on what has not begun fails with cudaErrorLaunchFailure, and so does cudaMemGetInfo.
// Signal handlers may say so, too.
void Break();

// The `call`-th of the calls above from now on, 1 being the next, fails with `error`, once, and
// does nothing; but who waits has waited, and what is enqueued with cudaErrorLaunchFailure fails
// once it runs. Giving back does not count. 0: none is to fail any more.
void FailCall(int call, cudaError_t error);
// Which one has failed since that was said; empty: none has.
std::string FailedCall();

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_CUDA_RUNTIME_H_
