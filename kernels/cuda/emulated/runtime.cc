#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/cuda/emulated/early_memory.h"
#include "kernels/fenced/fenced_stream.h"

struct CUgraph_st {
  std::vector<tandem::FencedStream::Work> work;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  tandem::FencedStream stream;
  CUgraph_st* captured = nullptr;  // while it is
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t point = 0;
};

namespace tandem::emulated {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 256;
constexpr size_t kDeviceBytes = size_t{8} << 30;

std::atomic<int> calls_to_failure{0};
std::atomic<cudaError_t> failure{cudaSuccess};
std::atomic<size_t> downloaded_bytes{0};

// cudaSuccess, unless this call is the one that is to fail.
cudaError_t CountCall() {
  if (calls_to_failure == 0 || --calls_to_failure > 0) return cudaSuccess;
  return failure;
}

// What was mapped for an address that was handed out.
struct Mapping {
  void* base;
  size_t size_bytes;
  size_t device_bytes;  // of the device's memory
};
std::mutex mappings_mutex;
size_t used_device_bytes = 0;  // with the lock
std::map<void*, Mapping>& Mappings() {
  static auto* const mappings = new std::map<void*, Mapping>;
  return *mappings;
}

cudaError_t Allocate(void** data, size_t size_bytes, bool on_device) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  const size_t aligned = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t device_bytes = on_device ? aligned : 0;
  {
    const std::scoped_lock lock(mappings_mutex);
    if (device_bytes > kDeviceBytes - used_device_bytes) return cudaErrorMemoryAllocation;
    used_device_bytes += device_bytes;
  }
  const size_t pages = (aligned + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const base = ::mmap(nullptr, pages + kPageBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* const end = static_cast<char*>(base) + pages;
  ::mprotect(end, kPageBytes, PROT_NONE);
  std::memset(base, 0xFF, pages);
  *data = end - aligned;
  if (on_device) AddDeviceMemory(base, pages);
  const std::scoped_lock lock(mappings_mutex);
  Mappings()[*data] = {base, pages + kPageBytes, device_bytes};
  return cudaSuccess;
}

cudaError_t Free(void* data) {
  const std::scoped_lock lock(mappings_mutex);
  const auto found = Mappings().find(data);
  if (found == Mappings().end()) return cudaErrorInvalidValue;
  RemoveDeviceMemory(found->second.base);
  ::munmap(found->second.base, found->second.size_bytes);
  used_device_bytes -= found->second.device_bytes;
  Mappings().erase(found);
  return cudaSuccess;
}

cudaError_t ErrorOf(const absl::Status& status) {
  return status.ok() ? cudaSuccess : cudaErrorLaunchFailure;
}

// All streams, for cudaFree, which waits for the device.
std::mutex streams_mutex;
std::map<CUstream_st*, int>& Streams() {
  static auto* const streams = new std::map<CUstream_st*, int>;
  return *streams;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> work) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  FencedStream::Work later = [work = std::move(work)] {
    return work() ? absl::OkStatus() : absl::InternalError("a kernel failed");
  };
  if (stream->captured != nullptr) {
    stream->captured->work.push_back(std::move(later));
  } else {
    stream->stream.Push(std::move(later));
  }
  return cudaSuccess;
}

size_t TakeDownloadedBytes() { return downloaded_bytes.exchange(0); }

void FailCall(int call, cudaError_t error) {
  failure = error;
  calls_to_failure = call;
}

}  // namespace tandem::emulated

using tandem::emulated::CountCall;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorUnknown:
      break;
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorUnknown:
      break;
  }
  return "unknown error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*index*/) {
  *properties = {.name = "emulated GPU",
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = 4,
                 .sharedMemPerBlockOptin = 227 * 1024};
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::scoped_lock lock(tandem::emulated::mappings_mutex);
  *total_bytes = tandem::emulated::kDeviceBytes;
  *free_bytes = tandem::emulated::kDeviceBytes - tandem::emulated::used_device_bytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  return tandem::emulated::Allocate(data, size_bytes, /*on_device=*/true);
}
cudaError_t cudaFree(void* data) {
  {
    const std::scoped_lock lock(tandem::emulated::streams_mutex);
    for (const auto& [stream, unused] : tandem::emulated::Streams()) {
      (void)stream->stream.Wait(stream->stream.Release());
    }
  }
  return tandem::emulated::Free(data);
}
cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  return tandem::emulated::Allocate(data, size_bytes, /*on_device=*/false);
}
cudaError_t cudaFreeHost(void* data) { return tandem::emulated::Free(data); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *stream = new CUstream_st;
  const std::scoped_lock lock(tandem::emulated::streams_mutex);
  tandem::emulated::Streams()[*stream] = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::scoped_lock lock(tandem::emulated::streams_mutex);
    tandem::emulated::Streams().erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  return tandem::emulated::ErrorOf(stream->stream.Wait(stream->stream.Release()));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyDeviceToHost) {
    std::memset(to, 0xFF, size_bytes);
    tandem::emulated::downloaded_bytes += size_bytes;
  }
  return tandem::emulated::Enqueue(stream, [=] {
    std::memcpy(to, from, size_bytes);
    if (kind == cudaMemcpyHostToDevice) tandem::emulated::NoteUpload(to, size_bytes);
    return true;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  if (stream->captured != nullptr) return cudaErrorInvalidValue;
  stream->captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  if (const cudaError_t error = CountCall(); error != cudaSuccess) {
    delete std::exchange(*graph, nullptr);
    return error;
  }
  return *graph == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned /*flags*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *executable = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  for (const tandem::FencedStream::Work& work : executable->work) stream->stream.Push(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *event = {stream, stream->stream.Release()};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return tandem::emulated::ErrorOf(event->stream->stream.Wait(event->point));
}
