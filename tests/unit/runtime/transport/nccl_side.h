// One end of NCCL links whose headers come down streams of this process, for tests.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_NCCL_SIDE_H_
#define TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_NCCL_SIDE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/nccl/nccl_transport.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/kv_side.h"
#include "tests/support/local_carrier.h"

namespace tandem {

class NcclSide final : public Side {
 public:
  // `copier`: in place of far_memory.
  explicit NcclSide(int32_t num_blocks, std::chrono::milliseconds stall = kPatience,
                    DeviceCopier* copier = nullptr) {
    static std::atomic<int> next{0};
    target = "nccl:" + std::to_string(next++);
    auto made_carrier = std::make_unique<LocalCarrier>(target);
    carrier = made_carrier.get();
    KvPool pool = FarPool(this, num_blocks);
    if (copier != nullptr) pool.copier = copier;
    auto made = NcclTransport::Create({.pool = pool, .api = &nccl, .stall = stall},
                                      std::move(made_carrier), &receiver, &recorder);
    if (!made.ok()) ADD_FAILURE() << made.status();
    transport = *std::move(made);
  }
  ~NcclSide() override {
    carrier->Shutdown();
    transport.reset();
  }

  FakeNccl nccl;
  LocalCarrier* carrier;  // The transport's.
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_NCCL_SIDE_H_
