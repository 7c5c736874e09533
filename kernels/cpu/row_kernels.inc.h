// Row operations over 16 lanes; bit for bit those of kernels/reference. Included once per
// instruction set.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"

namespace tandem {
namespace {

void RmsNormRows(const HostRmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t count = args.features;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = args.input + r * count;
    F32x16 sums = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      const F32x16 v = LoadLanes(DType::kF32, x, i, LanesAt(i, count));
      sums = sums + v * v;
    }
    const float mean = SumOf(sums) / static_cast<float>(count);
    const float scale = 1.0f / __builtin_sqrtf(mean + args.epsilon);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = LanesAt(i, count);
      const F32x16 weight = LoadLanes(DType::kF32, args.weight, i, lanes);
      const F32x16 y = (LoadLanes(DType::kF32, x, i, lanes) * scale) * weight;
      StoreLanes(args.output_dtype, args.output, r * count + i, y, lanes);
    }
  }
}

void LayerNormRows(const HostLayerNormArgs& args, int64_t begin, int64_t end) {
  const int64_t count = args.features;
  const float divisor = static_cast<float>(count);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = args.input + r * count;
    F32x16 sums = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      sums = sums + LoadLanes(DType::kF32, x, i, LanesAt(i, count));
    }
    const float mean = SumOf(sums) / divisor;
    const int64_t whole = count / kLanes * kLanes;
    F32x16 squares = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const F32x16 v = LoadF32(x + i) - mean;
      squares = squares + v * v;
    }
    if (whole < count) {
      const int lanes = static_cast<int>(count - whole);
      // Lanes past the end must add 0, not mean².
      float centred[kLanes] = {};
      StoreF32Tail(centred, LoadF32Tail(x + whole, lanes) - mean, lanes);
      const F32x16 v = LoadF32(centred);
      squares = squares + v * v;
    }
    const float variance = SumOf(squares) / divisor;
    const float scale = 1.0f / __builtin_sqrtf(variance + args.epsilon);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = LanesAt(i, count);
      const F32x16 weight = LoadLanes(DType::kF32, args.weight, i, lanes);
      const F32x16 bias = LoadLanes(DType::kF32, args.bias, i, lanes);
      const F32x16 v = LoadLanes(DType::kF32, x, i, lanes) - mean;
      StoreLanes(args.output_dtype, args.output, r * count + i, (v * scale) * weight + bias, lanes);
    }
  }
}

template <ActivationFunction kFunction>
void ActivateRowsBy(const HostActivateArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < args.features; i += kLanes) {
      const int lanes = LanesAt(i, args.features);
      const int64_t from = r * args.input_stride + i;
      const F32x16 gate = LoadLanes(args.input_dtype, args.gate, from, lanes);
      F32x16 y = kFunction == ActivationFunction::kSilu ? SiluOf(gate) : GeluTanhOf(gate);
      if (args.up != nullptr) y = y * LoadLanes(args.input_dtype, args.up, from, lanes);
      StoreLanes(args.output_dtype, args.output, r * args.features + i, y, lanes);
    }
  }
}

void ActivateRows(const HostActivateArgs& args, int64_t begin, int64_t end) {
  if (args.function == ActivationFunction::kSilu) {
    ActivateRowsBy<ActivationFunction::kSilu>(args, begin, end);
  } else {
    ActivateRowsBy<ActivationFunction::kGeluTanh>(args, begin, end);
  }
}

void AddElements(const HostAddArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int lanes = LanesAt(i, end);
    const F32x16 sum = LoadLanes(DType::kF32, args.accumulator, i, lanes) +
                       LoadLanes(DType::kF32, args.addend, i, lanes);
    StoreLanes(DType::kF32, args.accumulator, i, sum, lanes);
  }
}

void SoftCapElements(const HostSoftCapArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int lanes = LanesAt(i, end);
    const F32x16 x = LoadLanes(DType::kF32, args.values, i, lanes);
    StoreLanes(DType::kF32, args.values, i, SoftCapOf(x, args.cap), lanes);
  }
}

void EmbeddingRows(const HostEmbeddingArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < args.features; i += kLanes) {
      const int lanes = LanesAt(i, args.features);
      F32x16 x = LoadLanes(args.table_dtype, args.table, args.ids[r] * args.features + i, lanes);
      if (args.position_table != nullptr) {
        x = x + LoadLanes(args.table_dtype, args.position_table,
                          args.positions[r] * args.features + i, lanes);
      }
      StoreLanes(DType::kF32, args.output, r * args.features + i, x, lanes);
    }
  }
}

void LogSoftmaxRows(const HostLogSoftmaxArgs& args, int64_t begin, int64_t end) {
  const float minus_infinity = -__builtin_inff();
  for (int64_t r = begin; r < end; ++r) {
    const float* logits = args.logits + r * args.vocabulary;
    const int64_t whole = args.vocabulary / kLanes * kLanes;
    F32x16 maxima = Splat(minus_infinity);
    for (int64_t i = 0; i < whole; i += kLanes) maxima = MaxOf(LoadF32(logits + i), maxima);
    float max = MaxOfLanes(maxima);
    for (int64_t i = whole; i < args.vocabulary; ++i) max = logits[i] > max ? logits[i] : max;
    float sum = 0.0f;
    for (int64_t first = 0; first < args.vocabulary; first += kVocabularyPiece) {
      const int64_t last =
          first + kVocabularyPiece < args.vocabulary ? first + kVocabularyPiece : args.vocabulary;
      F32x16 sums = {};
      for (int64_t i = first; i < last; i += kLanes) {
        if (i + kLanes <= last) {
          sums = sums + ExpOf(LoadF32(logits + i) - max);
        } else {
          // Lanes past the end are −∞, whose exponential is 0.
          float tail[kLanes];
          StoreF32(tail, Splat(minus_infinity));
          const int lanes = static_cast<int>(last - i);
          StoreF32Tail(tail, LoadF32Tail(logits + i, lanes) - max, lanes);
          sums = sums + ExpOf(LoadF32(tail));
        }
      }
      sum = sum + SumOf(sums);
    }
    const float log_sum = Log(sum);
    args.max[r] = max;
    args.log_sum[r] = log_sum;
    if (args.log_probabilities == nullptr) continue;
    for (int64_t i = 0; i < args.vocabulary; i += kLanes) {
      const int lanes = LanesAt(i, args.vocabulary);
      const F32x16 x = LoadLanes(DType::kF32, logits, i, lanes);
      StoreLanes(DType::kF32, args.log_probabilities, r * args.vocabulary + i, (x - max) - log_sum,
                 lanes);
    }
  }
}

constexpr RowKernels kRowKernels = {
    .rms_norm = RmsNormRows,
    .layer_norm = LayerNormRows,
    .activate = ActivateRows,
    .add = AddElements,
    .soft_cap = SoftCapElements,
    .embedding = EmbeddingRows,
    .log_softmax = LogSoftmaxRows,
};

}  // namespace
}  // namespace tandem
