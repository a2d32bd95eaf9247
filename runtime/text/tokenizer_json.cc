#include "rondo/runtime/text/tokenizer_json.h"

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/text/json_fields.h"

namespace rondo::text {
namespace {

std::vector<AddedToken> read_added_tokens(io::JsonReader& json) {
  std::vector<AddedToken> out;
  if (read_null(json)) return out;
  json.array([&] {
    AddedToken token;
    bool has_id = false;
    read_fields(json, "added_tokens", [&](const std::string& key) {
      if (key == "id") token.id = read_int32(json, "an added token's id"), has_id = true;
      else if (key == "content") token.content = json.string();
      else if (key == "single_word") token.single_word = json.boolean();
      else if (key == "lstrip") token.lstrip = json.boolean();
      else if (key == "rstrip") token.rstrip = json.boolean();
      else if (key == "normalized") token.normalized = json.boolean();
      else if (key == "special") token.special = json.boolean();
      else return false;
      return true;
    });
    if (!has_id || token.content.empty()) json.fail("added_tokens: a token needs an id and its content");
    out.push_back(std::move(token));
  });
  return out;
}

}  // namespace

std::unique_ptr<TokenizerParts> read_tokenizer_json(std::string_view text, const std::string& path,
                                                    const Amendments& amendments) {
  // Keeps the position of each part, because the parts are not read in the order of the file.
  struct Part {
    const char* name;
    std::optional<io::JsonReader> at{};
  };
  Part added{"added_tokens"}, normalizer{"normalizer"}, pre{"pre_tokenizer"}, post{"post_processor"};
  Part decoder{"decoder"}, model{"model"}, truncation{"truncation"}, padding{"padding"};
  io::JsonReader json(path, text);
  read_fields(json, "tokenizer", [&](const std::string& key) {
    if (key == "version") {
      if (json.peek() != '"' || json.string() != "1.0") json.fail("the version is not \"1.0\"");
      return true;
    }
    for (Part* part : {&added, &normalizer, &pre, &post, &decoder, &model, &truncation, &padding}) {
      if (key != part->name) continue;
      part->at.emplace(json);
      json.skip();
      return true;
    }
    return false;
  });
  json.finish();
  if (!model.at) throw FileError(path, "not a tokenizer: it has no model");

  const auto amend = [&](Part& part, const std::string& with) {
    if (!with.empty()) part.at.emplace(path, with);
  };
  amend(normalizer, amendments.normalizer);
  amend(pre, amendments.pre_tokenizer);
  amend(decoder, amendments.decoder);
  auto out = std::make_unique<TokenizerParts>();
  if (normalizer.at) out->normalizers = read_normalizers(*normalizer.at);
  if (pre.at) out->pre_tokenizers = read_pre_tokenizers(*pre.at);
  out->model = read_model(*model.at, text.size(), out->pre_tokenizers.byte_level, path);
  if (added.at)
    for (AddedToken& token : read_added_tokens(*added.at)) {
      const std::string name = io::shown(token.content);
      const int32_t id = token.id;
      for (const AddedToken& other : amendments.tokens)
        if (other.id >= 0 && other.content == token.content) token = other, token.id = id;
      if (!out->add_token(std::move(token)))
        throw FileError(path, absl::StrCat("added token ", name, ": its id ", id,
                                           " is neither the vocabulary's nor the next free one"));
    }
  for (AddedToken token : amendments.tokens) {
    if (token.content.empty() || out->is_added(token.content)) continue;
    token.id = -1;
    if (!out->add_token(std::move(token))) throw FileError(path, "it has no room for another added token");
  }
  out->finish();
  if (post.at) out->post_processor = read_post_processor(*post.at, out->size());
  if (decoder.at) out->decoders = read_decoders(*decoder.at);
  if (truncation.at) out->truncation = read_truncation(*truncation.at);
  if (padding.at) out->padding = read_padding(*padding.at);
  return out;
}

}  // namespace rondo::text
