// tandem-worker as a build with CUDA has it, on emulated GPUs (kernels/cuda/emulated), for
// end-to-end tests. From SIGUSR1 on its kernels hang, from SIGUSR2 on they fail. For UCX its memory
// is what it is, the host's.

#include <signal.h>

#include "kernels/create_backend.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "services/worker/worker_process.h"

int main(int argc, char** argv) {
  signal(SIGUSR1, [](int) { tandem::emulated::Hang(true); });
  signal(SIGUSR2, [](int) { tandem::emulated::Break(); });
  return tandem::RunWorkerProcess(std::vector<std::string>(argv + 1, argv + argc),
                                  tandem::CreateBackend, tandem::OpenNccl,
                                  {.kind = tandem::MemoryKind::kHost});
}
