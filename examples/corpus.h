// Corpus: a text file as tokens, cut into a training and a validation part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rondo/examples/train_options.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/text/simple_tokenizer.h"

namespace rondo::examples {

struct Corpus {
  std::unique_ptr<io::Tokenizer> tokenizer;
  data::TokenDataset train, val;  // val: the last tenth of the text
  int64_t checksum;               // of the text, so that a run is not resumed with another one
};

// Reads options.data. With `keep`, creates out_dir, and writes the vocabulary of a character tokenizer to
// <out_dir>/tokenizer.json, for programs that load the model later. Throws Error.
Corpus load_corpus(const TrainOptions& options, bool keep);

}  // namespace rondo::examples
