#include "kernels/reference/reference_backend.h"

#include <atomic>
#include <cstdint>

#include "kernels/reference/reference_attention.h"
#include "kernels/reference/reference_linear.h"
#include "kernels/reference/reference_rows.h"
#include "kernels/sampling/sampler.h"
#include "kernels/support/float_environment.h"
#include "kernels/support/host_args.h"
#include "kernels/support/host_backend.h"
#include "kernels/support/validate.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// What Validate wants besides the arguments.
template <typename Args>
absl::Status Check(const Args& args) {
  if constexpr (requires { args.kv; }) {
    return Validate(args, ReferenceTileFormat(args.kv.shape).tile_bytes);
  } else {
    return Validate(args);
  }
}

void SampleAll(const HostSampleArgs& args) { SampleRows(args, 0, args.count); }

class ReferenceBackend final : public HostBackend {
 public:
  std::string name() const override { return "reference"; }
  std::string isa() const override { return "reference"; }

  // Whatever is stored is read as a number and computed with as `compute_dtype` wants it.
  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                               DType /*compute_dtype*/) const override {
    TANDEM_RETURN_IF_ERROR(Validate(shape));
    return ReferenceTileFormat(shape);
  }

  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    TANDEM_RETURN_IF_ERROR(Validate(spec));
    return ReferencePackedFormat(spec);
  }

  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacking(spec, parts, packed, format.size_bytes));
    ReferencePack(spec, parts, packed.data());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, GetPackedFormat(spec));
    TANDEM_RETURN_IF_ERROR(ValidatePacked(packed, size_bytes, format.size_bytes));
    return ReferencePrepare(spec, OnHost(packed));
  }

  absl::Status Embedding(const EmbeddingArgs& args) override {
    return Run(args, ReferenceEmbedding);
  }
  absl::Status RmsNorm(const RmsNormArgs& args) override { return Run(args, ReferenceRmsNorm); }
  absl::Status LayerNorm(const LayerNormArgs& args) override {
    return Run(args, ReferenceLayerNorm);
  }
  absl::Status Linear(const LinearArgs& args) override { return Run(args, ReferenceLinear); }
  absl::Status Add(const AddArgs& args) override { return Run(args, ReferenceAdd); }
  absl::Status SoftCap(const SoftCapArgs& args) override { return Run(args, ReferenceSoftCap); }
  absl::Status GatherRows(const GatherRowsArgs& args) override {
    return Run(args, ReferenceGatherRows);
  }
  absl::Status Sample(const SampleArgs& args) override { return Run(args, SampleAll); }
  absl::Status RotaryTable(const RotaryTableArgs& args) override {
    return Run(args, ReferenceRotaryTable);
  }
  absl::Status RotaryKvWrite(const RotaryKvWriteArgs& args) override {
    return Run(args, ReferenceRotaryKvWrite);
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    return Run(args, ReferenceDecodeAttention);
  }
  absl::Status PrefillAttention(const PrefillAttentionArgs& args) override {
    return Run(args, ReferencePrefillAttention);
  }
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override {
    return Run(args, ReferenceCopyBlocks);
  }
  absl::Status ChecksumBlocks(const ChecksumBlocksArgs& args) override {
    return Run(args, ReferenceChecksumBlocks);
  }

  uint64_t work_done() const override { return num_operations_; }

 private:
  template <typename Args, typename HostArgs>
  absl::Status Run(const Args& args, void (*operation)(const HostArgs&)) {
    TANDEM_RETURN_IF_ERROR(Check(args));
    const KernelFloatScope scope;
    operation(OnHost(args));
    ++num_operations_;
    return absl::OkStatus();
  }

  std::atomic<uint64_t> num_operations_{0};
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace tandem
