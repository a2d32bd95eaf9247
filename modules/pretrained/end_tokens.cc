#include "rondo/modules/pretrained/end_tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::nn {
namespace {

// Nullopt: the file or the field is not there, or the field is null.
std::optional<std::vector<int64_t>> read_ids(const std::string& path) {
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
    if (id > INT32_MAX) json.fail("eos_token_id is no id of a token");
    ids->push_back(static_cast<int64_t>(id));
  };
  json.object([&](std::string& key) {
    if (key != "eos_token_id" || json.peek() == 'n') return json.skip();
    ids.emplace();
    if (json.peek() == '[') json.array(read_id);
    else read_id();
  });
  json.finish();
  return ids;
}

}  // namespace

std::vector<int64_t> end_tokens(const std::string& folder, const text::PreTrainedTokenizer* tokenizer) {
  std::optional<std::vector<int64_t>> ids = read_ids(folder + "/generation_config.json");
  if (!ids) ids = read_ids(folder + "/config.json");
  std::vector<int64_t> out = ids.value_or(std::vector<int64_t>());
  if (tokenizer != nullptr && tokenizer->eos_token_id() >= 0) out.push_back(tokenizer->eos_token_id());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace rondo::nn
