// Normalisers: rewrite text before it is cut into words. Each is a step; a Sequence in the file is a list of steps.
//
// Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/aligned_text.h"

namespace rondo::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // True only if rewrite() would not change `text`; then the text need not be copied.
  virtual bool keeps(std::string_view text) const = 0;
  // Appends the rewritten text to `out`.
  virtual void rewrite(const Piece& in, AlignedText& out) const = 0;
};
using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

// Reads the steps of a file's "normalizer"; null: no steps. Throws FileError for anything that is not supported.
Normalizers read_normalizers(io::JsonReader& json);
// Appends the steps of BERT's normaliser.
void append_bert_normalizer(Normalizers& out, bool clean_text, bool handle_chinese_chars, bool strip_accents,
                            bool lowercase);
std::unique_ptr<const Normalizer> nfc_normalizer();

}  // namespace rondo::text
