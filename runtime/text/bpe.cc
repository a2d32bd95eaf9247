// Byte pair encoding.
#include <algorithm>
#include <limits>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/text/model.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {
namespace {

class Bpe : public Model {
 public:
  Bpe(Vocabulary vocabulary, const MergeList& merges, BpeOptions options, const std::string& path);
  bool is_byte_pair() const override { return true; }

 protected:
  void encode_anew(std::string_view word, Scratch& scratch, std::vector<Token>& out) const override;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;  // id of the merged token
  };
  const Merge* find(int32_t left, int32_t right) const {
    const auto found = merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    return found == merges_.end() ? nullptr : &found->second;
  }
  void symbols_of(std::string_view word, Scratch& scratch) const;
  // Both functions merge the symbols in place.
  void merge_short(Scratch& scratch) const;
  void merge_long(std::vector<Token>& symbols) const;
  int32_t unk_id() const;

  BpeOptions options_;
  HashMap<uint64_t, Merge> merges_;  // the merge of each pair, by left id << 32 | right id
  // byte_level: the token of each byte by its place in the word: [is not first][is last][byte]; -1: none.
  std::array<std::array<std::array<int32_t, 256>, 2>, 2> byte_ids_{};
  std::array<int32_t, 256> fallback_ids_{};  // byte_fallback: ids of <0x00> to <0xFF>
};

Bpe::Bpe(Vocabulary vocabulary, const MergeList& merges, BpeOptions options, const std::string& path)
    : Model(std::move(vocabulary)), options_(std::move(options)) {
  if (options_.byte_level && options_.byte_fallback)
    throw FileError(path, "model \"BPE\": byte_fallback behind the pre_tokenizer ByteLevel is not supported");
  if (options_.byte_fallback && !(options_.prefix.empty() && options_.suffix.empty()))
    throw FileError(path, "model \"BPE\": byte_fallback with a prefix or suffix of subwords is not supported");
  merges_.reserve(merges.size());
  std::string merged;
  int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const int32_t a = vocabulary_.id(left), b = vocabulary_.id(right);
    if (a < 0 || b < 0)
      throw FileError(path, formatted("merge %d (%s %s): %s is not in the vocabulary", rank, io::shown(left),
                                      io::shown(right), io::shown(a < 0 ? left : right)));
    merged = left;
    // As in the reference, removes as many bytes as the prefix has, without comparing them.
    merged.append(right, std::min(options_.prefix.size(), right.size()));
    const int32_t id = vocabulary_.id(merged);
    if (id < 0)
      throw FileError(path, formatted("merge %d (%s %s): the merged token %s is not in the vocabulary", rank,
                                      io::shown(left), io::shown(right), io::shown(merged)));
    merges_[static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b)] = {rank++, id};
  }
  for (size_t b = 0; b < 256; ++b) {
    for (const bool inner : {false, true})
      for (const bool last : {false, true})
        byte_ids_[inner][last][b] = vocabulary_.id((inner ? options_.prefix : "") + byte_spelling()[b] +
                                                   (last ? options_.suffix : ""));
    fallback_ids_[b] = vocabulary_.id(formatted("<0x%02X>", b));
  }
}

int32_t Bpe::unk_id() const {
  const int32_t id = vocabulary_.id(*options_.unk_token);
  if (id < 0)
    throw Error("BPE: the text has a character that is not in the vocabulary, and neither is the unk_token " +
                io::shown(*options_.unk_token));
  return id;
}

// Splits a word into one symbol per byte or code point. Unknown symbols are emitted in the order of the reference.
void Bpe::symbols_of(std::string_view word, Scratch& scratch) const {
  std::vector<Token>& symbols = scratch.symbols;
  symbols.clear();
  std::optional<Token> unknown;
  const auto is_unknown = [&](uint32_t length, std::string_view what) {
    if (!options_.unk_token)
      throw Error("BPE: the vocabulary has no token for " + io::shown(what) + ", and the file names no unk_token");
    if (unknown && options_.fuse_unk) {
      unknown->length += length;
      return;
    }
    if (unknown) symbols.push_back(*unknown);
    unknown = Token{unk_id(), length};
  };
  const auto is_known = [&](int32_t id, uint32_t length) {
    if (unknown) symbols.push_back(*unknown);
    unknown.reset();
    symbols.push_back({id, length});
  };
  if (options_.byte_level) {
    for (size_t i = 0; i < word.size(); ++i) {
      const auto byte = static_cast<uint8_t>(word[i]);
      const int32_t id = byte_ids_[i > 0][i + 1 == word.size()][byte];
      if (id >= 0) is_known(id, 1);
      else is_unknown(1, formatted("byte 0x%02X", byte));
    }
  } else {
    std::string& spelled = scratch.spelled;
    for (size_t at = 0; at < word.size();) {
      const size_t begin = at;
      next_point(word, at);
      const std::string_view point = word.substr(begin, at - begin);
      spelled.assign(begin > 0 ? options_.prefix : "");
      spelled.append(point);
      if (at == word.size()) spelled.append(options_.suffix);
      if (const int32_t id = vocabulary_.id(spelled); id >= 0) {
        is_known(id, static_cast<uint32_t>(point.size()));
        continue;
      }
      const auto fallback = [&](char c) { return fallback_ids_[static_cast<uint8_t>(c)]; };
      if (options_.byte_fallback &&
          std::all_of(spelled.begin(), spelled.end(), [&](char c) { return fallback(c) >= 0; })) {
        for (const char c : spelled) symbols.push_back({fallback(c), 1});
        continue;
      }
      is_unknown(static_cast<uint32_t>(point.size()), point);
    }
  }
  if (unknown) symbols.push_back(*unknown);
}

