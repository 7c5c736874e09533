#include "services/server/build_info.h"

#include "absl/strings/str_cat.h"

namespace tandem {

const BuildInfo& ThisBuild() {
  static const BuildInfo* const build = new BuildInfo{
      .cuda = TANDEM_BUILT_WITH_CUDA, .nccl = TANDEM_BUILT_WITH_NCCL, .ucx = TANDEM_BUILT_WITH_UCX};
  return *build;
}

std::string VersionLine(std::string_view program, const BuildInfo& build) {
  const auto part = [](const char* name, const std::string& version) {
    return version.empty() ? absl::StrCat("no ", name) : absl::StrCat(name, " ", version);
  };
  return absl::StrCat(std::string(program), " ", TANDEM_VERSION, " (", part("CUDA", build.cuda),
                      ", ", part("NCCL", build.nccl), ", ", part("UCX", build.ucx), ")");
}

}  // namespace tandem
