#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/sampling/sampler.h"
#include "kernels/support/float_environment.h"
#include "kernels/support/host_args.h"
#include "kernels/support/host_backend.h"
#include "kernels/support/validate.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kMaxThreads = 1024;
// Elements of row work that one thread takes at once; less is not worth waking another for.
constexpr int64_t kItemElements = 16 * 1024;

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const KernelTable& table, const CpuBackendOptions& options)
      : table_(table), pool_(options.num_threads, options.niceness) {}

  std::string name() const override { return "cpu"; }
  std::string isa() const override { return table_.isa; }

  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                               DType compute_dtype) const override {
    TANDEM_RETURN_IF_ERROR(Validate(shape));
    TANDEM_ASSIGN_OR_RETURN(const AttentionKernels* const attention,
                            FindAttention(shape.type, compute_dtype));
    return KvTileFormat{.id = attention->tile_format, .tile_bytes = attention->tile_bytes(shape)};
  }

  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    TANDEM_RETURN_IF_ERROR(Validate(spec));
    TANDEM_ASSIGN_OR_RETURN(const GemmKernels* const gemm, FindGemm(spec));
    return CpuPackedFormat(*gemm, spec);
  }

  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacking(spec, parts, packed, format.size_bytes));
    TANDEM_ASSIGN_OR_RETURN(const GemmKernels* const gemm, FindGemm(spec));
    CpuPack(*gemm, spec, parts, packed.data());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacked(packed, size_bytes, format.size_bytes));
    TANDEM_ASSIGN_OR_RETURN(const GemmKernels* const gemm, FindGemm(spec));
    return CpuPrepare(*gemm, spec, OnHost(packed));
  }

  absl::Status Embedding(const EmbeddingArgs& args) override {
    return ForRows(args, table_.rows.embedding);
  }
  absl::Status RmsNorm(const RmsNormArgs& args) override {
    return ForRows(args, table_.rows.rms_norm);
  }
  absl::Status LayerNorm(const LayerNormArgs& args) override {
    return ForRows(args, table_.rows.layer_norm);
  }

  absl::Status Add(const AddArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostAddArgs args = OnHost(device_args);
    Share(args.count, 1, [&](int64_t begin, int64_t end) { table_.rows.add(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status SoftCap(const SoftCapArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostSoftCapArgs args = OnHost(device_args);
    Share(args.count, 1,
          [&](int64_t begin, int64_t end) { table_.rows.soft_cap(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status GatherRows(const GatherRowsArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostGatherRowsArgs args = OnHost(device_args);
    const size_t row_bytes = static_cast<size_t>(args.features) * SizeOf(args.dtype);
    Share(args.num_rows, args.features, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(static_cast<std::byte*>(args.output) + static_cast<size_t>(r) * row_bytes,
                    static_cast<const std::byte*>(args.input) +
                        static_cast<size_t>(args.rows[r]) * row_bytes,
                    row_bytes);
      }
    });
    return absl::OkStatus();
  }

  absl::Status Sample(const SampleArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostSampleArgs args = OnHost(device_args);
    Share(args.count, args.vocabulary,
          [&](int64_t begin, int64_t end) { SampleRows(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status Linear(const LinearArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostLinearArgs args = OnHost(device_args);
    const KernelFloatScope scope;
    return CpuLinear(args, &pool_, &scratch_);
  }

  absl::Status RotaryTable(const RotaryTableArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostRotaryTableArgs args = OnHost(device_args);
    const int64_t half = args.head_dim / 2;
    constexpr int64_t kCostOfSinCos = 16;  // in elements of row work
    Share(args.num_tokens, half * kCostOfSinCos, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const SinCosResult result =
              SinCos(static_cast<float>(args.positions[t]) * args.inv_freq[i]);
          args.cos[t * half + i] = result.cos * args.scale;
          args.sin[t * half + i] = result.sin * args.scale;
        }
      }
    });
    return absl::OkStatus();
  }

  absl::Status RotaryKvWrite(const RotaryKvWriteArgs& device_args) override {
    TANDEM_ASSIGN_OR_RETURN(const AttentionKernels* const attention, CheckedAttention(device_args));
    const HostRotaryKvWriteArgs args = OnHost(device_args);
    const int64_t heads = args.num_heads + 2 * args.kv.num_kv_heads;
    Share(args.num_tokens, heads * args.kv.shape.head_dim,
          [&](int64_t begin, int64_t end) { attention->rotary_kv_write(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status DecodeAttention(const DecodeAttentionArgs& device_args) override {
    TANDEM_ASSIGN_OR_RETURN(const AttentionKernels* const attention, CheckedAttention(device_args));
    const HostDecodeAttentionArgs args = OnHost(device_args);
    const KernelFloatScope scope;
    return CpuDecodeAttention(*attention, args, &pool_, &scratch_);
  }

  absl::Status PrefillAttention(const PrefillAttentionArgs& device_args) override {
    TANDEM_ASSIGN_OR_RETURN(const AttentionKernels* const attention, CheckedAttention(device_args));
    const HostPrefillAttentionArgs args = OnHost(device_args);
    const KernelFloatScope scope;
    return CpuPrefillAttention(*attention, args, &pool_, &scratch_);
  }

  absl::Status CopyBlocks(const CopyBlocksArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostCopyBlocksArgs args = OnHost(device_args);
    pool_.ParallelFor(args.count, [&](int64_t i, int) {
      std::memcpy(args.base + static_cast<size_t>(args.destinations[i]) * args.block_stride_bytes,
                  args.base + static_cast<size_t>(args.sources[i]) * args.block_stride_bytes,
                  args.block_stride_bytes);
    });
    return absl::OkStatus();
  }

  absl::Status ChecksumBlocks(const ChecksumBlocksArgs& device_args) override {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const HostChecksumBlocksArgs args = OnHost(device_args);
    pool_.ParallelFor(args.count, [&](int64_t i, int) {
      args.checksums[i] =
          Crc32c(args.base + static_cast<size_t>(args.blocks[i]) * args.block_stride_bytes,
                 args.block_stride_bytes);
    });
    return absl::OkStatus();
  }

  uint64_t work_done() const override { return pool_.items_done(); }

 private:
  absl::StatusOr<const GemmKernels*> FindGemm(const LinearSpec& spec) const {
    const GemmKernels* const gemm = table_.FindGemm(spec.weight_type, spec.compute_dtype);
    if (gemm != nullptr) return gemm;
    return absl::FailedPreconditionError(
        absl::StrFormat("linear: no kernel of the cpu computes in %s with weights of type %s",
                        NameOf(spec.compute_dtype), NameOf(spec.weight_type)));
  }

  absl::StatusOr<const AttentionKernels*> FindAttention(KvType kv_type, DType compute_dtype) const {
    const std::span<const AttentionKernels> all =
        compute_dtype == DType::kF32 ? std::span<const AttentionKernels>(table_.f32_attention)
                                     : table_.bf16_attention;
    for (const AttentionKernels& attention : all) {
      if (attention.kv_type == kv_type) return &attention;
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("attention: no kernel of the cpu computes in %s with KV of type %s",
                        NameOf(compute_dtype), NameOf(kv_type)));
  }

  // The kernels for `args`, which are valid.
  template <typename Args>
  absl::StatusOr<const AttentionKernels*> CheckedAttention(const Args& args) const {
    TANDEM_RETURN_IF_ERROR(Validate(args.kv.shape));
    TANDEM_ASSIGN_OR_RETURN(const AttentionKernels* const attention,
                            FindAttention(args.kv.shape.type, args.compute_dtype));
    TANDEM_RETURN_IF_ERROR(Validate(args, attention->tile_bytes(args.kv.shape)));
    return attention;
  }

  // Calls body(begin, end) for ranges of `count` rows of `cost` elements each.
  template <typename Body>
  void Share(int64_t count, int64_t cost, const Body& body) {
    const KernelFloatScope scope;
    const int64_t item_rows = std::max<int64_t>(CeilDiv(kItemElements, cost), 1);
    pool_.ParallelFor(CeilDiv(count, item_rows), [&](int64_t item, int) {
      body(item * item_rows, std::min(count, (item + 1) * item_rows));
    });
  }

  template <typename DeviceArgs, typename Args>
  absl::Status ForRows(const DeviceArgs& device_args,
                       void (*kernel)(const Args& args, int64_t begin, int64_t end)) {
    TANDEM_RETURN_IF_ERROR(Validate(device_args));
    const Args args = OnHost(device_args);
    Share(args.num_rows, args.features,
          [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
    return absl::OkStatus();
  }

  const KernelTable& table_;
  ThreadPool pool_;
  Scratch scratch_;
};

absl::StatusOr<const KernelTable*> PickTable(const CpuBackendOptions& options) {
  std::string known = "auto";
  for (const Isa& isa : KnownIsas()) {
    absl::StrAppend(&known, ", ", isa.name);
    if (options.isa != "auto" && options.isa != isa.name) continue;
    const KernelTable* const table = isa.kernels();
    if (table != nullptr) return table;
    if (options.isa == isa.name) {
      return absl::FailedPreconditionError(
          absl::StrFormat("isa %s needs %s: this machine lacks one of them", isa.name, isa.needs));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown isa \"%s\"; known: %s", options.isa, known));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  if (options.num_threads < 1 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_threads is %d, must be 1 to %d", options.num_threads, kMaxThreads));
  }
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* const table, PickTable(options));
  return std::make_unique<CpuBackend>(*table, options);
}

std::unique_ptr<Backend> CreateCpuBackend(const KernelTable& table, int num_threads) {
  return std::make_unique<CpuBackend>(table, CpuBackendOptions{.num_threads = num_threads});
}

}  // namespace tandem
