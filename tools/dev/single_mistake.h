// Included by sources that tools/dev/single_mistakes has instrumented.

#ifndef TANDEM_TOOLS_DEV_SINGLE_MISTAKE_H_
#define TANDEM_TOOLS_DEV_SINGLE_MISTAKE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <type_traits>

// True in a process that makes mistake `id`: $TANDEM_MISTAKE is its number. Where
// $TANDEM_MISTAKES_REACHED names a file, its byte `id` becomes 1, whatever becomes of the process
// then.
inline bool SingleMistake(int id) {
  struct State {
    int picked = -1;
    unsigned char* reached = nullptr;
  };
  static const State* const state = [] {
    constexpr size_t kMost = size_t{1} << 20;
    auto* const made = new State;
    if (const char* const picked = std::getenv("TANDEM_MISTAKE")) made->picked = std::atoi(picked);
    const char* const path = std::getenv("TANDEM_MISTAKES_REACHED");
    const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return made;
    void* at = MAP_FAILED;
    if (ftruncate(file, kMost) == 0) {
      at = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (at != MAP_FAILED) made->reached = static_cast<unsigned char*>(at);
    close(file);
    return made;
  }();
  if (state->reached != nullptr) state->reached[id] = 1;
  return id == state->picked;
}

#endif  // TANDEM_TOOLS_DEV_SINGLE_MISTAKE_H_
