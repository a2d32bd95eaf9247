// Gpt2Tokenizer. Kept apart from tokenizer.cc because of PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/io/tokenizer.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::io {
namespace {

// GPT-2's pattern:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with \s spelled out as Unicode's White_Space, which is what Python's `regex` means by it; PCRE2's own \s is ASCII, or
// with UCP also U+180E.
#define RONDO_SPACE R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr std::string_view kPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" RONDO_SPACE R"(\p{L}\p{N}]+)"
                                      R"(|[)" RONDO_SPACE R"(]+(?![^)" RONDO_SPACE R"(])|[)" RONDO_SPACE R"(]+)";
#undef RONDO_SPACE

// The vocabulary files spell each byte as one printable character: printable Latin-1 as itself, the other 68 bytes as
// U+0100 and up, in byte order.
std::array<uint32_t, 256> byte_spelling() {
  std::array<uint32_t, 256> spelling{};
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    spelling[b] = printable ? b : next++;
  }
  return spelling;
}

// Undoes the spelling; false if a character stands for no byte.
bool to_bytes(std::string_view spelled, std::string& bytes) {
  static const std::vector<int> table = [] {
    std::vector<int> back(0x144, -1);
    const auto spelling = byte_spelling();
    for (int b = 0; b < 256; ++b) back[spelling[static_cast<size_t>(b)]] = b;
    return back;
  }();
  bytes.clear();
  for (size_t at = 0; at < spelled.size();) {
    const CodePoint point = decode_utf8(spelled, at);
    if (point.length == 0 || point.value >= table.size() || table[point.value] < 0) return false;
    bytes.push_back(static_cast<char>(table[point.value]));
    at += static_cast<size_t>(point.length);
  }
  return true;
}

// Words already merged, direct-mapped: a new word overwrites the old one in its slot, so memory is bounded.
class WordCache {
 public:
  static constexpr size_t kLongestWord = 64;
  struct Slot {
    std::string word;
    std::vector<int32_t> ids;
  };
  Slot& slot(std::string_view word) {
    if (slots_.empty()) slots_.resize(kSlots);
    return slots_[std::hash<std::string_view>{}(word) % kSlots];
  }

 private:
  static constexpr size_t kSlots = 1 << 14;
  std::vector<Slot> slots_;
};

struct Merge {
  int32_t rank = 0;
  int32_t id = 0;  // of the merged token
};

}  // namespace

struct Gpt2Tokenizer::Impl {
  std::vector<std::string> tokens;  // id -> bytes
  std::array<int32_t, 256> byte_ids{};
  absl::flat_hash_map<uint64_t, Merge> merges;  // (left id << 32 | right id)
  int32_t end_of_text = -1;
  pcre2_code* pattern = nullptr;
  // One caller at a time uses the shared cache; others make their own for the call.
  std::mutex cache_mutex;
  WordCache cache;

  Impl() {
    int error = 0;
    PCRE2_SIZE at = 0;
    pattern = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(), PCRE2_UTF, &error, &at,
                            nullptr);
    invariant(pattern != nullptr, "GPT-2's pattern does not compile");
    pcre2_jit_compile(pattern, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets
  }
  ~Impl() { pcre2_code_free(pattern); }

