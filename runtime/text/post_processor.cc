#include "rondo/runtime/text/post_processor.h"

#include <algorithm>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/text/json_fields.h"

namespace rondo::text {
namespace {

void resize(Encoding& encoding, size_t n) {
  encoding.ids.resize(n);
  encoding.type_ids.resize(n);
  encoding.offsets.resize(n);
  encoding.word_ids.resize(n);
  encoding.sequence_ids.resize(n);
  encoding.attention_mask.resize(n);
  encoding.special_tokens_mask.resize(n);
}

// Appends a token that is not from a text.
void push(Encoding& out, int32_t id, int32_t type_id, bool attended) {
  out.ids.push_back(id);
  out.type_ids.push_back(type_id);
  out.offsets.push_back({});
  out.word_ids.push_back(-1);
  out.sequence_ids.push_back(-1);
  out.attention_mask.push_back(attended ? 1 : 0);
  out.special_tokens_mask.push_back(1);
}

template <class T> void append(std::vector<T>& out, const std::vector<T>& in) {
  out.insert(out.end(), in.begin(), in.end());
}

void append(Encoding& out, const Encoding& in, int32_t type_id, int32_t sequence) {
  append(out.ids, in.ids);
  out.type_ids.insert(out.type_ids.end(), in.size(), type_id);
  append(out.offsets, in.offsets);
  append(out.word_ids, in.word_ids);
  out.sequence_ids.insert(out.sequence_ids.end(), in.size(), sequence);
  append(out.attention_mask, in.attention_mask);
  append(out.special_tokens_mask, in.special_tokens_mask);
}

void cut(Encoding& encoding, int64_t length, Side side) {
  const auto n = static_cast<int64_t>(encoding.size());
  if (length >= n) return;
  if (side == Side::kLeft) {
    const auto drop = [&](auto& values) { values.erase(values.begin(), values.begin() + (n - length)); };
    drop(encoding.ids), drop(encoding.type_ids), drop(encoding.offsets), drop(encoding.word_ids);
    drop(encoding.sequence_ids), drop(encoding.attention_mask), drop(encoding.special_tokens_mask);
  }
  resize(encoding, static_cast<size_t>(length));
}

// Reads a token and its id: ["[CLS]", 101].
std::pair<std::string, int32_t> read_named_id(io::JsonReader& json, int64_t vocab_size) {
  std::pair<std::string, int32_t> out;
  int i = 0;
  json.array([&] {
    if (i == 0) out.first = json.string();
    else if (i == 1) out.second = read_int32(json, "a token id");
    else json.fail("expected a token and its id");
    ++i;
  });
  if (i != 2) json.fail("expected a token and its id");
  if (out.second >= vocab_size)
    json.fail(absl::StrCat("post_processor: token id ", out.second, " is not in the vocabulary"));
  return out;
}

// A template piece before its special token is looked up.
struct NamedPiece {
  TemplatePiece piece;
  std::string special;
};

std::vector<NamedPiece> read_template(io::JsonReader& json, const std::string& where) {
  std::vector<NamedPiece> out;
  json.array([&] {
    NamedPiece& now = out.emplace_back();
    bool known = false;
    read_fields(json, where, [&](const std::string& kind) {
      if (known || (kind != "Sequence" && kind != "SpecialToken")) return false;
      known = true;
      read_fields(json, where, [&](const std::string& key) {
        if (key == "type_id") {
          now.piece.type_id = read_int32(json, key);
        } else if (key == "id") {
          const std::string id = json.string();
          if (kind == "SpecialToken") now.special = id;
          else if (id == "A" || id == "B") now.piece.sequence = id == "B";
          else json.fail(where + ": no sequence is called " + io::shown(id));
        } else {
          return false;
        }
        return true;
      });
      return true;
    });
    if (now.piece.sequence < 0 && now.special.empty())
      json.fail(where + ": a piece is neither a Sequence nor a SpecialToken");
  });
  return out;
}

void read_template_processing(io::JsonReader& json, PostProcessor& out, const std::string& where, int64_t vocab_size) {
  std::optional<std::vector<NamedPiece>> single, pair;
  std::vector<std::pair<std::string, std::vector<int32_t>>> specials;
  read_fields(json, where, [&](const std::string& key) {
    if (key == "type") {
      json.skip();
    } else if (key == "single") {
      single = read_template(json, where);
    } else if (key == "pair") {
      pair = read_template(json, where);
    } else if (key == "special_tokens") {
      json.object([&](std::string& name) {
        std::vector<int32_t> ids;
        read_fields(json, where, [&](const std::string& field) {
          if (field == "id" || field == "tokens") json.skip();  // names; only the ids are used
          else if (field == "ids")
            json.array([&] {
              ids.push_back(read_int32(json, "a token id"));
              if (ids.back() >= vocab_size)
                json.fail(absl::StrCat(where, ": token id ", ids.back(), " is not in the vocabulary"));
            });
          else return false;
          return true;
        });
        specials.emplace_back(std::move(name), std::move(ids));
      });
    } else {
      return false;
    }
    return true;
  });
  if (!single || !pair) json.fail(where + ": needs single and pair");
  const auto resolve = [&](std::vector<NamedPiece>& pieces, int texts) {
    Template resolved;
    int seen[2] = {0, 0};
    for (NamedPiece& named : pieces) {
      if (named.piece.sequence < 0) {
        const auto found = std::find_if(specials.begin(), specials.end(),
                                        [&](const auto& special) { return special.first == named.special; });
        if (found == specials.end()) json.fail(where + ": special token " + io::shown(named.special) + " has no ids");
        named.piece.ids = found->second;
      } else {
        ++seen[named.piece.sequence];
      }
      resolved.push_back(std::move(named.piece));
    }
    if (seen[0] != 1 || seen[1] != texts - 1) json.fail(where + ": a template has not each text once");
    return resolved;
  };
  out.single = resolve(*single, 1);
  out.pair = resolve(*pair, 2);
}

void read_step(io::JsonReader& json, PostProcessor& out, int64_t vocab_size, int depth) {
  const std::string type = peek_type(json, "post_processor");
  const std::string where = "post_processor " + io::shown(type);
  if (depth == kMaxNesting) json.fail("post_processor: Sequences nest too deeply");
  if (type != "Sequence" && out.single) json.fail(where + " behind a template is not supported");
  if (type == "Sequence") {
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") return json.skip(), true;
      if (key != "processors") return false;
      json.array([&] { read_step(json, out, vocab_size, depth + 1); });
      return true;
    });
  } else if (type == "ByteLevel") {
    bool trims = true;
    if (out.trim_offsets) json.fail("post_processor: two ByteLevel steps are not supported");
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "add_prefix_space") out.add_prefix_space = json.boolean();
      else if (key == "trim_offsets") trims = json.boolean();
      else if (key == "use_regex") json.boolean();  // only the pre-tokenizer uses it
      else return false;
      return true;
    });
    out.trim_offsets = trims;
  } else if (type == "TemplateProcessing") {
    read_template_processing(json, out, where, vocab_size);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const bool roberta = type == "RobertaProcessing";
    std::optional<int32_t> cls, sep;
    bool trims = roberta, prefix = true;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "sep") sep = read_named_id(json, vocab_size).second;
      else if (key == "cls") cls = read_named_id(json, vocab_size).second;
      else if (roberta && key == "trim_offsets") trims = json.boolean();
      else if (roberta && key == "add_prefix_space") prefix = json.boolean();
      else return false;
      return true;
    });
    if (!cls || !sep) json.fail(where + ": needs cls and sep");
    set_bert_template(out, *cls, *sep);
    if (roberta) {
      if (out.trim_offsets && trims) json.fail("post_processor: offsets are trimmed twice, which is not supported");
      out.trim_offsets |= trims;
      out.add_prefix_space = prefix;
      make_roberta_template(out);
    }
  } else {
    json.fail(where + " is not supported");
  }
}

}  // namespace

