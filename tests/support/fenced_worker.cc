// tandem-worker on a fenced device (kernels/fenced), with what stands in for NCCL, for end-to-end
// tests. UCX gets at the fenced memory as that does.

#include "services/worker/worker_process.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/kv_side.h"

int main(int argc, char** argv) {
  return tandem::RunWorkerProcess(
      std::vector<std::string>(argv + 1, argv + argc),
      [](tandem::BackendOptions options) {
        options.device = TANDEM_FENCED_DEVICE;
        return tandem::CreateBackend(options);
      },
      [](const std::string& interface) { return std::make_unique<tandem::FakeNccl>(); },
      {.kind = tandem::MemoryKind::kHost, .across = tandem::FarMemory::Across});
}
