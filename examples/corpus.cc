#include "rondo/examples/corpus.h"

#include <utility>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {
namespace {

std::unique_ptr<io::Tokenizer> make_tokenizer(const TrainOptions& options, std::string_view text, bool keep) {
  if (options.tokenizer == "byte") return std::make_unique<io::ByteTokenizer>();
  if (options.tokenizer == "gpt2")
    return std::make_unique<text::PreTrainedTokenizer>(text::PreTrainedTokenizer::from_gpt2_files(
        options.vocab_dir + "/encoder.json", options.vocab_dir + "/vocab.bpe"));
  auto chars = std::make_unique<io::CharTokenizer>(io::CharTokenizer::from_text(text));
  if (keep) chars->save(options.out_dir + "/tokenizer.json");
  return chars;
}

// Encodes a text. "<|endoftext|>" in it is ordinary text, as in nanoGPT's train.bin.
std::vector<int32_t> tokens_of(const io::Tokenizer& tokenizer, std::string_view text) {
  const auto* bpe = dynamic_cast<const text::PreTrainedTokenizer*>(&tokenizer);
  return bpe ? bpe->encode(text, {.split_special_tokens = true}) : tokenizer.encode(text);
}

}  // namespace

Corpus load_corpus(const TrainOptions& options, bool keep) {
  if (options.data.empty()) throw Error("--data is missing: the text file to learn");
  const auto file = io::MappedFile::open(options.data);
  if (keep) io::make_folders(options.out_dir);
  std::unique_ptr<io::Tokenizer> tokenizer = make_tokenizer(options, file->text(), keep);
  const auto [train, val] = data::TokenData::from(tokens_of(*tokenizer, file->text())).split(0.1);
  io::Checksum sum;
  sum.update(file->text());
  return {.tokenizer = std::move(tokenizer),
          .train = data::TokenDataset(train, options.block_size),
          .val = data::TokenDataset(val, options.block_size),
          .checksum = static_cast<int64_t>(sum.digest())};
}

}  // namespace rondo::examples
