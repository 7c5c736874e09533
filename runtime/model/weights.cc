#include "runtime/model/weights.h"

#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/number_convert.h"

namespace tandem {
namespace {

constexpr size_t kSectionAlignment = 64;

// A run of tensors that becomes one section of the image.
struct Section {
  enum class Kind : uint8_t { kLinear, kVector, kTable };
  struct Source {
    std::string name;
    std::vector<int64_t> shape;
  };
  Kind kind = Kind::kVector;
  std::vector<Source> sources;
  LinearSpec linear{};  // kLinear only.
  size_t offset = 0;
  size_t bytes = 0;
};

// Which section holds what. The order of sections is the order of the digest.
struct Plan {
  struct WeightAndBias {
    size_t weight = 0;
    std::optional<size_t> bias;
  };
  struct Layer {
    WeightAndBias attention_norm, ffn_norm;
    WeightAndBias qkv, attention_output, ffn_in, ffn_out;
  };
  std::vector<Section> sections;
  size_t total_bytes = 0;
  size_t embedding = 0;
  std::optional<size_t> position_embedding;
  std::vector<Layer> layers;
  WeightAndBias final_norm;
  WeightAndBias logits;
};

class Planner {
 public:
  Planner(const Backend& backend, DType compute_dtype)
      : backend_(backend), compute_dtype_(compute_dtype) {}

  absl::StatusOr<Plan> Make(const ModelConfig& config, const ModelSpec& spec) {
    plan_.embedding = AddTable(spec.embedding, config.vocab_size, config.hidden_size);
    if (spec.positions == PositionKind::kLearned) {
      plan_.position_embedding =
          AddTable(spec.position_embedding, config.max_positions, config.hidden_size);
    }
    for (const LayerDecl& layer : spec.layers) {
      Plan::Layer added;
      added.attention_norm = AddNorm(layer.attention_norm, config.hidden_size);
      TANDEM_ASSIGN_OR_RETURN(added.qkv, AddLinear(layer.qkv));
      TANDEM_ASSIGN_OR_RETURN(added.attention_output, AddLinear(layer.attention_output));
      added.ffn_norm = AddNorm(layer.ffn_norm, config.hidden_size);
      TANDEM_ASSIGN_OR_RETURN(added.ffn_in, AddLinear(layer.ffn_in));
      TANDEM_ASSIGN_OR_RETURN(added.ffn_out, AddLinear(layer.ffn_out));
      plan_.layers.push_back(added);
    }
    plan_.final_norm = AddNorm(spec.final_norm, config.hidden_size);
    TANDEM_ASSIGN_OR_RETURN(plan_.logits, AddLinear(spec.logits));
    return std::move(plan_);
  }

 private:
  size_t Add(Section section) {
    section.offset = plan_.total_bytes;
    plan_.total_bytes += RoundUp(section.bytes, kSectionAlignment);
    plan_.sections.push_back(std::move(section));
    return plan_.sections.size() - 1;
  }

  size_t AddVector(std::vector<Section::Source> sources) {
    size_t count = 0;
    for (const Section::Source& source : sources) count += static_cast<size_t>(source.shape[0]);
    return Add({.kind = Section::Kind::kVector,
                .sources = std::move(sources),
                .bytes = count * sizeof(float)});
  }

  size_t AddTable(const std::string& name, int64_t rows, int64_t columns) {
    return Add({.kind = Section::Kind::kTable,
                .sources = {{name, {rows, columns}}},
                .bytes = static_cast<size_t>(rows * columns) * SizeOf(compute_dtype_)});
  }

  Plan::WeightAndBias AddNorm(const NormDecl& norm, int64_t features) {
    Plan::WeightAndBias added{.weight = AddVector({{norm.weight, {features}}})};
    if (!norm.bias.empty()) added.bias = AddVector({{norm.bias, {features}}});
    return added;
  }

