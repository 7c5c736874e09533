#include "tools/tandem/key.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "runtime/base/flags.h"
#include "runtime/base/status_macros.h"
#include "services/server/api_keys.h"

namespace tandem {
namespace {

absl::Status CheckName(const std::vector<std::string>& names) {
  if (names.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("want one NAME, got ", names.size()));
  }
  const std::string& name = names[0];
  if (!name.empty() && name[0] != '-' && name.find_first_of(" \t\r\n#") == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no name: want one word that does not begin with '-'"));
}

}  // namespace

int KeyMain(const std::vector<std::string>& arguments) {
  FlagSet flags(
      "tandem key NAME",
      "Draws a key for the client NAME and prints two lines:\n"
      "\n"
      "  key:  KEY         for the client, as in Authorization: Bearer KEY, and nowhere else\n"
      "  line: NAME HASH   for the file of --api-key-file, with or without the \"line:\"\n"
      "\n"
      "tandem chat and bench find their key in TANDEM_API_KEY.");
  const auto names = flags.Parse(arguments);
  if (flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const absl::Status usage = names.ok() ? CheckName(*names) : names.status();
  if (!usage.ok()) {
    std::fprintf(stderr, "tandem key: %s\nTry --help.\n", std::string(usage.message()).c_str());
    return 2;
  }
  const std::string key = MakeApiKey();
  std::printf("key:  %s\nline: %s\n", key.c_str(), ApiKeyLine(names->front(), key).c_str());
  if (std::fflush(stdout) == 0) return 0;
  std::perror("tandem key: the key is lost");
  return 1;
}

}  // namespace tandem