void set_bert_template(PostProcessor& out, int32_t cls, int32_t sep) {
  out.single = Template{{.ids = {cls}}, {.sequence = 0}, {.ids = {sep}}};
  out.pair = Template{
      {.ids = {cls}}, {.sequence = 0}, {.ids = {sep}}, {.sequence = 1, .type_id = 1}, {.ids = {sep}, .type_id = 1}};
}

void make_roberta_template(PostProcessor& out) {
  const TemplatePiece sep = out.pair->back();
  out.pair->insert(out.pair->begin() + 2, sep);
  for (TemplatePiece& piece : *out.pair) piece.type_id = 0;
}

PostProcessor read_post_processor(io::JsonReader& json, int64_t vocab_size) {
  PostProcessor out;
  if (!read_null(json)) read_step(json, out, vocab_size, 0);
  return out;
}

int64_t PostProcessor::added_tokens(bool is_pair) const {
  const std::optional<Template>& used = is_pair ? pair : single;
  int64_t count = 0;
  if (used)
    for (const TemplatePiece& piece : *used) count += static_cast<int64_t>(piece.ids.size());
  return count;
}

Encoding PostProcessor::join(std::vector<Encoding> texts, bool add_special_tokens) const {
  const std::optional<Template>& used = texts.size() > 1 ? pair : single;
  if (!used && texts.size() == 1) return std::move(texts[0]);
  Encoding out;
  if (!used) {
    for (size_t i = 0; i < texts.size(); ++i) append(out, texts[i], static_cast<int32_t>(i), static_cast<int32_t>(i));
    return out;
  }
  for (const TemplatePiece& piece : *used) {
    if (piece.sequence >= 0) append(out, texts[static_cast<size_t>(piece.sequence)], piece.type_id, piece.sequence);
    else if (add_special_tokens)
      for (const int32_t id : piece.ids) push(out, id, piece.type_id, true);
  }
  return out;
}