  absl::StatusOr<Plan::WeightAndBias> AddLinear(const LinearDecl& linear) {
    Section section{.kind = Section::Kind::kLinear,
                    .linear = {.in_features = linear.in_features,
                               .out_features = linear.out_features(),
                               .compute_dtype = compute_dtype_,
                               .output_dtype = DType::kF32,
                               .layout = linear.layout,
                               .segmented = linear.segmented}};
    std::vector<Section::Source> biases;
    for (const LinearPart& part : linear.parts) {
      std::vector<int64_t> shape{part.out_features, linear.in_features};
      if (linear.layout == WeightLayout::kInOut) std::swap(shape[0], shape[1]);
      section.sources.push_back({part.weight, std::move(shape)});
      if (!part.bias.empty()) biases.push_back({part.bias, {part.out_features}});
    }
    TANDEM_ASSIGN_OR_RETURN(section.bytes, backend_.PackedLinearBytes(section.linear));
    Plan::WeightAndBias added{.weight = Add(std::move(section))};
    if (!biases.empty()) added.bias = AddVector(std::move(biases));
    return added;
  }

  const Backend& backend_;
  const DType compute_dtype_;
  Plan plan_;
};

Sha256Digest KeyOf(const Plan& plan, const Backend& backend, DType compute_dtype,
                   const std::string& identity) {
  Sha256 key;
  key.Update(absl::StrFormat("%s\n%s %s\n", identity, backend.pack_format(compute_dtype),
                             NameOf(compute_dtype)));
  for (const Section& section : plan.sections) {
    for (const Section::Source& source : section.sources) {
      key.Update(source.name);
      for (int64_t dimension : source.shape) key.Update(absl::StrCat(" ", dimension));
      key.Update("\n");
    }
    key.Update(absl::StrCat(section.offset, " ", section.bytes, "\n"));
  }
  return key.Finish();
}

// Packs section by section, hashing every tensor as it is read.
class Packer {
 public:
  Packer(const Plan& plan, WeightSource* source, const Backend& backend, DType compute_dtype)
      : plan_(plan), source_(source), backend_(backend), compute_dtype_(compute_dtype) {}

  absl::StatusOr<Sha256Digest> Run(std::span<std::byte> payload) {
    for (const Section& section : plan_.sections) {
      TANDEM_RETURN_IF_ERROR(Pack(section, payload.subspan(section.offset, section.bytes)));
      source_->Release();
    }
    return digest_.Finish();
  }

 private:
  absl::StatusOr<TensorView> Read(const Section::Source& source) {
    TANDEM_ASSIGN_OR_RETURN(TensorView view, source_->Tensor(source.name, source.shape));
    digest_.Update(absl::StrCat(source.name, " ", std::string(Name(view.type))));
    for (int64_t dimension : view.shape) digest_.Update(absl::StrCat(" ", dimension));
    digest_.Update("\n");
    digest_.Update(view.bytes.data(), view.bytes.size());
    return view;
  }

  absl::Status Pack(const Section& section, std::span<std::byte> out) {
    if (section.kind == Section::Kind::kLinear) return PackLinear(section, out);
    size_t done = 0;  // Bytes of `out`.
    for (const Section::Source& source : section.sources) {
      TANDEM_ASSIGN_OR_RETURN(const TensorView view, Read(source));
      const size_t count = view.bytes.size() / static_cast<size_t>(SizeBytes(view.type));
      if (section.kind == Section::Kind::kTable && compute_dtype_ == DType::kBF16) {
        ConvertToBf16(view.type, view.bytes,
                      {reinterpret_cast<uint16_t*>(out.data() + done), count});
        done += count * sizeof(uint16_t);
      } else {
        ConvertToF32(view.type, view.bytes, {reinterpret_cast<float*>(out.data() + done), count});
        done += count * sizeof(float);
      }
    }
    return absl::OkStatus();
  }

  absl::Status PackLinear(const Section& section, std::span<std::byte> out) {
    std::list<std::vector<float>> converted;
    std::list<std::vector<uint16_t>> aligned;
    std::vector<WeightPart> parts;
    for (const Section::Source& source : section.sources) {
      TANDEM_ASSIGN_OR_RETURN(const TensorView view, Read(source));
      const bool in_out = section.linear.layout == WeightLayout::kInOut;
      WeightPart part{.data = view.bytes.data(),
                      .out_features = source.shape[in_out ? 1 : 0],
                      .dtype = view.type == TensorType::kBF16 ? DType::kBF16 : DType::kF32};
      const size_t count = view.bytes.size() / static_cast<size_t>(SizeBytes(view.type));
      const bool is_aligned = reinterpret_cast<uintptr_t>(part.data) % SizeOf(part.dtype) == 0;
      if (part.dtype == DType::kF32 && (view.type == TensorType::kF16 || !is_aligned)) {
        ConvertToF32(view.type, view.bytes, converted.emplace_back(count));
        part.data = converted.back().data();
      } else if (!is_aligned) {
        ConvertToBf16(view.type, view.bytes, aligned.emplace_back(count));
        part.data = aligned.back().data();
      }
      parts.push_back(part);
    }
    return backend_.PackLinear(section.linear, parts, out);
  }

