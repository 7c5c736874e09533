#include "kernels/sampling/draw.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/api/rows.h"

namespace tandem {
namespace {

// Weights are summed up by piece: neither a piece's first weight nor its last is its neighbour's.
TEST(DrawTest, WhatFallsOnAWeightDrawsItInWhateverPieceItIs) {
  constexpr auto kPiece = static_cast<int32_t>(kVocabularyPiece);
  const std::vector<int32_t> ids = {3, kPiece - 1, kPiece, 2 * kPiece + 5};
  std::vector<float> row(3 * kVocabularyPiece, -std::numeric_limits<float>::infinity());
  for (const int32_t id : ids) row[static_cast<size_t>(id)] = 0.0f;
  RowMaxima maxima;
  FindMaxima(row, &maxima);
  DrawScratch scratch;
  const auto draw = [&](uint64_t target) {
    return Draw({.row = row,
                 .maxima = &maxima,
                 .temperature = 1.0f,
                 .top_k = 0,
                 .top_p = 1.0f,
                 .random = target << 18},  // All weights together are 2^46.
                &scratch);
  };
  constexpr auto kWeight = static_cast<uint64_t>(kWeightOne);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(draw(i * kWeight), ids[i]);
    EXPECT_EQ(draw((i + 1) * kWeight - 1), ids[i]);
  }
}

}  // namespace
}  // namespace tandem
