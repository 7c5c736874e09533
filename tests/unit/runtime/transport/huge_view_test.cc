#include "runtime/transport/ucx/huge_view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace tandem {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kBytes = 3 * kHugePageBytes + 4096;  // Not all of it are whole huge pages.

// Memory of a file without a name, mapped where the kernel likes.
class SharedMapping {
 public:
  SharedMapping() {
    const int fd = memfd_create("huge_view_test", 0);
    EXPECT_EQ(ftruncate(fd, kBytes), 0);
    data_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(data_, MAP_FAILED);
    close(fd);
  }
  ~SharedMapping() { munmap(data_, kBytes); }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
};

// Bytes of shared memory that huge pages map, in the mapping that begins at `data`.
size_t HugeBytes(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<uintptr_t>(data);
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) is_it = std::stoull(line, nullptr, 16) == address;
    if (is_it && line.starts_with("ShmemPmdMapped:")) return std::stoull(line.substr(15)) * 1024;
  }
  return 0;
}

TEST(HugeViewTest, IsTheSameMemoryFromABorderOfHugePagesOn) {
  const SharedMapping mapping;
  mapping.data()[kBytes - 1] = 'x';
  auto view = HugeView::Of(mapping.data(), kBytes);
  ASSERT_TRUE(view.ok()) << view.status();
  auto* const seen = reinterpret_cast<char*>(view->data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(seen) % kHugePageBytes, 0u);
  EXPECT_EQ(seen[kBytes - 1], 'x');
  seen[5] = 'y';
  EXPECT_EQ(mapping.data()[5], 'y');
}

TEST(HugeViewTest, OutlivesTheMappingAndLeavesItBehind) {
  HugeView outer;
  {
    const SharedMapping mapping;
    mapping.data()[0] = 'x';
    { const auto gone = HugeView::Of(mapping.data(), kBytes); }
    EXPECT_EQ(mapping.data()[0], 'x');
    auto view = HugeView::Of(mapping.data(), kBytes);
    ASSERT_TRUE(view.ok()) << view.status();
    outer = *std::move(view);
  }
  EXPECT_EQ(static_cast<char>(outer.data()[0]), 'x');
}

TEST(HugeViewTest, OfPrivateMemoryIsRefused) {
  void* const data =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(HugeView::Of(data, kBytes).status().code(), absl::StatusCode::kResourceExhausted);
  munmap(data, kBytes);
}

TEST(HugeViewTest, CollapsesWhatIsThereAndWhatNobodyTouched) {
  const SharedMapping mapping;
  for (size_t at = 0; at < kHugePageBytes; at += 4096) mapping.data()[at] = 'x';
  mapping.data()[kHugePageBytes + 1] = 'y';
  auto view = HugeView::Of(mapping.data(), kBytes);
  ASSERT_TRUE(view.ok()) << view.status();
  const absl::Status collapsed = view->Collapse();
  // A kernel that cannot says so.
  EXPECT_EQ(collapsed.ok(), HugeBytes(view->data()) == 3 * kHugePageBytes) << collapsed;
  EXPECT_TRUE(collapsed.ok() || absl::IsFailedPrecondition(collapsed)) << collapsed;
  for (size_t at = 0; at < kBytes; ++at) {
    const char expected = at < kHugePageBytes && at % 4096 == 0 ? 'x'
                          : at == kHugePageBytes + 1            ? 'y'
                                                                : 0;
    ASSERT_EQ(static_cast<char>(view->data()[at]), expected) << at;
  }
}

}  // namespace
}  // namespace tandem
