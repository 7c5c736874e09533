// tandem-worker on an emulated GPU (kernels/cuda/emulated), for end-to-end tests.

#include "kernels/cuda/cuda_backend.h"
#include "services/worker/worker_process.h"

int main(int argc, char** argv) {
  return tandem::RunWorkerProcess(
      std::vector<std::string>(argv + 1, argv + argc), [](const tandem::BackendOptions& options) {
        return tandem::CreateCudaBackend(options.isa == "fma" ? tandem::CudaProducts::kFma
                                                              : tandem::CudaProducts::kTensorCores);
      });
}
