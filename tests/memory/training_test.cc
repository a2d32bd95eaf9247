// Models, training, optimizers, compiled regions, data and the C API when memory runs short.
#include <gtest/gtest.h>

#include <filesystem>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/symbols.h"
#include "rondo/modules/generation/generation.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/vision/resnet.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/optim/lion.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/rondo_c.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/memory/digest.h"
#include "rondo/tests/memory/failing_memory.h"
#include "rondo/tests/modules/pretrained_cases.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::digest;
using test::expect_typed_errors;
using test::note;
using test::TempFolder;
using test::Work;

std::string recorded(const std::string& name) { return std::string(tests::kReferenceDir) + "/" + name; }

nn::GPT2Config small_gpt2() {
  return {.vocab_size = 23, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16, .dropout = 0.1};
}
Tensor some_ids(int64_t seed) {
  const test::FailingMemory::Pause pause;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 16; ++i) ids.push_back((i * i + seed) % 23);
  return Tensor::from<int64_t>(ids, {2, 8});
}

// ---- Modules

template <class AutoModel> Work loads(const std::string& folder) {
  return [folder] { return digest(*AutoModel::from_pretrained(folder)); };
}
struct Recorded {
  const char* name;
  Work (*loads)(const std::string& folder);
};
class MemoryOfPretrained : public testing::TestWithParam<Recorded> {};
TEST_P(MemoryOfPretrained, RunsShort) {
  expect_typed_errors([] { return GetParam().loads(nn::recorded_folder(GetParam().name)); });
}
INSTANTIATE_TEST_SUITE_P(All, MemoryOfPretrained,
                         testing::Values(Recorded{"gpt2", loads<nn::AutoModelForCausalLM>},
                                         Recorded{"llama3", loads<nn::AutoModelForCausalLM>},
                                         Recorded{"qwen2_yarn", loads<nn::AutoModelForCausalLM>},
                                         Recorded{"minilm", loads<nn::AutoModel>},
                                         Recorded{"vit", loads<nn::AutoModelForImageClassification>},
                                         Recorded{"segformer", loads<nn::AutoModelForSemanticSegmentation>}),
                         [](const auto& recorded) { return std::string(recorded.param.name); });

TEST(MemoryOfModules, RunsShortAsTheyAreBuilt) {
  expect_typed_errors([]() -> Work {
    return [] {
      const nn::GPT2 model(small_gpt2(), 3);
      return digest(model);
    };
  });
}

TEST(MemoryOfModules, RunsShortInStateDicts) {
  expect_typed_errors([]() -> Work {
    auto from = std::make_shared<nn::GPT2>(small_gpt2(), 3), to = std::make_shared<nn::GPT2>(small_gpt2(), 4);
    return [=] {
      const auto report = to->load_state_dict(from->state_dict());
      to->train(false);
      to->zero_grad();
      return digest(*to, to->num_parameters(), report.missing.size());
    };
  });
}

TEST(MemoryOfModules, RunsShortAsTheTreeChanges) {
  expect_typed_errors([]() -> Work {
    return [] {
      std::string name;
      std::unique_ptr<nn::Linear> probe;
      {
        const test::FailingMemory::Pause pause;
        name = "a_probe_with_a_long_name";
        probe = std::make_unique<nn::Linear>(4, 4);
      }
      nn::GPT2 model(small_gpt2(), 3);
      model.attach(std::move(name), std::move(probe));
      model.detach("a_probe_with_a_long_name");
      model.to(kF64);
      return digest(model, model.named_modules().size(), model.type_name());
    };
  });
}

TEST(MemoryOfAdapters, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const nn::LoraOptions options{.rank = 2, .alpha = 4, .targets = {"c_attn", "c_fc"}};
    return [=] {
      manual_seed(5);
      nn::GPT2 model(small_gpt2(), 3), other(small_gpt2(), 3);
      nn::add_lora(model, options);
      nn::save_adapter(model, folder->path());
      nn::load_adapter(other, folder->path());
      return digest(other);
    };
  });
}

