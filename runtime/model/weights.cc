#include "runtime/model/weights.h"

#include <cstring>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/float8_matrix.h"
#include "runtime/model/int4_matrix.h"
#include "runtime/model/number_convert.h"

namespace tandem {
namespace {

constexpr size_t kSectionAlignment = 64;
// Inputs that share a scale where matrices are made 4 bits here (LinearSpec::group).
constexpr int64_t kQuantisedGroup = 32;

// A run of tensors that becomes one section of the image.
struct Section {
  enum class Kind : uint8_t { kLinear, kVector, kTable };
  Kind kind = Kind::kVector;
  std::vector<TensorDecl> sources;  // kVector and kTable only.
  float scale = 1;                  // Their numbers are packed times this,
  float addend = 0;                 // plus this.
  // kLinear only.
  std::vector<LinearPart> parts;  // Their biases are a section of their own.
  Int4Format int4_format;         // How the parts are kept, if in 4 bits.
  LinearSpec linear{};
  std::string pack_format;

  size_t offset = 0;
  size_t bytes = 0;
};

// The sections of a model, in the order of VisitParts.
struct Plan {
  std::vector<Section> sections;
  size_t total_bytes = 0;
  size_t row_scratch_bytes = 0;  // WeightSizes
  size_t converted_bytes = 0;    // WeightSizes, but for numbers in F16.
  size_t most_numbers = 0;       // of a layer
};

// Visits a declaration. Every part is a section, its biases another.
class Planner {
 public:
  static absl::StatusOr<Plan> Make(const ModelSpec& spec, const Backend& backend,
                                   const ModelTypes& types) {
    Plan plan;
    ModelTypes types_here = types;
    // What a quantised checkpoint has not in 4 bits stays as it is.
    if (spec.comes_in_int4()) types_here.weights = WeightTypeOf(types.compute);
    TANDEM_RETURN_IF_ERROR(VisitParts(Planner(backend, types_here, &plan), spec));
    return plan;
  }

  absl::Status operator()(const TableDecl& decl) const {
    if (!decl.present()) return absl::OkStatus();
    const int64_t count = decl.table.shape[0] * decl.table.shape[1];
    Add({.kind = Section::Kind::kTable,
         .sources = {decl.table},
         .scale = types_.compute == DType::kBF16 ? ToFloat(ToBfloat16(decl.scale)) : decl.scale,
         .bytes = static_cast<size_t>(count) * SizeOf(types_.compute)});
    return absl::OkStatus();
  }

  absl::Status operator()(const NormDecl& decl) const {
    if (decl.weight.present()) AddVector({decl.weight}, decl.offset);
    if (decl.bias.present()) AddVector({decl.bias});
    return absl::OkStatus();
  }

  absl::Status operator()(const LinearDecl& decl) const {
    const bool comes_in_int4 = decl.int4_format.present();
    const bool is_plain = decl.is_output && types_.output_is_plain;
    const WeightType kept = is_plain ? WeightTypeOf(types_.compute) : types_.weights;
    const WeightType weight_type = comes_in_int4 ? WeightType::kInt4 : kept;
    const int64_t int4_group = comes_in_int4 ? decl.int4_format.group : kQuantisedGroup;
    Section section{
        .kind = Section::Kind::kLinear,
        .parts = decl.parts,
        .int4_format = decl.int4_format,
        .linear = {.in_features = decl.in_features,
                   .out_features = decl.out_features(),
                   .weight_type = weight_type,
                   .compute_dtype = types_.compute,
                   .output_dtype = decl.activation ? types_.compute : DType::kF32,
                   .layout = decl.layout,
                   .segmented = decl.segmented,
                   .scaled = decl.scaled(),
                   .group = weight_type == WeightType::kInt4 ? int4_group : 0,
                   .outlier_threshold = weight_type == WeightType::kInt8 ? types_.int8_outliers : 0,
                   .activation = decl.activation,
                   .gated = decl.gated}};
    TANDEM_RETURN_IF_ERROR(KeepFloat8(decl, &section.linear));
    TANDEM_ASSIGN_OR_RETURN(PackedFormat format, backend_.GetPackedFormat(section.linear));
    section.pack_format = std::move(format.id);
    section.bytes = format.size_bytes;
    plan_.row_scratch_bytes = std::max(plan_.row_scratch_bytes, format.row_scratch_bytes);
    CountNumbers(decl, section.linear.weight_type);
    Add(std::move(section));
    std::vector<TensorDecl> biases;
    for (const LinearPart& part : decl.parts) {
      if (part.bias.present() != decl.biased()) {
        return absl::FailedPreconditionError(
            absl::StrFormat("%s and %s are one layer here, and one of them alone has a bias",
                            decl.parts[0].weight.name, part.weight.name));
      }
      if (part.bias.present()) biases.push_back(part.bias);
    }
    if (biases.empty()) return absl::OkStatus();
    AddVector(std::move(biases));
    return absl::OkStatus();
  }

