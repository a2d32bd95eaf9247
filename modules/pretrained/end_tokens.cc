#include "rondo/modules/pretrained/end_tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::nn {
namespace {

// Reads the ids in a field of a file, or of an object in it. nullopt: the file or the field is absent, or null.
std::optional<std::vector<int64_t>> read_ids(const std::string& path, std::string_view field,
                                             std::string_view object = {}) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  constexpr uint64_t kLargest = uint64_t{1} << 24;
  const std::string text = io::read_text(path, kLargest);
  io::JsonReader json(path, text);
  std::optional<std::vector<int64_t>> ids;
  const auto read_id = [&] {
    // Some files write -1 where they mean none.
    if (json.peek() == '-') return json.skip();
    const uint64_t id = json.unsigned_integer();
    if (id > INT32_MAX) json.fail(absl::StrCat(std::string(field), " is no id of a token"));
    ids->push_back(static_cast<int64_t>(id));
  };
  const auto read = [&](std::string& key) {
    if (key != field || json.peek() == 'n') return json.skip();
    ids.emplace();
    if (json.peek() == '[') json.array(read_id);
    else read_id();
  };
  json.object([&](std::string& key) {
    if (object.empty()) return read(key);
    if (key != object || json.peek() != '{') return json.skip();
    json.object(read);
  });
  json.finish();
  return ids;
}

}  // namespace

std::vector<int64_t> end_tokens(const std::string& folder, const text::PreTrainedTokenizer* tokenizer) {
  constexpr const char* kField = "eos_token_id";
  std::optional<std::vector<int64_t>> ids = read_ids(folder + "/generation_config.json", kField);
  if (!ids) ids = read_ids(folder + "/config.json", kField);
  if (!ids) ids = read_ids(folder + "/config.json", kField, "decoder");
  std::vector<int64_t> out = ids.value_or(std::vector<int64_t>());
  if (tokenizer != nullptr && tokenizer->eos_token_id() >= 0) out.push_back(tokenizer->eos_token_id());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::optional<int64_t> generation_start(const std::string& folder) {
  const std::optional<std::vector<int64_t>> ids = read_ids(folder + "/generation_config.json",
                                                           "decoder_start_token_id");
  return ids && !ids->empty() ? std::optional(ids->front()) : std::nullopt;
}

}  // namespace rondo::nn
