#include "tools/tandem/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"

namespace tandem {
namespace {

constexpr int64_t kFirstBackoffUs = 100'000;
constexpr int64_t kMaxBackoffUs = 1'000'000;
constexpr int64_t kLivedLongUs = 3'000'000;

}  // namespace

absl::Status ChildProcess::Start(const std::vector<std::string>& flags) {
  std::vector<char*> arguments;
  for (const std::vector<std::string>* part : {&command_, &flags}) {
    for (const std::string& argument : *part) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    return absl::UnavailableError(absl::StrCat("cannot fork for ", name_, ": ", strerror(errno)));
  }
  if (child == 0) {
    // Between fork and exec: only async-signal-safe calls.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);  // The supervisor died before prctl.
    // Ctrl-C reaches the whole foreground group; only the supervisor acts on it, so children get
    // a group of their own.
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(arguments[0], arguments.data());
    static constexpr char kMessage[] =
        "tandem serve: cannot execute the worker or router program\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    _exit(127);
  }
  pid_ = child;
  ++num_lives_;
  started_us_ = SteadyClock().NowUs();
  return absl::OkStatus();
}

void ChildProcess::Signal(int signal) const {
  if (pid_ != 0) kill(pid_, signal);
}

void ChildProcess::OnExited(int64_t now_us) {
  pid_ = 0;
  if (now_us - started_us_ >= kLivedLongUs) backoff_us_ = 0;
  restart_at_us_ = now_us + backoff_us_;
  backoff_us_ = std::min(kMaxBackoffUs, std::max(kFirstBackoffUs, 2 * backoff_us_));
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrFormat("signal %d (%s)", signal, strsignal(signal));
  }
  return absl::StrFormat("exit status %d", WEXITSTATUS(wait_status));
}

}  // namespace tandem