TEST(MemoryOfAdapters, RunsShortInAModelThatLasts) {
  expect_typed_errors([]() -> Work {
    auto model = std::make_shared<nn::GPT2>(small_gpt2(), 3);
    nn::add_lora(*model, {.rank = 2, .alpha = 4, .targets = {"c_attn"}, .modules_to_save = {"ln_f"}});
    const nn::LoraOptions options{
        .rank = 2, .alpha = 4, .targets = {"c_attn", "c_fc"}, .modules_to_save = {"ln_f"}, .adapter = "second"};
    const auto state = [model] {
      const test::FailingMemory::Pause pause;
      std::string out = digest(nn::active_adapter(*model));
      for (const nn::NamedTensor& p : model->named_parameters())
        note(out, p.name, p.tensor.requires_grad(), p.tensor.grad().defined());
      return out;
    };
    return [=] {
      {
        const test::FailingMemory::Pause pause;
        if (nn::adapter_names(*model).size() > 1) nn::remove_adapter(*model, options.adapter);
        nn::set_adapter(*model, "default");
        model->loss(some_ids(0), some_ids(1)).backward();
      }
      const std::string before = state();
      nn::LoraReport report;
      try {
        report = nn::add_lora(*model, options);
      } catch (const OutOfMemoryError&) {
        if (state() != before) throw std::runtime_error("half an adapter");
        throw;
      }
      std::string out = state();
      note(out, report.trainable, report.total);
      nn::remove_adapter(*model, options.adapter);
      note(out, state());
      return out;
    };
  });
}

// A scope that ends without memory leaves the adapter active that was so before.
TEST(MemoryOfAdapters, RunsShortInScopes) {
  expect_typed_errors([]() -> Work {
    auto model = std::make_shared<nn::GPT2>(small_gpt2(), 3);
    for (const char* name : {"first", "second"})
      nn::add_lora(*model,
                   {.rank = 2, .alpha = 4, .targets = {"c_attn"}, .modules_to_save = {"ln_f"}, .adapter = name});
    model->eval();
    const std::string first = "first";
    return [=] {
      std::string out;
      {
        const nn::UseAdapter use(*model, first);
        note(out, model->forward(some_ids(0)));
      }
      {
        const nn::DisableAdapters off(*model);
        note(out, model->forward(some_ids(0)));
      }
      note(out, model->forward(some_ids(0)), nn::active_adapter(*model));
      for (const Tensor& p : model->parameters()) note(out, p.requires_grad());
      return out;
    };
  });
}

TEST(MemoryOfGeneration, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto model = std::make_shared<nn::GPT2>(small_gpt2(), 3);
    model->eval();
    const std::vector<int64_t> prompt = {1, 2, 3};
    return [=] {
      Generator generator(7);
      const nn::Generation made = nn::generate(
          *model, prompt,
          {.max_new_tokens = 4, .repetition_penalty = 1.3, .temperature = 0.8, .top_k = 9, .generator = &generator});
      return digest(made.tokens);
    };
  });
}

// ---- Eager steps

TEST(MemoryOfSteps, RunsShortEagerly) {
  expect_typed_errors([]() -> Work {
    return [] {
      manual_seed(1);
      nn::GPT2 model(small_gpt2(), 3);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2, .weight_decay = 0.1});
      for (int i = 0; i < 2; ++i) {
        model.loss(some_ids(i), some_ids(i + 1)).backward();
        optim::clip_grad_norm_(model.parameters(), 1.0);
        optimizer.step();
        optimizer.zero_grad();
      }
      return digest(model);
    };
  });
}

TEST(MemoryOfSteps, RunsShortInAModelThatLasts) {
  expect_typed_errors([]() -> Work {
    auto model = std::make_shared<nn::GPT2>(small_gpt2(), 3);
    return [=] {
      model->zero_grad();
      manual_seed(1);
      const amp::Autocast bf16(kBF16);
      const Tensor loss = model->loss(some_ids(0), some_ids(1));
      loss.backward();
      std::string out = digest(loss);
      for (const Tensor& p : model->parameters()) note(out, p.grad());
      return out;
    };
  });
}

