#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_blocks.h"
#include "kernels/cuda/cuda_copier.h"
#include "kernels/cuda/cuda_graphs.h"
#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda/cuda_sampler.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/visible_gpus.h"
#include "kernels/support/host_args.h"
#include "kernels/support/staging_ring.h"
#include "kernels/support/validate.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kOldestMajor = 8;  // Asynchronous copies and products of 8 bits by 32 inputs.
constexpr int kWgmmaMajor = 9;   // has products of four warps, as no other does
constexpr size_t kRingBufferBytes = size_t{16} << 20;
constexpr int kNumRingBuffers = 4;

// "13.0", of 13000.
std::string CudaVersion(int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

GpuIdentity IdentityOf(const cudaDeviceProp& properties, int newest_cuda) {
  return {.model = properties.name,
          .uuid = UuidOfGpu({properties.uuid.bytes, sizeof(properties.uuid.bytes)}),
          .pci_address = absl::StrFormat("%04x:%02x:%02x.0", properties.pciDomainID,
                                         properties.pciBusID, properties.pciDeviceID),
          .compute_capability = absl::StrCat(properties.major, ".", properties.minor),
          .newest_cuda = CudaVersion(newest_cuda),
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

void LogTrial(const WarpgroupTrial& trial) {
  const LogField wanted("sums", trial.wanted), compared("compared", trial.compared),
      different("different", trial.different);
  if (trial.same()) {
    LogInfo("wgmma was tried: it sums as mma.sync does, and is used", {wanted});
  } else if (trial.compared == 0) {
    LogWarning("wgmma is left out: this build has no kernels for sm_90a; long prompts take longer",
               {wanted});
  } else {
    LogWarning(
        "wgmma was tried and is left out: its sums are not all mma.sync's; long prompts take "
        "longer",
        {wanted, compared, different});
  }
}

class CudaLinearOp final : public LinearOp {
 public:
  CudaLinearOp(const LinearSpec& spec, CudaProducts products, const std::byte* packed)
      : LinearOp(spec), layer_(PackedLinearOf(spec, products, packed)) {}
  const PackedLinear& layer() const { return layer_; }

 private:
  const PackedLinear layer_;
};

const CudaLinearOp& OpOf(const LinearArgs& args) {
  const auto* op = dynamic_cast<const CudaLinearOp*>(args.op);
  TANDEM_CHECK(op != nullptr) << "a linear layer prepared by another backend";
  return *op;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const cudaDeviceProp& properties, GpuIdentity gpu, CudaProducts products,
              bool has_warpgroup_products, std::unique_ptr<CudaStream> stream,
              std::unique_ptr<CudaStream> checksum_stream)
      : gpu_(std::move(gpu)),
        isa_(absl::StrCat("sm_", properties.major, properties.minor,
                          products == CudaProducts::kFma ? "" : "-tensor",
                          has_warpgroup_products ? "-wgmma" : "")),
        products_(products),
        limits_{.num_processors = properties.multiProcessorCount,
                .max_shared_bytes = properties.sharedMemPerBlockOptin,
                .has_warpgroup_products = has_warpgroup_products},
        stream_(std::move(stream)),
        checksum_stream_(std::move(checksum_stream)),
        graphs_(stream_->get()),
        scratch_(CudaScratch::Kind::kDevice, stream_->get()),
        checksums_(CudaScratch::Kind::kDevice, checksum_stream_->get()),
        sampler_(stream_->get()) {}
  // What is enqueued may use what goes first.
  ~CudaBackend() override { (void)stream_->Synchronize(); }

  std::string name() const override { return "cuda"; }
  std::string isa() const override { return isa_; }
  std::optional<GpuIdentity> gpu() const override { return gpu_; }

  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override {
    void* data = nullptr;
    TANDEM_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&data, std::max<size_t>(size_bytes, 1)), "allocating device memory"));
    return DeviceBuffer(this, OfHost(static_cast<std::byte*>(data)), size_bytes);
  }

  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t size_bytes) override {
    void* data = nullptr;
    TANDEM_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&data, std::max<size_t>(size_bytes, 1)),
                                      "allocating pinned memory"));
    return PinnedBuffer(this, static_cast<std::byte*>(data), size_bytes);
  }

  absl::StatusOr<DeviceBuffer> AllocatePool(size_t size_bytes,
                                            const KvPoolMemory& memory) override {
    if (memory.base == nullptr) return Allocate(size_bytes);
    TANDEM_RETURN_IF_ERROR(ValidatePool(memory, size_bytes));
    if (memory.kind != MemoryKind::kDevice) {
      return absl::FailedPreconditionError(
          absl::StrFormat("KV memory of %d bytes is the host's, and this is a GPU", memory.bytes));
    }
    return DeviceBuffer(/*owner=*/nullptr, OfHost(static_cast<std::byte*>(memory.base)),
                        size_bytes);
  }

  MemoryKind pool_kind() const override { return MemoryKind::kDevice; }
  bool runs_beside_host() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceCopier>> CreateCopier() override {
    return CudaCopier::Create();
  }
  absl::StatusOr<std::optional<DeviceMemory>> MeasureMemory() const override {
    size_t free_bytes = 0, total_bytes = 0;
    TANDEM_RETURN_IF_ERROR(
        CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "measuring device memory"));
    return DeviceMemory{.total_bytes = static_cast<int64_t>(total_bytes),
                        .free_bytes = static_cast<int64_t>(free_bytes)};
  }

  absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) override {
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer placed, Allocate(bytes.size()));
    TANDEM_ASSIGN_OR_RETURN(
        StagingRing ring,
        StagingRing::Create(this, std::clamp<size_t>(bytes.size(), 1, kRingBufferBytes),
                            kNumRingBuffers));
    TANDEM_RETURN_IF_ERROR(ring.Upload(placed.data(), bytes));
    TANDEM_RETURN_IF_ERROR(Synchronize());
    return placed;
  }

  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override {
    return CopyBytes(OnHost(to), from, size_bytes, cudaMemcpyHostToDevice);
  }
  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override {
    return CopyBytes(to, OnHost(from), size_bytes, cudaMemcpyDeviceToHost);
  }

  DeviceEvent Record() override { return {.ticket = stream_->Record()}; }
  absl::Status Wait(DeviceEvent event) override {
    return Passed(stream_->Wait(event.ticket), event.ticket);
  }
  absl::Status Synchronize() override {
    return Passed(stream_->Synchronize(), stream_->next_ticket());
  }

  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                               DType compute_dtype) const override {
    TANDEM_RETURN_IF_ERROR(Validate(shape));
    if (shape.type == KvType::kF32 && compute_dtype != DType::kF32) {
      return absl::FailedPreconditionError(
          absl::StrFormat("attention: no kernel of a GPU computes in %s with KV of type %s",
                          NameOf(compute_dtype), NameOf(shape.type)));
    }
    if (const size_t needed = CudaAttentionSharedBytes(shape, compute_dtype);
        needed > limits_.max_shared_bytes) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "attention: heads of %d numbers of type %s take %d bytes of shared memory; %s has %d",
          shape.head_dim, NameOf(shape.type), needed, isa_, limits_.max_shared_bytes));
    }
    return KvTileFormat{.id = CudaTileFormat(shape.type), .tile_bytes = CudaTileBytes(shape)};
  }

  bool HasOwnAttention(int head_dim) const override {
    return OnTensorCores(
        {.block_tokens = kKvSubTileTokens, .head_dim = head_dim, .type = KvType::kBF16},
        DType::kBF16);
  }

  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    TANDEM_RETURN_IF_ERROR(Validate(spec));
    const bool quantised =
        spec.weight_type == WeightType::kInt8 || spec.weight_type == WeightType::kInt4;
    // A block of inputs has one scale.
    const bool fp8 = spec.weight_type == WeightType::kFp8 &&
                     products_ == CudaProducts::kTensorCores &&
                     (spec.group >= spec.in_features || spec.group % kFp8GroupMultiple == 0);
    if (!quantised && !fp8 && spec.weight_type != WeightTypeOf(spec.compute_dtype)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("linear: no kernel of a GPU computes in %s with weights of type %s%s",
                          NameOf(spec.compute_dtype), NameOf(spec.weight_type),
                          spec.group == 0 ? "" : absl::StrFormat(" in groups of %d", spec.group)));
    }
    if (spec.outlier_threshold != 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "linear: no kernel of a GPU leaves inputs of %g and more out of 8 bits (int8-outliers)",
          spec.outlier_threshold));
    }
    return CudaPackedFormat(spec, products_);
  }

  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacking(spec, parts, packed, format.size_bytes));
    CudaPack(spec, products_, parts, packed.data());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacked(packed, size_bytes, format.size_bytes));
    return std::make_unique<CudaLinearOp>(spec, products_, OnHost(packed));
  }

  absl::Status Embedding(const EmbeddingArgs& args) override { return Run(args, CudaEmbedding); }
  absl::Status RmsNorm(const RmsNormArgs& args) override { return Norm(args); }
  absl::Status LayerNorm(const LayerNormArgs& args) override { return Norm(args); }
  absl::Status Add(const AddArgs& args) override { return Run(args, CudaAdd); }
  absl::Status SoftCap(const SoftCapArgs& args) override { return Run(args, CudaSoftCap); }
  absl::Status GatherRows(const GatherRowsArgs& args) override { return Run(args, CudaGatherRows); }
  absl::Status RotaryTable(const RotaryTableArgs& args) override {
    return Run(args, CudaRotaryTable);
  }

  absl::Status Linear(const LinearArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    return Multiply(args, /*norm=*/nullptr);
  }
  absl::Status RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& args) override {
    return NormLinear(norm, args);
  }
  absl::Status LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& args) override {
    return NormLinear(norm, args);
  }

  absl::Status RotaryKvWrite(const RotaryKvWriteArgs& args) override {
    TANDEM_RETURN_IF_ERROR(CheckKv(args));
    return Enqueued(CudaRotaryKvWrite(OnHost(args), stream_->get()));
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    TANDEM_RETURN_IF_ERROR(CheckKv(args));
    if (OnTensorCores(args.kv.shape, args.compute_dtype)) {
      TANDEM_ASSIGN_OR_RETURN(void* const scratch,
                              ScratchOf(TensorDecodeScratchBytes(OnHost(args), limits_)));
      return Enqueued(TensorDecodeAttention(OnHost(args), scratch, limits_, stream_->get()));
    }
    TANDEM_ASSIGN_OR_RETURN(void* const scratch,
                            ScratchOf(CudaDecodeScratchBytes(OnHost(args), limits_)));
    return Enqueued(CudaDecodeAttention(OnHost(args), scratch, limits_, stream_->get()));
  }
  absl::Status PrefillAttention(const PrefillAttentionArgs& args) override {
    TANDEM_RETURN_IF_ERROR(CheckKv(args));
    if (OnTensorCores(args.kv.shape, args.compute_dtype)) {
      TANDEM_ASSIGN_OR_RETURN(void* const scratch,
                              ScratchOf(TensorPrefillScratchBytes(args.kv.shape, limits_)));
      return Enqueued(TensorPrefillAttention(OnHost(args), scratch, limits_, stream_->get()));
    }
    return Enqueued(CudaPrefillAttention(OnHost(args), limits_, stream_->get()));
  }

  absl::Status Sample(const SampleArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    if (device_args.count == 0) return absl::OkStatus();
    return sampler_.Enqueue(OnHost(device_args), stream_->next_ticket());
  }

  absl::Status CopyBlocks(const CopyBlocksArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    std::byte* const base = OnHost(args.base);
    const size_t bytes = args.block_stride_bytes;
    for (int64_t i = 0; i < args.count; ++i) {
      TANDEM_RETURN_IF_ERROR(CopyBytes(base + static_cast<size_t>(args.destinations[i]) * bytes,
                                       base + static_cast<size_t>(args.sources[i]) * bytes, bytes,
                                       cudaMemcpyDeviceToDevice));
    }
    return absl::OkStatus();
  }

  absl::Status ChecksumBlocks(const ChecksumBlocksArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    const size_t bytes = static_cast<size_t>(args.count) * sizeof(uint32_t);
    TANDEM_ASSIGN_OR_RETURN(void* const memory, checksums_.Get(bytes));
    auto* const checksums = static_cast<uint32_t*>(memory);
    cudaStream_t const stream = checksum_stream_->get();
    ChecksumLaunch launch{.base = OnHost(args.base), .block_stride_bytes = args.block_stride_bytes};
    for (int64_t first = 0; first < args.count; first += kMaxChecksums) {
      launch.checksums = checksums + first;
      launch.count = static_cast<int>(std::min<int64_t>(kMaxChecksums, args.count - first));
      std::copy_n(args.blocks + first, launch.count, launch.blocks);
      TANDEM_RETURN_IF_ERROR(Enqueued(CudaChecksumBlocks(launch, stream)));
    }
    if (bytes > 0) {
      TANDEM_RETURN_IF_ERROR(Enqueued(
          cudaMemcpyAsync(args.checksums, checksums, bytes, cudaMemcpyDeviceToHost, stream)));
    }
    return checksum_stream_->Synchronize();
  }

  absl::Status DiscardBlocks(const DiscardBlocksArgs& args) override { return Validate(args); }

  absl::Status Replay(std::span<const int64_t> key,
                      absl::FunctionRef<absl::Status()> enqueue) override {
    return graphs_.Replay(key, enqueue);
  }

  uint64_t work_done() const override { return work_done_; }

 protected:
  // cudaFree waits for the device.
  void Free(DevicePtr<std::byte> data, size_t /*size_bytes*/) override {
    graphs_.Forget();
    (void)cudaFree(OnHost(data));
  }
  void FreePinned(std::byte* data, size_t /*size_bytes*/) override {
    (void)stream_->Synchronize();
    (void)cudaFreeHost(data);
  }

 private:
  // For one operation. What is captured in graphs has the memory that there was.
  absl::StatusOr<void*> ScratchOf(size_t size_bytes) {
    if (size_bytes > scratch_.size_bytes()) graphs_.Forget();
    return scratch_.Get(size_bytes);
  }

  absl::Status CopyBytes(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
    if (size_bytes == 0) return absl::OkStatus();
    return Enqueued(cudaMemcpyAsync(to, from, size_bytes, kind, stream_->get()));
  }

  absl::Status Enqueued(cudaError_t error) {
    return CudaStatus(error, "enqueueing work for the device");
  }

  // Work is done when somebody has seen that it is: here, all up to the point `ticket`.
  absl::Status Passed(absl::Status status, uint64_t ticket) {
    sampler_.Finish(ticket, status.ok());
    if (status.ok()) ++work_done_;
    return status;
  }

  template <typename Args>
  absl::Status CheckKv(const Args& args) const {
    const auto format = GetKvTileFormat(args.kv.shape, args.compute_dtype);
    TANDEM_RETURN_IF_ERROR(format.status());
    return Validate(args, format->tile_bytes);
  }

  bool OnTensorCores(const KvTileShape& shape, DType compute_dtype) const {
    return products_ == CudaProducts::kTensorCores && HasTensorAttention(shape, compute_dtype);
  }

  template <typename NormArgs>
  absl::Status Norm(const NormArgs& args) {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    return Enqueued(CudaNorm(NormLaunchOf(OnHost(args)), stream_->get()));
  }
  // `norm`: as CudaLinear takes it.
  absl::Status Multiply(const LinearArgs& args, const NormLaunch* norm) {
    const CudaLinearOp& op = OpOf(args);
    if (args.num_rows == 0) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(
        void* const scratch,
        ScratchOf(CudaLinearScratchBytes(op.layer(), op.spec(), args.num_rows, limits_)));
    return Enqueued(CudaLinear(op.layer(), OnHost(args), norm, scratch, limits_, stream_->get()));
  }
  template <typename NormArgs>
  absl::Status NormLinear(const NormArgs& norm, const LinearArgs& args) {
    TANDEM_RETURN_IF_ERROR(Validate(norm, args));
    const NormLaunch launch = NormLaunchOf(OnHost(norm));
    if (MayTakeNorm(OpOf(args).layer())) return Multiply(args, &launch);
    TANDEM_RETURN_IF_ERROR(Enqueued(CudaNorm(launch, stream_->get())));
    return Multiply(args, /*norm=*/nullptr);
  }

  template <typename Args, typename HostArgs>
  absl::Status Run(const Args& args, cudaError_t (*operation)(const HostArgs&, cudaStream_t)) {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    return Enqueued(operation(OnHost(args), stream_->get()));
  }

  const GpuIdentity gpu_;
  const std::string isa_;
  const CudaProducts products_;
  const ProcessorLimits limits_;
  std::atomic<uint64_t> work_done_{0};
  const std::unique_ptr<CudaStream> stream_;
  const std::unique_ptr<CudaStream> checksum_stream_;  // They do not wait for steps.
  CudaGraphs graphs_;
  CudaScratch scratch_;    // of one operation
  CudaScratch checksums_;  // of the device
  CudaSampler sampler_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::string_view isa) {
  const CudaProducts products = isa == "fma" ? CudaProducts::kFma : CudaProducts::kTensorCores;
  constexpr int kFirst = 0;  // which every thread uses that has not chosen another
  cudaDeviceProp properties;
  int newest_cuda = 0;  // that the driver can run; 0: there is none
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&newest_cuda), "asking for the driver"));
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, kFirst);
      error != cudaSuccess) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return absl::FailedPreconditionError(absl::StrFormat(
        "no GPU can be used: %s (%s; this build needs one for CUDA %s%s)",
        cudaGetErrorString(error),
        newest_cuda == 0 ? "no driver is installed"
                         : absl::StrCat("the driver is for CUDA ", CudaVersion(newest_cuda)),
        CudaVersion(CUDART_VERSION),
        visible == nullptr
            ? ""
            : absl::StrCat("; of the machine's, this process sees \"", visible, "\"")));
  }
  if (properties.major < kOldestMajor) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the GPU (%s) has compute capability %d.%d; at least %d.0 is needed",
                        properties.name, properties.major, properties.minor, kOldestMajor));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create());
  WarpgroupTrial trial;
  if (products == CudaProducts::kTensorCores && isa != "mma" && properties.major == kWgmmaMajor &&
      properties.minor == 0) {
    TANDEM_RETURN_IF_ERROR(
        CudaStatus(TryWarpgroups(stream->get(), &trial), "trying the products of four warps"));
    LogTrial(trial);
  }
  const bool has_warpgroup_products = trial.wanted > 0 && trial.same();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> checksum_stream,
                          CudaStream::Create(CudaStream::Kind::kUrgent));
  return std::make_unique<CudaBackend>(properties, IdentityOf(properties, newest_cuda), products,
                                       has_warpgroup_products, std::move(stream),
                                       std::move(checksum_stream));
}

}  // namespace tandem
