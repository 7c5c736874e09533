// One child process of the supervisor.

#ifndef TANDEM_TOOLS_TANDEM_CHILD_PROCESS_H_
#define TANDEM_TOOLS_TANDEM_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// Not thread-safe. The caller reaps with waitpid and reports here.
class ChildProcess {
 public:
  ChildProcess(std::string name, std::vector<std::string> command)
      : name_(std::move(name)), command_(std::move(command)) {}

  // Starts the program, `flags` behind its command; it gets SIGTERM if this process dies.
  // Unavailable if fork fails; a program that cannot be executed ends with status 127.
  absl::Status Start(const std::vector<std::string>& flags = {});
  void Signal(int signal) const;  // Nothing if it does not run.
  // The process was reaped: remembers how long it had lived.
  void OnExited(int64_t now_us);

  // When to start it again: at once the first time, then after 0.1 s doubling to 1 s while it keeps
  // dying within 3 s of its start.
  int64_t restart_at_us() const { return restart_at_us_; }

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }  // 0: not running.
  bool running() const { return pid_ != 0; }
  int num_lives() const { return num_lives_; }  // Begun so far.

 private:
  const std::string name_;
  const std::vector<std::string> command_;
  pid_t pid_ = 0;
  int64_t started_us_ = 0;
  int64_t restart_at_us_ = 0;
  int64_t backoff_us_ = 0;
  int num_lives_ = 0;
};

// "exit status 3" or "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_CHILD_PROCESS_H_