  void load_tokens(const std::string& path);
  void load_merges(const std::string& path);
  void encode_text(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const;
  void merge_word(std::string_view word, std::vector<int32_t>& out) const;
};

void Gpt2Tokenizer::Impl::load_tokens(const std::string& path) {
  const auto file = MappedFile::open(path);
  JsonReader json(path, file->text());
  std::vector<bool> seen;
  json.object([&](std::string& spelled) {
    const uint64_t id = json.unsigned_integer();
    // A file of n bytes cannot define n ids; the bound keeps a hostile id from allocating memory.
    if (id >= file->size()) json.fail(absl::StrCat("token id ", id, " is larger than the vocabulary can be"));
    if (id >= tokens.size()) {
      tokens.resize(id + 1);
      seen.resize(id + 1);
    }
    if (seen[id]) json.fail(absl::StrCat("two tokens have the id ", id));
    seen[id] = true;
    if (spelled == kEndOfText) {
      end_of_text = static_cast<int32_t>(id);
      tokens[id] = std::move(spelled);
    } else if (!to_bytes(spelled, tokens[id])) {
      json.fail("token " + shown(spelled) + " is not spelled in GPT-2's byte alphabet");
    }
  });
  json.finish();
  for (size_t id = 0; id < seen.size(); ++id)
    if (!seen[id]) throw FileError(path, absl::StrCat("no token has the id ", id));
  byte_ids.fill(-1);
  for (size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].size() == 1) byte_ids[static_cast<uint8_t>(tokens[id][0])] = static_cast<int32_t>(id);
  for (int b = 0; b < 256; ++b)
    if (byte_ids[static_cast<size_t>(b)] < 0) throw FileError(path, absl::StrCat("no token is the byte ", b));
}

void Gpt2Tokenizer::Impl::load_merges(const std::string& path) {
  absl::flat_hash_map<std::string, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id)
    if (static_cast<int32_t>(id) != end_of_text) ids.emplace(tokens[id], static_cast<int32_t>(id));
  const auto file = MappedFile::open(path);
  std::string_view text = file->text();
  std::string left, right;
  int32_t rank = 0;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const auto fail = [&](const char* what) { throw FileError(path, absl::StrCat("line ", line_number, ": ", what)); };
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) fail("expected two tokens and one space");
    if (!to_bytes(line.substr(0, space), left) || !to_bytes(line.substr(space + 1), right))
      fail("not spelled in GPT-2's byte alphabet");
    const auto a = ids.find(left), b = ids.find(right), merged = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || merged == ids.end()) fail("a token is not in the vocabulary");
    const uint64_t pair = static_cast<uint64_t>(a->second) << 32 | static_cast<uint32_t>(b->second);
    if (!merges.try_emplace(pair, Merge{rank++, merged->second}).second) fail("this merge appears twice");
  }
}

// Repeatedly merges the adjacent pair of lowest rank, the leftmost of equals. A queue of candidate pairs over a linked
// list of symbols makes it O(n log n); a candidate is stale if either symbol has changed since.
void Gpt2Tokenizer::Impl::merge_word(std::string_view word, std::vector<int32_t>& out) const {
  struct Symbol {
    int32_t id, previous, next;  // id -1: merged into the one before
  };
  struct Candidate {
    int32_t rank, at, left, right, merged;
    // For a max-heap that pops the lowest rank, then the leftmost.
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  std::vector<Symbol> symbols(word.size());
  std::vector<Candidate> heap;
  const auto n = static_cast<int32_t>(word.size());
  const auto consider = [&](int32_t at) {
    const int32_t next = symbols[static_cast<size_t>(at)].next;
    if (next >= n) return false;
    const int32_t left = symbols[static_cast<size_t>(at)].id, right = symbols[static_cast<size_t>(next)].id;
    const auto found = merges.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    if (found == merges.end()) return false;
    heap.push_back({found->second.rank, at, left, right, found->second.id});
    return true;
  };
  for (int32_t i = 0; i < n; ++i)
    symbols[static_cast<size_t>(i)] = {byte_ids[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1, i + 1};
  for (int32_t i = 0; i < n; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.id != best.left || left.next >= n || symbols[static_cast<size_t>(left.next)].id != best.right) continue;
    symbols[static_cast<size_t>(left.next)].id = -1;
    left.id = best.merged;
    left.next = symbols[static_cast<size_t>(left.next)].next;
    if (left.next < n) symbols[static_cast<size_t>(left.next)].previous = best.at;
    if (consider(best.at)) std::push_heap(heap.begin(), heap.end());
    if (left.previous >= 0 && consider(left.previous)) std::push_heap(heap.begin(), heap.end());
  }
  for (int32_t i = 0; i < n; i = symbols[static_cast<size_t>(i)].next)
    out.push_back(symbols[static_cast<size_t>(i)].id);
}

void Gpt2Tokenizer::Impl::encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const {
  if (word.size() > WordCache::kLongestWord) return merge_word(word, out);
  WordCache::Slot& slot = cache.slot(word);
  if (slot.word != word) {
    slot.ids.clear();
    slot.word.clear();  // if merging throws, the slot stands for no word
    merge_word(word, slot.ids);
    slot.word = word;
  }
  out.insert(out.end(), slot.ids.begin(), slot.ids.end());
}

void Gpt2Tokenizer::Impl::encode_text(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const {
  struct MatchData {
    pcre2_match_data* data;
    ~MatchData() { pcre2_match_data_free(data); }
  } match{pcre2_match_data_create(1, nullptr)};
  if (match.data == nullptr) throw std::bad_alloc();
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.data);
  while (!text.empty()) {
    // The pattern runs on valid stretches, checked once here and not again at every match.
    const std::string_view valid = text.substr(0, valid_utf8_prefix(text));
    for (size_t at = 0; at < valid.size();) {
      const int found = pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(valid.data()), valid.size(), at,
                                    PCRE2_NO_UTF_CHECK, match.data, nullptr);
      // Every code point matches some branch; only a limit of PCRE2 can end up here, and then the rest is one word.
      const size_t begin = found > 0 ? range[0] : at, end = found > 0 ? range[1] : valid.size();
      if (begin > at) encode_word(valid.substr(at, begin - at), cache, out);
      encode_word(valid.substr(begin, end - begin), cache, out);
      at = end;
    }
    text.remove_prefix(valid.size());
    size_t invalid = 0;
    while (invalid < text.size() && decode_utf8(text, invalid).length == 0) ++invalid;
    if (invalid > 0) encode_word(text.substr(0, invalid), cache, out);
    text.remove_prefix(invalid);
  }
}