 private:
  // Where all parts come in 8-bit floats, are multiplied in bf16 anyway, and the backend has
  // kernels for them: the bits are the same, the bytes half as many.
  absl::Status KeepFloat8(const LinearDecl& decl, LinearSpec* linear) const {
    if (linear->weight_type != WeightType::kBF16 || decl.parts.empty()) return absl::OkStatus();
    for (const LinearPart& part : decl.parts) {
      if (!part.float8.present || part.float8.inputs != decl.parts[0].float8.inputs) {
        return absl::OkStatus();
      }
    }
    LinearSpec as_fp8 = *linear;
    as_fp8.weight_type = WeightType::kFp8;
    as_fp8.scaled = true;
    as_fp8.group = decl.parts[0].float8.inputs;
    const absl::Status kept = backend_.GetPackedFormat(as_fp8).status();
    if (absl::IsFailedPrecondition(kept)) return absl::OkStatus();
    *linear = as_fp8;
    return kept;
  }

  void CountNumbers(const LinearDecl& decl, WeightType weight_type) const {
    size_t numbers = 0;
    size_t converted_bytes = 0;
    for (const LinearPart& part : decl.parts) {
      const auto count = static_cast<size_t>(part.out_features * decl.in_features);
      numbers += count;
      if (part.float8.present) {
        const int64_t runs = CeilDiv(decl.in_features, part.float8.inputs);
        const auto scales = static_cast<size_t>(part.out_features * runs);
        converted_bytes += (weight_type == WeightType::kFp8 ? scales : count) * sizeof(float);
      }
      if (decl.int4_format.present()) converted_bytes += count;
    }
    plan_.most_numbers = std::max(plan_.most_numbers, numbers);
    plan_.converted_bytes = std::max(plan_.converted_bytes, converted_bytes);
  }

  Planner(const Backend& backend, const ModelTypes& types, Plan* plan)
      : backend_(backend), types_(types), plan_(*plan) {}

  void Add(Section section) const {
    section.offset = plan_.total_bytes;
    plan_.total_bytes += RoundUp(section.bytes, kSectionAlignment);
    plan_.sections.push_back(std::move(section));
  }

  void AddVector(std::vector<TensorDecl> sources, float addend = 0) const {
    size_t count = 0;
    for (const TensorDecl& source : sources) count += static_cast<size_t>(source.shape[0]);
    Add({.kind = Section::Kind::kVector,
         .sources = std::move(sources),
         .addend = addend,
         .bytes = count * sizeof(float)});
  }

