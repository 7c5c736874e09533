#include "runtime/base/sha256.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string Hex(const Sha256Digest& digest) { return HexOf(digest.data(), digest.size()); }

TEST(Sha256Test, MatchesThePublishedVectorsWholeAndInPieces) {
  // FIPS 180-4 examples.
  EXPECT_EQ(Hex(Sha256Of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256Of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 sha;
  sha.Update("a");
  sha.Update("bc");
  EXPECT_EQ(sha.Finish(), Sha256Of("abc"));
}

}  // namespace
}  // namespace tandem
