// read_text: reads texts of any length and tokenizes them in pieces.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/line_reader.h"
#include "rondo/runtime/data/read_lines.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::data {
namespace {

// Note [Pieces of text]. A long text is cut before a line that does not begin with white space. Each piece is encoded
// as the continuation of the last line before it (Note [Borders]). The pre-tokenizers of byte-level models begin a word
// at such a line, so the ids equal those of the whole text.
constexpr size_t kPiece = 1 << 16;       // least number of bytes before a cut
constexpr size_t kLongestBefore = 1024;  // longest last line, in bytes, that is encoded again before the next piece

struct Piece {
  std::string text, before{};
  int64_t line = 1;  // the line where it begins
  bool ends_text = false;
};

// Finds the texts of a file.
class PieceReader {
 public:
  PieceReader(const std::string& path, const ReadOptions& options, absl::FunctionRef<void(Piece)> piece)
      : reader_(path), options_(options), piece_(piece) {}

  void run() {
    const bool json = is_json_lines(reader_.path()), by_line = options_.separator == "\n";
    std::string_view line;
    while (reader_.next(line)) {
      if ((json || by_line) && is_blank(line)) continue;
      if (json) add_json(line);
      else if (by_line) add_text(without_return(line)), cut(true);
      else add_line(line);
    }
    if (pending_ && options_.separator.empty()) current_ += '\n';
    cut(true);
  }

 private:
  void add_json(std::string_view line) {
    std::optional<std::string> text;
    read_json_line(reader_.path(), reader_.number(), line, [&](io::JsonReader& json, const std::string& key) {
      if (key != options_.text_field) return false;
      text = read_string_field(json, key);
      return true;
    });
    if (!text) throw DataError(reader_.path(), reader_.number(), missing_field(options_.text_field));
    add_text(*text);
    cut(true);
  }

  void add_line(std::string_view line) {
    bool behind_marker = false;
    if (!options_.separator.empty())
      for (size_t at = 0; (at = line.find(options_.separator)) != std::string_view::npos;) {
        if (at > 0) end_line(line), add_text(line.substr(0, at));
        pending_ = false;
        cut(true);
        line.remove_prefix(at + options_.separator.size());
        behind_marker = true;
      }
    if (behind_marker && is_blank(line)) return;
    end_line(line);
    add_text(line);
    pending_ = reader_.ended();
  }

  // Adds the pending line feed, which is before `next`. May then cut the text.
  void end_line(std::string_view next) {
    if (!pending_) return;
    pending_ = false;
    current_ += '\n';
    size_t at = 0;
    if (current_.size() >= kPiece && !next.empty() && !text::is_white_space(text::next_point(next, at))) cut(false);
  }

  void add_text(std::string_view text) {
    if (current_.empty()) line_ = reader_.number();
    current_ += text;
  }

  void cut(bool ends_text) {
    const bool blank = before_.empty() && current_.find_first_not_of(" \t\r\n") == std::string::npos;
    if (blank && ends_text) return current_.clear();
    Piece piece{.text = std::move(current_), .before = std::move(before_), .line = line_, .ends_text = ends_text};
    current_.clear();
    before_.clear();
    if (!ends_text) {
      // Keeps the last line that is not blank, with the line feeds after it: the next piece is encoded as its
      // continuation. If that line is the first one of the piece, or is too long, "\n" stands for it, so that the next
      // piece is not encoded as the beginning of a text.
      const size_t word = piece.text.find_last_not_of(" \t\r\n");
      const size_t feed = word == std::string::npos ? word : piece.text.rfind('\n', word);
      if (feed != std::string::npos) before_ = piece.text.substr(feed + 1);
      if (before_.empty() || before_.size() > kLongestBefore) before_ = "\n";
    }
    piece_(std::move(piece));
  }

  LineReader reader_;
  const ReadOptions& options_;
  const absl::FunctionRef<void(Piece)> piece_;
  std::string current_, before_;
  bool pending_ = false;  // a line feed follows current_ in the file and is not added yet
  int64_t line_ = 1;
};

// Collects the tokens of a text, and cuts them into examples on the way.
class TextExamples {
 public:
  TextExamples(const ReadOptions& options, const std::string& path, Ids opening, int32_t end, ExampleSet& out)
      : options_(options), path_(path), opening_(std::move(opening)), end_(end), out_(out), tokens_(opening_) {}