TEST(MemoryOfSteps, RunsShortInImages) {
  expect_typed_errors([]() -> Work {
    auto net = std::make_shared<nn::ResNet>(nn::ResNetConfig{.layers = {1, 1, 1, 1}, .num_classes = 3, .width = 4}, 4);
    net->eval();
    const Tensor classes = Tensor::from<int64_t>({0, 2}, {2});
    return [=] {
      net->zero_grad();
      manual_seed(2);
      const Tensor loss = net->loss(Tensor::randn({2, 3, 16, 16}), classes);
      loss.backward();
      std::string out = digest(loss);
      for (const Tensor& p : net->parameters()) note(out, p.grad());
      return out;
    };
  });
}

// ---- Optimizers

template <class Optimizer, class Options> Work optimizer_work(Options options) {
  return [options] {
    manual_seed(6);
    nn::Sequential net(nn::layer<nn::Linear>(6, 8), nn::layer<nn::Tanh>(), nn::layer<nn::Linear>(8, 4));
    Optimizer optimizer(net.parameters(), options);
    optimizer.track_average({.decay = 0.9});
    for (int i = 0; i < 2; ++i) {
      ops::sum(net(Tensor::randn({3, 6}))).backward();
      optimizer.step({.max_norm = 1, .zero_grad = true});
    }
    Optimizer next(net.parameters(), options);
    next.track_average({.decay = 0.9});
    next.load_state_dict(optimizer.state_dict());
    ops::sum(net(Tensor::randn({3, 6}))).backward();
    next.step();
    return digest(net, next.averages());
  };
}
TEST(MemoryOfOptimizers, RunsShortInSGD) {
  expect_typed_errors([] { return optimizer_work<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9}); });
}
TEST(MemoryOfOptimizers, RunsShortInLion) {
  expect_typed_errors([] { return optimizer_work<optim::Lion>(optim::LionOptions{.lr = 0.1}); });
}
TEST(MemoryOfOptimizers, RunsShortInAdafactor) {
  expect_typed_errors([] { return optimizer_work<optim::Adafactor>(optim::AdafactorOptions{.lr = 0.1}); });
}
TEST(MemoryOfOptimizers, RunsShortInMuon) {
  expect_typed_errors([] {
    return [] {
      manual_seed(6);
      nn::Linear net(6, 8, {.bias = false});
      optim::Muon optimizer(net.parameters(), {.lr = 0.1});
      for (int i = 0; i < 2; ++i) {
        ops::sum(net(Tensor::randn({3, 6}))).backward();
        optimizer.step({.zero_grad = true});
      }
      return digest(net);
    };
  });
}

// A step that fails has changed nothing, so the next one makes the step.
TEST(MemoryOfOptimizers, RunsShortInAStepOfOneThatLasts) {
  struct Lasting {
    nn::Linear net{6, 8};
    optim::AdamW optimizer{net.parameters(), {.lr = 1e-2}};
    nn::StateDict model, state;
  };
  expect_typed_errors([]() -> Work {
    manual_seed(6);
    auto o = std::make_shared<Lasting>();
    const auto gradients = [o] {
      o->optimizer.zero_grad();
      ops::sum(o->net(Tensor::ones({3, 6}))).backward();
    };
    gradients();
    o->optimizer.step();
    for (const auto& [name, tensor] : o->net.state_dict()) o->model[name] = tensor.clone();
    for (const auto& [name, tensor] : o->optimizer.state_dict()) o->state[name] = tensor.clone();
    return [o, gradients] {
      o->net.load_state_dict(o->model);
      o->optimizer.load_state_dict(o->state);
      gradients();
      o->optimizer.step();
      std::string out = digest(o->net);
      note(out, o->optimizer.state_dict());
      return out;
    };
  });
}

