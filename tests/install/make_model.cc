// Makes the small published model that outside programs train: GPT-2 with a byte-level tokenizer, 2 layers of 32.
//   make_model FOLDER
#include <cstdio>
#include <filesystem>

#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/tests/paths.h"

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "make_model FOLDER: writes a small GPT-2 with its tokenizer to FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  rondo::nn::GPT2 model({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32}, /*seed=*/1);
  rondo::nn::save_pretrained(model, folder);
  std::filesystem::copy_file(std::filesystem::path(rondo::tests::kReferenceDir) / "tokenizers/gpt2.json",
                             folder / "tokenizer.json", std::filesystem::copy_options::overwrite_existing);
}