std::optional<Truncation> read_truncation(io::JsonReader& json) {
  if (read_null(json)) return std::nullopt;
  Truncation out;
  read_fields(json, "truncation", [&](const std::string& key) {
    if (key == "max_length") {
      out.max_length = read_int32(json, key);
    } else if (key == "stride") {
      json.unsigned_integer();  // not used: the overlap between parts that are cut off, which Rondo does not return
    } else if (key == "direction") {
      const std::string name = json.string();
      if (name != "Left" && name != "Right")
        json.fail("truncation: direction " + io::shown(name) + " is not supported");
      out.side = name == "Left" ? Side::kLeft : Side::kRight;
    } else if (key == "strategy") {
      const std::string name = json.string();
      if (name == "LongestFirst") out.strategy = Truncation::kLongestFirst;
      else if (name == "OnlyFirst") out.strategy = Truncation::kOnlyFirst;
      else if (name == "OnlySecond") out.strategy = Truncation::kOnlySecond;
      else json.fail("truncation: strategy " + io::shown(name) + " is not supported");
    } else {
      return false;
    }
    return true;
  });
  return out;
}

std::optional<Padding> read_padding(io::JsonReader& json) {
  if (read_null(json)) return std::nullopt;
  Padding out;
  read_fields(json, "padding", [&](const std::string& key) {
    if (key == "strategy") {
      if (json.peek() == '{') {
        read_fields(json, "padding", [&](const std::string& name) {
          if (name != "Fixed") return false;
          out.strategy = Padding::kMaxLength;
          out.max_length = read_int32(json, name);
          return true;
        });
      } else if (const std::string name = json.string(); name != "BatchLongest") {
        json.fail("padding: strategy " + io::shown(name) + " is not supported");
      }
    } else if (key == "direction") {
      const std::string name = json.string();
      if (name != "Left" && name != "Right") json.fail("padding: direction " + io::shown(name) + " is not supported");
      out.side = name == "Left" ? Side::kLeft : Side::kRight;
    } else if (key == "pad_to_multiple_of") {
      if (!read_null(json)) out.pad_to_multiple_of = read_int32(json, key);
    } else if (key == "pad_id") {
      out.pad_id = read_int32(json, key);
    } else if (key == "pad_type_id") {
      out.pad_type_id = read_int32(json, key);
    } else if (key == "pad_token") {
      json.string();  // only the id is used
    } else {
      return false;
    }
    return true;
  });
  return out;
}

