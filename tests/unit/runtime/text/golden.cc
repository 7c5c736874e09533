#include "tests/unit/runtime/text/golden.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/small_file.h"

namespace tandem {
namespace {

std::vector<int32_t> Ids(const boost::json::value& list) {
  std::vector<int32_t> ids;
  for (const boost::json::value& id : list.as_array()) {
    ids.push_back(static_cast<int32_t>(id.as_int64()));
  }
  return ids;
}

std::string Text(const boost::json::value& text) {
  return std::string(text.as_string().data(), text.as_string().size());
}

}  // namespace

std::string TokenizerFolder(const std::string& name) {
  const std::string data = TANDEM_TEST_DATA;
  return name == "demo_model" ? data + "/demo_model" : data + "/text/" + name;
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(TokenizerFolder(name));
  TANDEM_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

boost::json::value LoadJson(const std::string& file) {
  const std::string path = std::string(TANDEM_TEST_DATA) + "/text/" + file;
  const absl::StatusOr<std::string> json = ReadSmallFile(path, size_t{16} << 20);
  TANDEM_CHECK(json.ok()) << json.status().ToString();
  return boost::json::parse(boost::json::string_view(json->data(), json->size()));
}

Golden LoadGolden(const std::string& name) {
  const boost::json::value json = LoadJson(name + "_golden.json");
  Golden golden;
  golden.vocab_size = static_cast<int>(json.at("vocab_size").as_int64());
  for (const boost::json::value& text : json.at("texts").as_array()) {
    golden.texts.push_back({.text = Text(text.at("text")),
                            .ids = Ids(text.at("ids")),
                            .ids_with_special = Ids(text.at("ids_with_special"))});
    golden.decodings.push_back({.ids = Ids(text.at("ids_with_special")),
                                .decoded = Text(text.at("decoded")),
                                .decoded_with_special = Text(text.at("decoded_with_special"))});
  }
  for (const boost::json::value& draw : json.at("draws").as_array()) {
    golden.decodings.push_back({.ids = Ids(draw.at("ids")),
                                .decoded = Text(draw.at("decoded")),
                                .decoded_with_special = Text(draw.at("decoded_with_special"))});
  }
  return golden;
}

int32_t IdOf(const Tokenizer& tokenizer, std::string_view bytes) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.HasToken(id) && tokenizer.TokenBytes(id) == bytes) return id;
  }
  return -1;
}

}  // namespace tandem