TEST(MemoryOfOptimizers, RunsShortWithALossScale) {
  expect_typed_errors([]() -> Work {
    return [] {
      manual_seed(6);
      nn::Linear net(6, 8);
      optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
      amp::GradScaler scaler;
      scaler.scale(ops::sum(net(Tensor::ones({3, 6})))).backward();
      scaler.step(optimizer);
      scaler.update();
      amp::GradScaler other;
      other.load_state_dict(scaler.state_dict());
      return digest(net, other.get_scale());
    };
  });
}

TEST(MemoryOfOptimizers, RunsShortInUpdatesAtSeams) {
  expect_typed_errors([]() -> Work {
    return [] {
      manual_seed(1);
      nn::GPT2 model(small_gpt2(), 3);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      optim::UpdateAtSeams updates(model, optimizer);
      model.loss(some_ids(0), some_ids(1)).backward();
      updates.finish();
      return digest(model);
    };
  });
}

// ---- Compiled regions. Where nothing else is said, a first run has compiled the kernels, so LLVM is not entered.

class MemoryOfRegions : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_F(MemoryOfRegions, RunsShortAsTheyAreMade) {
  expect_typed_errors([]() -> Work {
    const auto step = [] {
      manual_seed(1);
      nn::GPT2 model(small_gpt2(), 3);
      compile::compile_regions(model);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      optim::compile(optimizer);
      model.loss(some_ids(0), some_ids(1)).backward();
      optimizer.step();
      return digest(model);
    };
    step();
    return step;
  });
}

// LLVM compiles in the tries of fresh processes. What runs eagerly after that has the same bits.
TEST_F(MemoryOfRegions, RunsShortInTheCodeGenerator) {
  expect_typed_errors([]() -> Work {
    ::setenv("RONDO_CACHE", "off", 1);
    compile::load_toolchain();
    return [] {
      manual_seed(1);
      auto f = compile::compile([](const Tensor& a) { return ops::sum(ops::softmax(a, 1) * ops::sin(a), 0); },
                                {.exact = true});
      return digest(f(Tensor::randn({5, 7})));
    };
  });
}

TEST_F(MemoryOfRegions, RunsShortInThoseThatLast) {
  struct Lasting {
    nn::GPT2 model{small_gpt2(), 3};
    compile::Regions regions = compile::compile_regions(model);
  };
  expect_typed_errors([]() -> Work {
    auto o = std::make_shared<Lasting>();
    const auto step = [o] {
      o->model.zero_grad();
      manual_seed(1);
      const Tensor loss = o->model.loss(some_ids(0), some_ids(1));
      loss.backward();
      std::string out = digest(loss);
      for (const Tensor& p : o->model.parameters()) note(out, p.grad());
      for (const compile::RegionReport& report : o->regions.report())
        note(out, report.eager_runs, report.failed_compilations);
      return out;
    };
    step();
    return step;
  });
}

TEST_F(MemoryOfRegions, RunsShortInFunctionsOfManyShapes) {
  expect_typed_errors([]() -> Work {
    const auto step = [] {
      manual_seed(1);
      auto f = compile::compile([](const Tensor& a, const Tensor& b) {
        return ops::sum(ops::softmax(ops::matmul(a, b), 1) * ops::sin(a), 0);
      });
      std::string out;
      for (const int64_t n : {3, 4, 7}) {
        Tensor a = Tensor::randn({n, n}), b = Tensor::randn({n, n});
        a.requires_grad_();
        const Tensor y = f(a, b);
        ops::sum(y).backward();
        note(out, y, a.grad());
      }
      return out;
    };
    step();
    return step;
  });
}

TEST_F(MemoryOfRegions, RunsShortInAnExplanation) {
  expect_typed_errors([]() -> Work {
    auto model = std::make_shared<nn::GPT2>(small_gpt2(), 3);
    model->eval();
    const auto explain = [model] {
      const compile::Explanation explanation = compile::explain(*model, some_ids(0));
      return digest(explanation.regions.size(), to_text(explanation).empty());
    };
    explain();
    return explain;
  });
}

// Code hides its name where it ends, shown or not.
TEST(MemoryOfSymbols, RunsShort) {
  struct Code {
    ~Code() { compile::hide_symbol(this); }
  };
  expect_typed_errors([]() -> Work {
    return [] {
      const Code code;
      within_memory("show_symbol", [&] { compile::show_symbol(&code, 1, "a_name_with_memory_of_its_own"); });
      return std::string("shown");
    };
  });
}

