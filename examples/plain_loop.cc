#include <cstdio>
#include "rondo/compile/compile.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/data/device_batches.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/text/simple_tokenizer.h"
using namespace rondo;

int main(int argc, char** argv) try {
  if (argc < 2) throw Error("plain_loop TEXT_FILE [--device=cuda]");
  const std::string_view last = argv[argc - 1];
  const Device device = last.starts_with("--device=") ? parse_device(last.substr(9)) : kCPU;
  const auto file = io::MappedFile::open(argv[1]);
  const io::CharTokenizer chars = io::CharTokenizer::from_text(file->text());
  const data::TokenDataset windows(data::TokenData::from(chars.encode(file->text())), /*block_size=*/64);
  nn::GPT2 model({.vocab_size = chars.vocab_size(), .block_size = 64, .n_layer = 4, .n_head = 4, .n_embd = 128});
  model.to(device);  // before the optimizer is made: it keeps its states on the parameters' device
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0.1});
  compile::compile_regions(model);  // optional: the block is compiled once and reused by all four layers
  data::FunctionBatches random(data::FunctionBatches::kEndless, [&](data::BatchSource::Position at) -> data::Batch {
    const auto batch = windows.sample(/*batch_size=*/12, /*seed=*/1337, at.batch);
    return {batch.x, batch.y};
  });
  data::DeviceBatches batches(random, device);  // copies the next batch while a step is computed
  for (int step = 0; step < 500; ++step) {
    const data::Batch batch = *batches.next();
    const Tensor loss = model.loss(batch[0], batch[1]);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0) std::printf("step %d: loss %.3f\n", step, loss.item());
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "plain_loop: %s\n", e.what());
  return 1;
}
