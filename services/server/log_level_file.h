// The log's level, followed in a file while the process runs: an operator turns debug lines on
// without a restart.

#ifndef TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_
#define TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_

#include <memory>
#include <string>

#include "runtime/base/log.h"
#include "services/server/followed_files.h"

namespace tandem {

// At each change of the YAML file at `path` the level is that of its line "log-level: LEVEL",
// whatever else is in there, and `otherwise` where there is no such line. A file that cannot be
// understood changes nothing, which the log says.
std::unique_ptr<FollowedFiles> LogLevelFile(std::string path, LogLevel otherwise);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_