  const Backend& backend_;
  const ModelTypes types_;
  Plan& plan_;
};

// Names the image that `plan` makes of a checkpoint.
Sha256Digest KeyOf(const Plan& plan, DType compute_dtype, const std::string& identity) {
  Sha256 key;
  key.Update(absl::StrFormat("%s\n%s\n", identity, NameOf(compute_dtype)));
  const auto add = [&key](const TensorDecl& source) {
    key.Update(source.name);
    for (int64_t dimension : source.shape) key.Update(absl::StrCat(" ", dimension));
    key.Update("\n");
  };
  for (const Section& section : plan.sections) {
    for (const TensorDecl& source : section.sources) add(source);
    for (const LinearPart& part : section.parts) {
      add(part.weight);
      add(part.scales);
      if (part.zeros.present()) add(part.zeros);
      if (part.group_index.present()) add(part.group_index);
      if (part.float8.present) {
        add(part.float8_scales);
        key.Update(absl::StrFormat("each %d by %d\n", part.float8.outputs, part.float8.inputs));
      }
    }
    if (section.int4_format.present()) {
      key.Update(absl::StrFormat("zeros less %d\n", section.int4_format.zero_less));
    }
    if (section.scale != 1 || section.addend != 0) {
      key.Update(absl::StrFormat("times %a plus %a\n", section.scale, section.addend));
    }
    key.Update(absl::StrFormat("%s %d %d\n", section.pack_format, section.offset, section.bytes));
  }
  return key.Finish();
}

// Each number of a packed vector or table of f32 or bf16, as its section wants it.
void ScaleAndAdd(const Section& section, bool is_bf16, std::span<std::byte> packed) {
  if (section.scale == 1 && section.addend == 0) return;
  const auto change = [&](float number) { return number * section.scale + section.addend; };
  if (is_bf16) {
    const std::span numbers(reinterpret_cast<Bfloat16*>(packed.data()), packed.size() / 2);
    for (Bfloat16& number : numbers) number = ToBfloat16(change(ToFloat(number)));
  } else {
    const std::span numbers(reinterpret_cast<float*>(packed.data()), packed.size() / 4);
    for (float& number : numbers) number = change(number);
  }
}

size_t CountOf(const TensorView& view) {
  return view.bytes.size() / static_cast<size_t>(SizeBytes(view.type));
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
  // A tensor of numbers.
  absl::StatusOr<TensorView> Read(const TensorDecl& source) {
    TANDEM_ASSIGN_OR_RETURN(TensorView view, ReadAny(source));
    if (view.type != TensorType::kI32 && view.type != TensorType::kF8E4M3) return view;
    return absl::FailedPreconditionError(
        absl::StrFormat("tensor \"%s\" is of type %s; supported are F32, F16 and BF16", source.name,
                        std::string(Name(view.type))));
  }

  absl::StatusOr<TensorView> ReadAny(const TensorDecl& source) {
    TANDEM_ASSIGN_OR_RETURN(TensorView view, source_->Tensor(source.name, source.shape));
    digest_.Update(absl::StrCat(source.name, " ", std::string(Name(view.type))));
    for (int64_t dimension : view.shape) digest_.Update(absl::StrCat(" ", dimension));
    digest_.Update("\n");
    digest_.Update(view.bytes.data(), view.bytes.size());
    return view;
  }

  absl::Status Pack(const Section& section, std::span<std::byte> out) {
    if (section.kind == Section::Kind::kLinear) return PackLinear(section, out);
    const bool is_bf16 = section.kind == Section::Kind::kTable && compute_dtype_ == DType::kBF16;
    size_t done = 0;  // Bytes of `out`.
    for (const TensorDecl& source : section.sources) {
      TANDEM_ASSIGN_OR_RETURN(const TensorView view, Read(source));
      const size_t count = CountOf(view);
      if (is_bf16) {
        ConvertToBf16(view.type, view.bytes,
                      {reinterpret_cast<uint16_t*>(out.data() + done), count});
        done += count * sizeof(uint16_t);
      } else {
        ConvertToF32(view.type, view.bytes, {reinterpret_cast<float*>(out.data() + done), count});
        done += count * sizeof(float);
      }
    }
    ScaleAndAdd(section, is_bf16, out);
    return absl::OkStatus();
  }

  absl::Status PackInt4(const Section& section, std::span<std::byte> out) {
    std::list<Int4Matrix> matrices;
    std::vector<WeightPart> parts;
    for (const LinearPart& decl : section.parts) {
      Int4Tensors tensors;
      TANDEM_ASSIGN_OR_RETURN(tensors.numbers, ReadAny(decl.weight));
      TANDEM_ASSIGN_OR_RETURN(tensors.scales, ReadAny(decl.scales));
      TANDEM_ASSIGN_OR_RETURN(tensors.zeros, ReadAny(decl.zeros));
      if (decl.group_index.present()) {
        TANDEM_ASSIGN_OR_RETURN(tensors.group_index, ReadAny(decl.group_index));
      }
      const std::string name = decl.weight.name.substr(0, decl.weight.name.rfind('.'));
      TANDEM_ASSIGN_OR_RETURN(Int4Matrix unpacked,
                              UnpackInt4(section.int4_format, name, section.linear.in_features,
                                         decl.out_features, tensors));
      const Int4Matrix& matrix = matrices.emplace_back(std::move(unpacked));
      parts.push_back({.data = matrix.numbers.data(),
                       .out_features = decl.out_features,
                       .dtype = DType::kF32,
                       .scales = matrix.scales,
                       .zeros = matrix.zeros});
    }
    return backend_.PackLinear(section.linear, parts, out);
  }

  // `converted` keeps what was not to be had as it lies in the checkpoint.
  absl::StatusOr<WeightPart> ReadFloat8(const LinearPart& decl, WeightType weight_type,
                                        std::list<std::vector<float>>* converted) {
    TANDEM_ASSIGN_OR_RETURN(const TensorView numbers, ReadAny(decl.weight));
    TANDEM_ASSIGN_OR_RETURN(const TensorView scales, Read(decl.float8_scales));
    WeightPart part{
        .data = numbers.bytes.data(), .out_features = decl.out_features, .dtype = DType::kF32};
    if (weight_type == WeightType::kFp8) {
      part.scales = converted->emplace_back(Float8Scales(decl.float8, numbers, scales));
    } else {
      part.data = converted->emplace_back(ScaleFloat8(decl.float8, numbers, scales)).data();
    }
    return part;
  }

  absl::Status PackLinear(const Section& section, std::span<std::byte> out) {
    if (section.int4_format.present()) return PackInt4(section, out);
    std::list<std::vector<float>> converted;
    std::list<std::vector<uint16_t>> aligned;
    std::vector<WeightPart> parts;
    for (const LinearPart& decl : section.parts) {
      if (decl.float8.present) {
        TANDEM_ASSIGN_OR_RETURN(const WeightPart part,
                                ReadFloat8(decl, section.linear.weight_type, &converted));
        parts.push_back(part);
        continue;
      }
      TANDEM_ASSIGN_OR_RETURN(const TensorView view, Read(decl.weight));
      WeightPart part{.data = view.bytes.data(),
                      .out_features = decl.out_features,
                      .dtype = view.type == TensorType::kBF16 ? DType::kBF16 : DType::kF32};
      const size_t count = CountOf(view);
      const bool is_aligned = reinterpret_cast<uintptr_t>(part.data) % SizeOf(part.dtype) == 0;
      if (part.dtype == DType::kF32 && (view.type == TensorType::kF16 || !is_aligned)) {
        ConvertToF32(view.type, view.bytes, converted.emplace_back(count));
        part.data = converted.back().data();
      } else if (!is_aligned) {
        ConvertToBf16(view.type, view.bytes, aligned.emplace_back(count));
        part.data = aligned.back().data();
      }
      if (decl.scales.present()) {
        TANDEM_ASSIGN_OR_RETURN(const TensorView scales, Read(decl.scales));
        std::vector<float>& numbers = converted.emplace_back(CountOf(scales));
        ConvertToF32(scales.type, scales.bytes, numbers);
        part.scales = numbers;
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

// Visits a declaration with what runs: turns the sections of the image, as the backend has it, in
// the order in which Planner made them, into operations and pointers.
class Binder {
 public:
  static absl::Status Bind(const ModelSpec& spec, const Plan& plan,
                           DevicePtr<const std::byte> image, Backend* backend, WeightParts* parts) {
    parts->layers.resize(spec.layers.size());
    size_t next = 0;
    TANDEM_RETURN_IF_ERROR(VisitParts(Binder(plan, image, backend, &next), spec, *parts));
    TANDEM_CHECK(next == plan.sections.size()) << next << " of " << plan.sections.size();
    return absl::OkStatus();
  }

  absl::Status operator()(const TableDecl& decl, DevicePtr<const void>& table) const {
    if (decl.present()) table = Next();
    return absl::OkStatus();
  }

  absl::Status operator()(const NormDecl& decl, NormWeights& norm) const {
    if (decl.weight.present()) norm.weight = NextFloats();
    if (decl.bias.present()) norm.bias = NextFloats();
    return absl::OkStatus();
  }

  absl::Status operator()(const LinearDecl& decl, LinearWeights& linear) const {
    const Section& section = plan_.sections[next_];
    TANDEM_ASSIGN_OR_RETURN(linear.op,
                            backend_->PrepareLinear(section.linear, Next(), section.bytes));
    if (decl.biased()) linear.bias = NextFloats();
    return absl::OkStatus();
  }

 private:
  Binder(const Plan& plan, DevicePtr<const std::byte> image, Backend* backend, size_t* next)
      : plan_(plan), image_(image), backend_(backend), next_(*next) {}

  DevicePtr<const std::byte> Next() const {
    return image_ + static_cast<std::ptrdiff_t>(plan_.sections[next_++].offset);
  }
  DevicePtr<const float> NextFloats() const { return Next().as<const float>(); }

  const Plan& plan_;
  const DevicePtr<const std::byte> image_;
  Backend* const backend_;
  size_t& next_;
};

}  // namespace

absl::StatusOr<WeightSizes> ModelWeights::Sizes(const ModelSpec& spec, const Backend& backend,
                                                const ModelTypes& types, TensorType stored_type) {
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, Planner::Make(spec, backend, types));
  const size_t from_f16 =
      stored_type == TensorType::kF16 ? plan.most_numbers * sizeof(float) : size_t{0};
  return WeightSizes{plan.total_bytes, plan.row_scratch_bytes,
                     std::max(plan.converted_bytes, from_f16)};
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(const ModelSpec& spec,
                                                                 WeightSource* source,
                                                                 Backend* backend,
                                                                 const WeightsOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, Planner::Make(spec, *backend, options.types));
  const PackedImageOptions image_options{
      .cache_dir = options.cache_dir,
      .key = KeyOf(plan, options.types.compute, source->Identity()),
      .identity = source->Identity(),
      .payload_bytes = plan.total_bytes,
      .on_corrupt = options.on_corrupt};
  std::unique_ptr<ModelWeights> weights(new ModelWeights());
  TANDEM_ASSIGN_OR_RETURN(
      weights->image_, PackedImage::Open(image_options, [&](std::span<std::byte> payload) {
        return Packer(plan, source, *backend, options.types.compute).Run(payload);
      }));
  TANDEM_ASSIGN_OR_RETURN(weights->placed_, backend->PlaceWeights(weights->image_->payload()));
  TANDEM_RETURN_IF_ERROR(
      Binder::Bind(spec, plan, weights->placed_.data(), backend, &weights->parts_));
  weights->fp8_layers_ = std::ranges::count_if(plan.sections, [](const Section& section) {
    return section.kind == Section::Kind::kLinear && section.linear.weight_type == WeightType::kFp8;
  });
  return weights;
}

}  // namespace tandem