void truncate(std::vector<Encoding>& texts, const Truncation& truncation, int64_t added_tokens) {
  if (truncation.strategy == Truncation::kDoNotTruncate) return;
  if (truncation.max_length < 0) throw Error("truncation: max_length is negative");
  if (truncation.max_length > 0 && truncation.max_length < added_tokens)
    throw Error(absl::StrCat("truncation: max_length ", truncation.max_length, " leaves no room for the ", added_tokens,
                             " special tokens"));
  const int64_t most = std::max<int64_t>(truncation.max_length - added_tokens, 0);
  const auto length = [&](size_t i) { return i < texts.size() ? static_cast<int64_t>(texts[i].size()) : 0; };
  const int64_t total = length(0) + length(1);
  if (total <= most) return;
  if (most == 0) {
    for (Encoding& text : texts) cut(text, 0, truncation.side);
    return;
  }
  if (truncation.strategy == Truncation::kLongestFirst) {
    if (texts.size() == 1) return cut(texts[0], most, truncation.side);
    // Cuts only the longer text, unless both are longer than half of `most`.
    int64_t shorter = std::min(length(0), length(1));
    int64_t longer = shorter > most ? shorter : std::max(shorter, most - shorter);
    if (shorter + longer > most) {
      shorter = most / 2;
      longer = shorter + most % 2;
    }
    const bool first_is_longer = length(0) > length(1);
    cut(texts[0], first_is_longer ? longer : shorter, truncation.side);
    cut(texts[1], first_is_longer ? shorter : longer, truncation.side);
    return;
  }
  const size_t target = truncation.strategy == Truncation::kOnlySecond ? 1 : 0;
  if (target >= texts.size()) throw Error("truncation: kOnlySecond needs a second text");
  const int64_t left = length(target) - (total - most);
  if (left <= 0)
    throw Error(absl::StrCat("truncation: the ", target == 0 ? "first" : "second", " text has ", length(target),
                             " tokens, but ", total - most, " must go; use kLongestFirst"));
  cut(texts[target], left, truncation.side);
}

void pad(std::span<Encoding> batch, const Padding& padding) {
  if (padding.strategy == Padding::kDoNotPad) return;
  // A limit, so that a damaged tokenizer.json cannot use up the memory.
  constexpr int64_t kMostTokens = 1 << 24;
  for (const int64_t length : {padding.max_length, padding.pad_to_multiple_of})
    if (length < 0 || length > kMostTokens)
      throw Error(absl::StrCat("padding: a length must be from 0 to ", kMostTokens, ", got ", length));
  auto length = static_cast<size_t>(padding.max_length);
  if (padding.strategy == Padding::kLongest) {
    length = 0;
    for (const Encoding& encoding : batch) length = std::max(length, encoding.size());
  }
  if (const auto multiple = static_cast<size_t>(padding.pad_to_multiple_of); multiple > 0)
    length = (length + multiple - 1) / multiple * multiple;
  for (Encoding& encoding : batch) {
    if (encoding.size() >= length) continue;
    Encoding fill;
    while (fill.size() + encoding.size() < length) push(fill, padding.pad_id, padding.pad_type_id, false);
    const bool left = padding.side == Side::kLeft;
    const auto join = [&](auto& values, const auto& more) {
      values.insert(left ? values.begin() : values.end(), more.begin(), more.end());
    };
    join(encoding.ids, fill.ids);
    join(encoding.type_ids, fill.type_ids);
    join(encoding.offsets, fill.offsets);
    join(encoding.word_ids, fill.word_ids);
    join(encoding.sequence_ids, fill.sequence_ids);
    join(encoding.attention_mask, fill.attention_mask);
    join(encoding.special_tokens_mask, fill.special_tokens_mask);
  }
}

}  // namespace rondo::text
