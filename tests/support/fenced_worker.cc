// tandem-worker on a fenced device (kernels/fenced), for end-to-end tests.

#include "services/worker/worker_process.h"

int main(int argc, char** argv) {
  return tandem::RunWorkerProcess(std::vector<std::string>(argv + 1, argv + argc),
                                  [](tandem::BackendOptions options) {
                                    options.device = TANDEM_FENCED_DEVICE;
                                    return tandem::CreateBackend(options);
                                  });
}
