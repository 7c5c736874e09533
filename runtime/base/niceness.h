// Which threads have a core first.

#ifndef TANDEM_RUNTIME_BASE_NICENESS_H_
#define TANDEM_RUNTIME_BASE_NICENESS_H_

#include <sys/resource.h>

namespace tandem {

// Makes the calling thread, and those that it starts from here on, so many levels nicer (nice(2)):
// on Linux a thread has a niceness of its own. Nobody can take it back without a privilege.
inline void BeNicer(int levels) {
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + levels);
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_NICENESS_H_
