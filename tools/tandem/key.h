// tandem key: draws a key for a client, and its line for --api-key-file.

#ifndef TANDEM_TOOLS_TANDEM_KEY_H_
#define TANDEM_TOOLS_TANDEM_KEY_H_

#include <string>
#include <vector>

namespace tandem {

// `arguments` follow the subcommand. Returns the process's exit status.
int KeyMain(const std::vector<std::string>& arguments);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_KEY_H_