  void add(const Ids& ids) {
    for (const int32_t id : ids) push(id);
  }
  // Ends the text. `line`: the line where its last piece begins, for errors.
  void finish(int64_t line) {
    if (end_ >= 0) push(end_);
    if (overflow_ && how_ == TooLong::kError)
      throw DataError(
          path_, line,
          absl::StrCat("the text that ends here has more than the ", options_.max_length + 1,
                       " tokens that max_length allows; shorten it, or truncate, split or drop such texts"));
    if (tokens_.size() < 2 || (overflow_ && how_ == TooLong::kDrop)) {
      out_.count_dropped();
    } else {
      emit();
      if (overflow_) out_.count_truncated();
    }
    tokens_ = opening_;
    overflow_ = false;
  }

 private:
  void push(int32_t id) {
    if (options_.max_length > 0 && static_cast<int64_t>(tokens_.size()) > options_.max_length) {
      if (how_ != TooLong::kSplit) {
        overflow_ = true;
        return;
      }
      emit();
      tokens_ = {tokens_.back()};
    }
    tokens_.push_back(id);
  }
  void emit() { out_.add({.ids = tokens_, .targets = std::vector<bool>(tokens_.size(), true)}); }

  const ReadOptions& options_;
  const TooLong how_ = options_.too_long.value_or(TooLong::kSplit);
  const std::string& path_;
  const Ids opening_;
  const int32_t end_;
  ExampleSet& out_;
  Ids tokens_;
  bool overflow_ = false;
};

// Returns the number of the first line of `piece` that has a token outside the vocabulary.
int64_t line_of_large_id(const Piece& piece, const TextEncoder& encoder, int64_t vocab_size) {
  int64_t line = piece.line;
  for (size_t at = 0; at < piece.text.size(); ++line) {
    const size_t end = std::min(piece.text.find('\n', at), piece.text.size());
    for (const int32_t id : encoder.encode(std::string_view(piece.text).substr(at, end - at)))
      if (id >= vocab_size) return line;
    at = end + 1;
  }
  return piece.line;
}

}  // namespace

ExampleSet read_text(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options) try {
  check_options(options, true);
  const bool whole = options.separator.empty() && !is_json_lines(path);
  if (whole && options.max_length == 0)
    throw Error("read_text: a file that is one text needs max_length; or give a separator of texts");
  const TextEncoder encoder(tokenizer, options.allow_special_tokens);
  const int32_t end = options.end_token.value_or(whole ? -1 : encoder.end_of_text());
  ExampleSet out;
  TextExamples examples(options, path, opening_of(options, encoder), end, out);

  constexpr size_t kBytes = 1 << 21;  // total size of the pieces that are encoded in parallel
  std::vector<Piece> pieces;
  std::vector<Ids> encoded;
  size_t bytes = 0;
  const auto encode_pieces = [&] {
    encoded.assign(pieces.size(), {});
    std::vector<std::exception_ptr> errors(pieces.size());
    parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
      for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
        const Piece& piece = pieces[i];
        try {
          const PieceOptions how{.at_start = piece.before.empty()};
          encoded[i] = encoder.continuation(piece.before, encoder.encode(piece.before, how), piece.text, how);
          const bool fits = options.vocab_size == 0 || encoded[i].empty() ||
                            *std::max_element(encoded[i].begin(), encoded[i].end()) < options.vocab_size;
          if (!fits)
            check_vocabulary(encoded[i], options, encoder, path, line_of_large_id(piece, encoder, options.vocab_size));
        } catch (const FileError&) {
          errors[i] = std::current_exception();
        } catch (const OutOfMemoryError&) {
          errors[i] = std::current_exception();
        } catch (const Error& error) {
          errors[i] = std::make_exception_ptr(DataError(path, piece.line, error.what()));
        }
      }
    });
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (errors[i]) std::rethrow_exception(errors[i]);
      examples.add(encoded[i]);
      if (pieces[i].ends_text) examples.finish(pieces[i].line);
    }
    pieces.clear();
    bytes = 0;
  };
  PieceReader(path, options, [&](Piece piece) {
    bytes += piece.text.size();
    pieces.push_back(std::move(piece));
    if (bytes >= kBytes) encode_pieces();
  }).run();
  encode_pieces();
  require_examples(out, path);
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_text");
}

}  // namespace rondo::data
