#include "runtime/transport/nccl/nccl_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/kv_conformance.h"
#include "tests/unit/runtime/transport/nccl_side.h"

namespace tandem {

std::vector<KvKind> KvKinds() {
  return {{.name = "nccl",
           .path = "nccl",
           .crosses_processes = false,
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<NcclSide>(num_blocks);
           }}};
}

}  // namespace tandem
