// The command line: tandem serve | chat | bench | key | version.

#include <cstdio>
#include <string>
#include <vector>

#include "services/server/build_info.h"
#include "tools/tandem/bench.h"
#include "tools/tandem/chat.h"
#include "tools/tandem/key.h"
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
  if (command == "key") return tandem::KeyMain(arguments);
  if (command == "version" || command == "--version") {
    std::puts(tandem::VersionLine("tandem").c_str());
    return 0;
  }
  const bool help = command == "help" || command == "--help";
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}
