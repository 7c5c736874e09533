// tandem chat: talks to an OpenAI-compatible server and streams its answers to the terminal.

#ifndef TANDEM_TOOLS_TANDEM_CHAT_H_
#define TANDEM_TOOLS_TANDEM_CHAT_H_

#include <string>
#include <vector>

namespace tandem {

// `arguments` follow the subcommand. Returns the process's exit status.
int ChatMain(const std::vector<std::string>& arguments);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_CHAT_H_
