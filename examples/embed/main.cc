// Fine-tunes a language model inside this program: a worker thread trains, and the main thread stays responsive.
//   embed MODEL_FOLDER TEXT_FILE ADAPTER_FOLDER [STEPS] [--device=cuda]        Enter cancels
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>

#include "rondo/rondo.h"
using namespace rondo;

int main(int argc, char** argv) try {
  const std::string_view last = argv[argc - 1];
  const bool chosen = last.starts_with("--device=");
  const Device device = chosen ? parse_device(last.substr(9)) : kCPU;
  if ((argc -= chosen) < 4) throw Error("embed MODEL_FOLDER TEXT_FILE ADAPTER_FOLDER [STEPS] [--device=cuda]");
  const text::PreTrainedTokenizer tokenizer = text::AutoTokenizer::from_pretrained(argv[1]);
  auto model = nn::AutoModelForCausalLM::from_pretrained(argv[1]);
  model->to(device);
  const auto examples = std::make_shared<const data::ExampleSet>(
      data::read_text(argv[2], tokenizer, {.max_length = 32, .vocab_size = model.vocab_size()}));
  data::ExampleBatches batches(examples, {.batch_size = 8});
  const auto write = [&](const char* when) {
    std::vector<int32_t> prompt = examples->example(0).ids;
    prompt.resize(4);
    const nn::Generation made = nn::generate(model.causal_lm(), prompt, {.max_new_tokens = 30, .temperature = 0});
    std::printf("\n---- %s\n%s|%s\n", when, tokenizer.decode(prompt).c_str(), tokenizer.decode(made.tokens).c_str());
  };
  write("before");

  nn::add_lora(*model, {.rank = 8, .alpha = 16, .targets = {"all-linear"}});
  optim::AdamW optimizer(model->parameters(), {.lr = 2e-3});
  const auto loss = [&](const data::Batch& batch) { return model.loss(batch[0], batch[1]); };
  optim::Trainer trainer(*model, optimizer, loss, batches,
                         {.max_steps = argc > 4 ? std::atoll(argv[4]) : 200, .count_targets = optim::unmasked_targets});
  std::future<optim::TrainResult> worker = std::async(std::launch::async, [&] { return trainer.train(); });

  // The main thread shows the progress 20 times a second, and notices the Enter key at once.
  pollfd key{STDIN_FILENO, POLLIN, 0};
  while (worker.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (char c = 0; poll(&key, 1, /*milliseconds=*/50) > 0) {
      if (read(STDIN_FILENO, &c, 1) > 0) trainer.cancel();
      key.fd = -1;  // poll() ignores the keyboard from now on
    }
    const optim::Progress now = trainer.progress();
    if (now.step == 0) continue;
    std::printf("\rstep %lld/%lld  loss %.3f ", (long long)now.step, (long long)now.max_steps, now.loss);
    std::fflush(stdout);
  }
  const optim::TrainResult result = worker.get();  // rethrows the exception of the worker
  std::printf("\n%s", result.reason == optim::StopReason::kCancelled ? "cancelled" : "finished");
  write("after");
  nn::save_adapter(*model, argv[3], {.base_model_name_or_path = argv[1]});
} catch (const std::exception& e) {
  std::fprintf(stderr, "embed: %s\n", e.what());
  return 1;
}