// Merges without a queue. This takes quadratic time, but is faster for words of usual length.
void Bpe::merge_short(Scratch& scratch) const {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<Token>& symbols = scratch.symbols;
  std::vector<int32_t>&ranks = scratch.ranks, &merged = scratch.merged;  // [i]: of the pair of symbols i and i + 1
  size_t n = symbols.size();
  ranks.assign(n, kNone);
  merged.resize(n);
  const auto look = [&](size_t i) {
    const Merge* found = i + 1 < n ? find(symbols[i].id, symbols[i + 1].id) : nullptr;
    ranks[i] = found != nullptr ? found->rank : kNone;
    if (found != nullptr) merged[i] = found->id;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    const auto best = static_cast<size_t>(std::min_element(ranks.begin(), ranks.begin() + static_cast<int64_t>(n)) -
                                          ranks.begin());
    if (ranks[best] == kNone) break;
    symbols[best] = {merged[best], symbols[best].length + symbols[best + 1].length};
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(n);
}

// Merges with a queue of candidate pairs over a linked list of symbols: O(n log n). A candidate is stale after one of
// its symbols has changed; it is then skipped.
void Bpe::merge_long(std::vector<Token>& symbols) const {
  struct Link {
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, at, left, right, merged;
    // Orders a max-heap such that it pops the lowest rank first, then the leftmost.
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto n = static_cast<int32_t>(symbols.size());
  std::vector<Link> links(symbols.size());
  std::vector<Candidate> heap;
  const auto symbol = [&](int32_t at) -> Token& { return symbols[static_cast<size_t>(at)]; };
  const auto link = [&](int32_t at) -> Link& { return links[static_cast<size_t>(at)]; };
  const auto consider = [&](int32_t at) {
    const int32_t next = link(at).next;
    if (next >= n) return false;
    const Merge* found = find(symbol(at).id, symbol(next).id);
    if (found == nullptr) return false;
    heap.push_back({found->rank, at, symbol(at).id, symbol(next).id, found->id});
    return true;
  };
  for (int32_t i = 0; i < n; ++i) link(i) = {i - 1, i + 1};
  for (int32_t i = 0; i < n; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    const int32_t next = link(best.at).next;
    if (symbol(best.at).id != best.left || next >= n || symbol(next).id != best.right) continue;
    symbol(best.at) = {best.merged, symbol(best.at).length + symbol(next).length};
    symbol(next).id = -1;  // merged into the previous symbol
    link(best.at).next = link(next).next;
    if (link(best.at).next < n) link(link(best.at).next).previous = best.at;
    if (consider(best.at)) std::push_heap(heap.begin(), heap.end());
    if (link(best.at).previous >= 0 && consider(link(best.at).previous)) std::push_heap(heap.begin(), heap.end());
  }
  std::erase_if(symbols, [](const Token& token) { return token.id < 0; });
}

void Bpe::encode_anew(std::string_view word, Scratch& scratch, std::vector<Token>& out) const {
  if (options_.ignore_merges) {
    scratch.spelled.clear();
    if (options_.byte_level)
      for (const char c : word) scratch.spelled += byte_spelling()[static_cast<uint8_t>(c)];
    else scratch.spelled = word;
    if (const int32_t id = vocabulary_.id(scratch.spelled); id >= 0) {
      out.push_back({id, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  constexpr size_t kShort = 32;
  symbols_of(word, scratch);
  if (scratch.symbols.size() <= kShort) merge_short(scratch);
  else merge_long(scratch.symbols);
  out.insert(out.end(), scratch.symbols.begin(), scratch.symbols.end());
}

}  // namespace

std::unique_ptr<const Model> make_bpe(Vocabulary vocabulary, const MergeList& merges, BpeOptions options,
                                      const std::string& path) {
  return std::make_unique<Bpe>(std::move(vocabulary), merges, std::move(options), path);
}

}  // namespace rondo::text