// ---- Data and the Trainer

struct Rows : data::Dataset {
  int64_t size() const override { return 10; }
  std::vector<Tensor> get(int64_t index) const override {
    return {ops::reshape(some_ids(index), {16}), ops::reshape(some_ids(index + 1), {16})};
  }
};

class MemoryOfDataLoaders : public testing::TestWithParam<int> {};
TEST_P(MemoryOfDataLoaders, RunsShort) {
  expect_typed_errors([]() -> Work {
    const auto rows = std::make_shared<const Rows>();
    return [rows] {
      data::DataLoader loader(rows, {.batch_size = 3, .shuffle = true, .seed = 2, .num_workers = GetParam()});
      std::string out;
      for (int epoch = 0; epoch < 2; ++epoch)
        while (const auto batch = loader.next()) note(out, *batch);
      return out;
    };
  });
}
INSTANTIATE_TEST_SUITE_P(Workers, MemoryOfDataLoaders, testing::Values(0, 2));

class MemoryOfTrainers : public testing::TestWithParam<bool> {};
TEST_P(MemoryOfTrainers, RunsShort) {
  if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const auto rows = std::make_shared<const Rows>();
    return [=] {
      optim::TrainerOptions options{.max_steps = 2, .count_targets = optim::unmasked_targets, .eval_steps = 2};
      {
        const test::FailingMemory::Pause pause;
        options.output_dir = *folder / "run";
        std::filesystem::remove_all(options.output_dir);
      }
      manual_seed(1);
      nn::GPT2 model({.vocab_size = 23, .block_size = 16, .n_layer = 1, .n_head = 2, .n_embd = 8}, 3);
      if (GetParam()) compile::compile_regions(model);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      data::DataLoader train(rows, {.batch_size = 5, .num_workers = 1}), evaluation(rows, {.batch_size = 5});
      const auto loss = [&](const data::Batch& batch) { return model.loss(batch[0], batch[1]); };
      optim::Trainer trainer(model, optimizer, loss, train, evaluation, options);
      trainer.train();
      return digest(model);
    };
  });
}
INSTANTIATE_TEST_SUITE_P(Compiled, MemoryOfTrainers, testing::Bool());

// ---- The C API

void check(rondo_status status) {
  const test::FailingMemory::Pause pause;
  if (status == RONDO_OUT_OF_MEMORY) throw OutOfMemoryError("of the C API");
  if (status == RONDO_BAD_FILE) throw FileError("of the C API", rondo_last_error());
  if (status != RONDO_OK) throw std::runtime_error(rondo_last_error());
}

TEST(MemoryOfTheCApi, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    {
      nn::GPT2 model({.vocab_size = 700, .block_size = 32, .n_layer = 1, .n_head = 2, .n_embd = 16}, 1);
      nn::save_pretrained(model, *folder / "model");
      std::filesystem::copy_file(recorded("tokenizers/gpt2.json"), *folder / "model/tokenizer.json");
    }
    return [folder, path = *folder / "model"] {
      rondo_model_options options{};
      options.size = sizeof options;
      options.seed = 3;
      rondo_model* made = nullptr;
      check(rondo_model_create(path.c_str(), &options, &made));
      const std::unique_ptr<rondo_model, rondo_status (*)(rondo_model*)> model(made, rondo_model_destroy);
      const char* const texts[] = {"the water of the people", "the people went"};
      double loss = 0;
      check(rondo_train_text(made, texts, 2, &loss));
      rondo_generate_options how{};
      how.size = sizeof how;
      how.max_new_tokens = 4;
      char* text = nullptr;
      check(rondo_generate_text(made, "the", &how, &text, nullptr));
      const std::unique_ptr<char, void (*)(char*)> kept(text, rondo_free);
      return digest(loss, std::string_view(text));
    };
  });
}

}  // namespace
}  // namespace rondo
