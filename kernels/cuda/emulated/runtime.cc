#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/cuda/emulated/early_memory.h"
#include "kernels/cuda/emulated/settings.h"
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
std::atomic<const char*> failed_call{nullptr};
std::atomic<size_t> downloaded_bytes{0};
std::atomic<int> driver{CUDART_VERSION};
std::atomic<bool> hanging{false};
std::atomic<bool> broken{false};
std::atomic<int64_t> num_objects{0};  // But memory.

// cudaSuccess, unless this call is the one that is to fail.
cudaError_t CountCall(const char* call = __builtin_FUNCTION()) {
  if (calls_to_failure == 0 || --calls_to_failure > 0) return cudaSuccess;
  failed_call = call;
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

cudaError_t Allocate(void** data, size_t size_bytes, bool on_device, const char* call) {
  if (const cudaError_t error = CountCall(call); error != cudaSuccess) return error;
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

// Their numbers on the machine.
std::vector<int> SeenGpus() {
  std::vector<int> seen;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int gpu = 0; gpu < kNumGpus; ++gpu) seen.push_back(gpu);
    return seen;
  }
  for (const absl::string_view entry : absl::StrSplit(visible, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(entry);
    std::vector<int> meant;
    for (int gpu = 0; gpu < kNumGpus; ++gpu) {
      if (name == std::to_string(gpu)) meant = {gpu};
      const bool begins = absl::StartsWith(name, "GPU-") && absl::StartsWith(UuidOf(gpu), name);
      if (begins) meant.push_back(gpu);
    }
    if (meant.size() != 1) break;
    if (std::find(seen.begin(), seen.end(), meant[0]) != seen.end()) return {};
    seen.push_back(meant[0]);
  }
  return seen;
}

// All streams, for cudaFree, which waits for the device.
std::mutex streams_mutex;
std::map<CUstream_st*, int>& Streams() {
  static auto* const streams = new std::map<CUstream_st*, int>;
  return *streams;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> work, const char* call) {
  const cudaError_t error = CountCall(call);
  if (error != cudaSuccess && error != cudaErrorLaunchFailure) return error;
  FencedStream::Work later = [work = std::move(work), fails = error != cudaSuccess] {
    hanging.wait(true);
    return !fails && !broken && work() ? absl::OkStatus() : absl::InternalError("a kernel failed");
  };
  if (stream->captured != nullptr) {
    stream->captured->work.push_back(std::move(later));
  } else {
    stream->stream.Push(std::move(later));
  }
  return cudaSuccess;
}

std::string UuidOf(int gpu) {
  return "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(gpu);
}

size_t TakeDownloadedBytes() { return downloaded_bytes.exchange(0); }

int64_t NumObjects() {
  const std::scoped_lock lock(mappings_mutex);
  return num_objects + static_cast<int64_t>(Mappings().size());
}

void SetDriver(int cuda) { driver = cuda; }

void Hang(bool hangs) {
  hanging = hangs;
  if (!hangs) hanging.notify_all();
}

void Break() { broken = true; }

void FailCall(int call, cudaError_t error) {
  failure = error;
  failed_call = nullptr;
  calls_to_failure = call;
}

std::string FailedCall() {
  const char* const call = failed_call;
  return call == nullptr ? "" : call;
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
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "unknown error";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *version = tandem::emulated::driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  if (tandem::emulated::driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(tandem::emulated::SeenGpus().size());
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  if (tandem::emulated::driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  const std::vector<int> seen = tandem::emulated::SeenGpus();
  if (index >= static_cast<int>(seen.size())) {
    return seen.empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice;
  }
  const int gpu = seen[static_cast<size_t>(index)];
  const tandem::emulated::Gpu kind = tandem::emulated::TheGpu();
  *properties = {.name = "emulated GPU",
                 .uuid = {},
                 .totalGlobalMem = tandem::emulated::kDeviceBytes,
                 .major = kind.major,
                 .minor = kind.minor,
                 .pciBusID = 0x3b + gpu,
                 .pciDeviceID = 0,
                 .pciDomainID = 0,
                 .multiProcessorCount = kind.num_processors,
                 .sharedMemPerBlockOptin = kind.max_shared_bytes};
  properties->uuid.bytes[15] = static_cast<char>(gpu);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  if (tandem::emulated::broken) return cudaErrorLaunchFailure;
  const std::scoped_lock lock(tandem::emulated::mappings_mutex);
  *total_bytes = tandem::emulated::kDeviceBytes;
  *free_bytes = tandem::emulated::kDeviceBytes - tandem::emulated::used_device_bytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  return tandem::emulated::Allocate(data, size_bytes, /*on_device=*/true, __func__);
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
  return tandem::emulated::Allocate(data, size_bytes, /*on_device=*/false, __func__);
}
cudaError_t cudaFreeHost(void* data) { return tandem::emulated::Free(data); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/,
                                         int /*priority*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *stream = new CUstream_st;
  ++tandem::emulated::num_objects;
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
  --tandem::emulated::num_objects;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t waited =
      tandem::emulated::ErrorOf(stream->stream.Wait(stream->stream.Release()));
  const cudaError_t error = CountCall();
  return error == cudaSuccess ? waited : error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyDeviceToHost) {
    std::memset(to, 0xFF, size_bytes);
    tandem::emulated::downloaded_bytes += size_bytes;
  }
  const auto copy = [=] {
    std::memcpy(to, from, size_bytes);
    if (kind == cudaMemcpyHostToDevice) tandem::emulated::NoteUpload(to, size_bytes);
    return true;
  };
  return tandem::emulated::Enqueue(stream, copy, __func__);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  if (stream->captured != nullptr) return cudaErrorInvalidValue;
  stream->captured = new CUgraph_st;
  ++tandem::emulated::num_objects;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  if (const cudaError_t error = CountCall(); error != cudaSuccess) {
    cudaGraphDestroy(std::exchange(*graph, nullptr));
    return error;
  }
  return *graph == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned /*flags*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *executable = new CUgraphExec_st{*graph};
  ++tandem::emulated::num_objects;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  for (const tandem::FencedStream::Work& work : executable->work) stream->stream.Push(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph != nullptr) --tandem::emulated::num_objects;
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  --tandem::emulated::num_objects;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *event = new CUevent_st;
  ++tandem::emulated::num_objects;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --tandem::emulated::num_objects;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error;
  *event = {stream, stream->stream.Release()};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t waited = tandem::emulated::ErrorOf(event->stream->stream.Wait(event->point));
  const cudaError_t error = CountCall();
  return error == cudaSuccess ? waited : error;
}