  const Plan& plan_;
  WeightSource* const source_;
  const Backend& backend_;
  const DType compute_dtype_;
  Sha256 digest_;
};

// Turns sections of the mapped image into operations and pointers.
class Binder {
 public:
  Binder(const Plan& plan, std::span<const std::byte> payload, Backend* backend)
      : plan_(plan), payload_(payload), backend_(backend) {}

  const void* At(size_t section) const { return Bytes(section).data(); }

  NormWeights Norm(const Plan::WeightAndBias& norm) const {
    return {.weight = Floats(norm.weight), .bias = norm.bias ? Floats(*norm.bias) : nullptr};
  }

  absl::Status Linear(const Plan::WeightAndBias& linear, LinearWeights* out) const {
    TANDEM_ASSIGN_OR_RETURN(out->op, backend_->PrepareLinear(plan_.sections[linear.weight].linear,
                                                             Bytes(linear.weight)));
    out->bias = linear.bias ? Floats(*linear.bias) : nullptr;
    return absl::OkStatus();
  }

 private:
  std::span<const std::byte> Bytes(size_t section) const {
    return payload_.subspan(plan_.sections[section].offset, plan_.sections[section].bytes);
  }
  const float* Floats(size_t section) const {
    return reinterpret_cast<const float*>(Bytes(section).data());
  }

  const Plan& plan_;
  const std::span<const std::byte> payload_;
  Backend* const backend_;
};

}  // namespace

absl::StatusOr<size_t> ModelWeights::PackedBytes(const ModelConfig& config, const ModelSpec& spec,
                                                 const Backend& backend, DType compute_dtype) {
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, Planner(backend, compute_dtype).Make(config, spec));
  return plan.total_bytes;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(const ModelConfig& config,
                                                                 const ModelSpec& spec,
                                                                 WeightSource* source,
                                                                 Backend* backend,
                                                                 const WeightsOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const Plan plan,
                          Planner(*backend, options.compute_dtype).Make(config, spec));
  const PackedImageOptions image_options{
      .cache_dir = options.cache_dir,
      .key = KeyOf(plan, *backend, options.compute_dtype, source->Identity()),
      .identity = source->Identity(),
      .payload_bytes = plan.total_bytes,
      .on_corrupt = options.on_corrupt};
  std::unique_ptr<ModelWeights> weights(new ModelWeights());
  TANDEM_ASSIGN_OR_RETURN(
      weights->image_, PackedImage::Open(image_options, [&](std::span<std::byte> payload) {
        return Packer(plan, source, *backend, options.compute_dtype).Run(payload);
      }));

  const Binder binder(plan, weights->image_->payload(), backend);
  weights->embedding_ = binder.At(plan.embedding);
  if (plan.position_embedding) {
    weights->position_embedding_ = binder.At(*plan.position_embedding);
  }
  weights->layers_.resize(plan.layers.size());
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const Plan::Layer& from = plan.layers[i];
    LayerWeights& to = weights->layers_[i];
    to.attention_norm = binder.Norm(from.attention_norm);
    TANDEM_RETURN_IF_ERROR(binder.Linear(from.qkv, &to.qkv));
    TANDEM_RETURN_IF_ERROR(binder.Linear(from.attention_output, &to.attention_output));
    to.ffn_norm = binder.Norm(from.ffn_norm);
    TANDEM_RETURN_IF_ERROR(binder.Linear(from.ffn_in, &to.ffn_in));
    TANDEM_RETURN_IF_ERROR(binder.Linear(from.ffn_out, &to.ffn_out));
  }
  weights->final_norm_ = binder.Norm(plan.final_norm);
  TANDEM_RETURN_IF_ERROR(binder.Linear(plan.logits, &weights->logits_));
  return weights;
}

}  // namespace tandem
