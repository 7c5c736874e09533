#include "services/worker/worker_process.h"

int main(int argc, char** argv) {
  return tandem::RunWorkerProcess(std::vector<std::string>(argv + 1, argv + argc),
                                  tandem::CreateBackend);
}
