// What this program was built from, and with of what not every build has.

#ifndef TANDEM_SERVICES_SERVER_BUILD_INFO_H_
#define TANDEM_SERVICES_SERVER_BUILD_INFO_H_

#include <string>
#include <string_view>

namespace tandem {

// Versions; empty: without it, and then --device cuda, or --transport nccl, is refused.
struct BuildInfo {
  // That of the checkout that the program was built in, with "-dirty" behind it if files had
  // changed. Empty: that was none, or this is a test.
  std::string commit;
  std::string cuda;  // And the GPUs compiled for: "13.0 for sm_80 sm_90a compute_90".
  std::string nccl;
  std::string ucx;
  std::string ucx_loaded;  // Empty: the same, or this program has none.
};
// The UCX that is loaded. Empty: none is.
std::string LoadedUcx();
const BuildInfo& ThisBuild();

// For --version: "tandem-worker 1.2.3 (commit 0123456789ab, no CUDA, no NCCL, UCX 1.13.1)".
std::string VersionLine(std::string_view program, const BuildInfo& build = ThisBuild());

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_BUILD_INFO_H_
