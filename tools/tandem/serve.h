// tandem serve: a router and its workers as separate processes on this machine.
//
// The supervisor only starts, restarts and ends processes; it speaks to none of them. Ports are
// reserved by sockets that it binds and never listens on (SO_REUSEPORT), so a worker that is
// restarted finds its port free and nobody else can take it.

#ifndef TANDEM_TOOLS_TANDEM_SERVE_H_
#define TANDEM_TOOLS_TANDEM_SERVE_H_

#include <string>
#include <vector>

namespace tandem {

// `arguments` follow the subcommand. Returns the process's exit status.
int ServeMain(const std::vector<std::string>& arguments);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_SERVE_H_
