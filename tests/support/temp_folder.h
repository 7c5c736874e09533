// A folder of files that is gone after the test.

#ifndef TANDEM_TESTS_SUPPORT_TEMP_FOLDER_H_
#define TANDEM_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/base/check.h"

namespace tandem {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem_test_XXXXXX").string();
    TANDEM_CHECK(::mkdtemp(name.data()) != nullptr) << name;
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;  // A child of a test that failed may still write there.
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, std::string_view content) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  void CopyFrom(const std::string& folder) const {
    std::filesystem::copy(folder, path_, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

// A safetensors file with this header and `data_bytes` of data.
inline std::string SafetensorsText(std::string_view header, size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i * 37);
  return text;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_TEMP_FOLDER_H_