Gpt2Tokenizer::Gpt2Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gpt2Tokenizer::Gpt2Tokenizer(Gpt2Tokenizer&&) noexcept = default;
Gpt2Tokenizer::~Gpt2Tokenizer() = default;

Gpt2Tokenizer::Impl& Gpt2Tokenizer::impl() const {
  if (impl_ == nullptr) throw Error("Gpt2Tokenizer: the tokenizer was moved to another object");
  return *impl_;
}

Gpt2Tokenizer Gpt2Tokenizer::load(const std::string& encoder_path, const std::string& merges_path) {
  auto impl = std::make_unique<Impl>();
  impl->load_tokens(encoder_path);
  impl->load_merges(merges_path);
  return Gpt2Tokenizer(std::move(impl));
}

std::vector<int32_t> Gpt2Tokenizer::encode(std::string_view text) const { return encode(text, false); }

std::vector<int32_t> Gpt2Tokenizer::encode(std::string_view text, bool allow_special) const {
  if (text.size() > INT32_MAX) throw Error("Gpt2Tokenizer: encode at most 2 GB of text at once");
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  WordCache own;
  std::unique_lock lock(impl().cache_mutex, std::try_to_lock);
  WordCache& cache = lock.owns_lock() ? impl().cache : own;
  while (allow_special && impl().end_of_text >= 0) {
    const size_t at = text.find(kEndOfText);
    if (at == text.npos) break;
    impl().encode_text(text.substr(0, at), cache, ids);
    ids.push_back(impl().end_of_text);
    text.remove_prefix(at + kEndOfText.size());
  }
  impl().encode_text(text, cache, ids);
  return ids;
}

std::string Gpt2Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size())
      throw Error(absl::StrCat("decode: token ", id, " is outside the vocabulary of ", vocab_size()));
    text += impl().tokens[static_cast<size_t>(id)];
  }
  return text;
}

int64_t Gpt2Tokenizer::vocab_size() const { return static_cast<int64_t>(impl().tokens.size()); }
int32_t Gpt2Tokenizer::end_of_text() const { return impl().end_of_text; }

}  // namespace rondo::io
