// The command line: tandem serve | chat | bench | key | version.

#include <cstdio>
#include <string>
#include <vector>

#include "services/server/api_keys.h"
#include "tools/tandem/bench.h"
#include "tools/tandem/chat.h"
#include "tools/tandem/serve.h"

namespace {

constexpr char kUsage[] =
    "usage: tandem COMMAND [flags]\n"
    "\n"
    "  serve DIR   serve a model on this machine: a router and its workers\n"
    "  chat        talk to a server in the terminal\n"
    "  bench       load a server and report latency, throughput and goodput\n"
    "  key NAME    draw a key for a client, and its line for --api-key-file\n"
    "  version     print the version\n"
    "\n"
    "tandem COMMAND --help lists a command's flags.\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  if (command == "serve") return tandem::ServeMain(arguments);
  if (command == "chat") return tandem::ChatMain(arguments);
  if (command == "bench") return tandem::BenchMain(arguments);
  const bool asks_help = !arguments.empty() && arguments[0] == "--help";
  if (command == "key" && arguments.size() == 1 && !asks_help) {
    const std::string& name = arguments[0];
    if (name.empty() || name[0] == '-' || name.find_first_of(" \t\r\n#") != std::string::npos) {
      std::fprintf(stderr,
                   "tandem key: \"%s\" is no name: want one word that does not begin with '-'\n",
                   name.c_str());
      return 2;
    }
    const std::string key = tandem::MakeApiKey();
    std::printf("key:  %s\nline: %s\n", key.c_str(), tandem::ApiKeyLine(name, key).c_str());
    return 0;
  }
  if (command == "version" || command == "--version") {
    std::printf("tandem %s\n", TANDEM_VERSION);
    return 0;
  }
  const bool help = command == "help" || command == "--help" || (command == "key" && asks_help);
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}
