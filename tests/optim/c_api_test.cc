// The C API from C++: it computes what the plain loop computes, and every wrong call is an error with a kind and a
// sentence. tests/install/ uses it from C and from Python.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/rondo_c.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

constexpr int32_t kRows[] = {5, 17, 40, 3, 99, 310, 7, 8, 640, 2, 1, 77};  // 2 rows of 6
const char* const kTexts[] = {"the water of the people", "the people went into the water, and we looked about"};

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    nn::GPT2 model({.vocab_size = 700, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 32, .dropout = 0.1}, 1);
    nn::save_pretrained(model, folder_ / "model");
    std::filesystem::copy_file(std::string(tests::kReferenceDir) + "/tokenizers/gpt2.json",
                               folder_ / "model/tokenizer.json");
  }
  rondo_model* create(uint64_t seed = 0, bool compiled = false) {
    rondo_model_options options{};
    options.size = sizeof options;
    options.seed = seed;
    options.compile = compiled;
    const std::string device = to_string(test::test_device());
    options.device = device.c_str();
    rondo_model* model = nullptr;
    EXPECT_EQ(rondo_model_create((folder_ / "model").c_str(), &options, &model), RONDO_OK) << rondo_last_error();
    return model;
  }
  static rondo_lora_options lora() {
    return {.size = sizeof(rondo_lora_options),
            .rank = 4,
            .alpha = 8,
            .dropout = 0.1,
            .targets = "c_attn,c_fc",
            .rslora = 0,
            .reserved = 0};
  }
  static rondo_optimizer_options adamw(double lr) {
    rondo_optimizer_options o{};
    o.size = sizeof o;
    o.lr = lr;
    o.weight_decay = 0.1;
    o.beta2 = 0.95;
    o.max_grad_norm = 1;
    return o;
  }
  // The losses of eight steps of a fresh model.
  std::vector<double> losses(uint64_t seed = 3, bool compiled = false) {
    rondo_model* model = create(seed, compiled);
    const rondo_lora_options o = lora();
    const rondo_optimizer_options a = adamw(1e-2);
    EXPECT_EQ(rondo_add_lora(model, &o), RONDO_OK) << rondo_last_error();
    EXPECT_EQ(rondo_set_optimizer(model, &a), RONDO_OK) << rondo_last_error();
    std::vector<double> out;
    for (int i = 0; i < 8; ++i) {
      double loss = 0;
      EXPECT_EQ(rondo_train_tokens(model, kRows, nullptr, 2, 6, &loss), RONDO_OK) << rondo_last_error();
      out.push_back(loss);
    }
    EXPECT_EQ(rondo_model_destroy(model), RONDO_OK);
    return out;
  }
  test::TempFolder folder_;
};

void expect(rondo_status status, rondo_status wanted, const std::string& part) {
  EXPECT_EQ(status, wanted) << rondo_last_error();
  EXPECT_NE(std::string(rondo_last_error()).find(part), std::string::npos) << rondo_last_error();
}

TEST_F(CApi, TrainsAsThePlainLoopDoes) {
  manual_seed(3);
  nn::AutoModelForCausalLM model = nn::AutoModelForCausalLM::from_pretrained(folder_ / "model");
  nn::add_lora(*model, {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {"c_attn", "c_fc"}});
  optim::AdamW optimizer(model->parameters(), {.lr = 1e-2, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  model->train();
  std::vector<int64_t> x, y;
  for (int b = 0; b < 2; ++b)
    for (int t = 0; t < 5; ++t) x.push_back(kRows[b * 6 + t]), y.push_back(kRows[b * 6 + t + 1]);
  std::vector<double> plain;
  for (int i = 0; i < 8; ++i) {
    const Tensor loss = model.loss(Tensor::from(x, {2, 5}), Tensor::from(y, {2, 5}));
    loss.backward();
    optimizer.step({.max_norm = 1, .zero_grad = true});
    plain.push_back(loss.item());
  }
  EXPECT_EQ(losses(), plain);
  EXPECT_NE(losses(4), plain);  // another seed, other adapters and dropout
}

TEST_F(CApi, ModelsInThreadsGiveTheBitsOfOneAfterTheOther) {
  const std::vector<double> alone = losses(), other = losses(9);
  std::vector<double> a, b;
  std::thread first([&] { a = losses(); }), second([&] { b = losses(9); });
  first.join();
  second.join();
  EXPECT_EQ(a, alone);
  EXPECT_EQ(b, other);
}

TEST_F(CApi, ARandomStreamBelongsToTheModelAndNotToTheThread) {
  manual_seed(5);
  const double before = Tensor::randn({1}).item();
  manual_seed(5);
  losses();
  EXPECT_EQ(Tensor::randn({1}).item(), before);
}

TEST_F(CApi, CompiledStepsTrain) {
  rondo_model* model = nullptr;
  rondo_model_options options{};
  options.size = sizeof options;
  options.compile = 1;
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  ASSERT_EQ(rondo_model_create((folder_ / "model").c_str(), &options, &model), RONDO_OK) << rondo_last_error();
  rondo_model_destroy(model);
  const std::vector<double> eager = losses(3, false), compiled = losses(3, true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_NEAR(compiled[i], eager[i], 1e-4);
}

TEST_F(CApi, LabelsAndPaddingCountAsTheySay) {
  rondo_model* model = create();
  const int32_t labels[] = {-100, -100, 40, 3, -100, -100, 7, 8, -100, 2, 1, 77};
  double all = 0, some = 0;
  ASSERT_EQ(rondo_evaluate_tokens(model, kRows, nullptr, 2, 6, &all), RONDO_OK);
  ASSERT_EQ(rondo_evaluate_tokens(model, kRows, labels, 2, 6, &some), RONDO_OK);
  EXPECT_NE(all, some);
  // A short text beside a long one: the mean over both texts' tokens.
  double both = 0, first = 0, second = 0;
  int64_t n[2];
  for (int i = 0; i < 2; ++i) ASSERT_EQ(rondo_encode(model, kTexts[i], nullptr, 0, &n[i]), RONDO_OK);
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &both), RONDO_OK);
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 1, &first), RONDO_OK);
  ASSERT_EQ(rondo_evaluate_text(model, kTexts + 1, 1, &second), RONDO_OK);
  const auto a = static_cast<double>(n[0] - 1), b = static_cast<double>(n[1] - 1);
  EXPECT_NEAR(both, (first * a + second * b) / (a + b), 1e-5);
  rondo_model_destroy(model);
}

struct Stream {
  std::string text;
  std::vector<int32_t> tokens;
  size_t wanted = std::numeric_limits<size_t>::max();
};
int32_t on_token(void* user, int32_t token) {
  auto& stream = *static_cast<Stream*>(user);
  stream.tokens.push_back(token);
  return stream.tokens.size() == stream.wanted;
}
int32_t on_text(void* user, const char* piece, size_t bytes) {
  EXPECT_EQ(std::strlen(piece), bytes);
  static_cast<Stream*>(user)->text += piece;
  return 0;
}

TEST_F(CApi, PiecesAreTheText) {
  rondo_model* model = create(11);
  const char* const stops[] = {"e t", "ing"};
  for (int round = 0; round < 12; ++round) {
    Stream stream;
    rondo_generate_options options{};
    options.size = sizeof options;
    options.max_new_tokens = 40;
    options.temperature = 1.5;  // many tokens that are parts of characters
    options.stop = stops;
    options.stop_count = round % 2 == 0 ? 0 : 2;
    options.on_token = on_token;
    options.on_text = on_text;
    options.user = &stream;
    char* text = nullptr;
    rondo_finish_reason reason = -1;
    ASSERT_EQ(rondo_generate_text(model, "the water", &options, &text, &reason), RONDO_OK) << rondo_last_error();
    EXPECT_EQ(stream.text, text);
    EXPECT_TRUE(reason == RONDO_FINISH_STOP || reason == RONDO_FINISH_LENGTH || reason == RONDO_FINISH_END) << reason;
    if (options.stop_count > 0) {
      for (const char* stop : stops) EXPECT_EQ(stream.text.find(stop), std::string::npos);
    }
    if (reason == RONDO_FINISH_LENGTH) {
      EXPECT_EQ(stream.tokens.size(), 40u);
    }
    rondo_free(text);
  }
  Stream stream{.text = "", .tokens = {}, .wanted = 3};
  rondo_generate_options options{};
  options.size = sizeof options;
  options.on_token = on_token;
  options.user = &stream;
  const int32_t prompt[] = {5, 6};
  int32_t made[128];
  int64_t count = 0;
  rondo_finish_reason reason = -1;
  ASSERT_EQ(rondo_generate_tokens(model, prompt, 2, &options, made, 128, &count, &reason), RONDO_OK);
  EXPECT_EQ(reason, RONDO_FINISH_CANCELLED);
  EXPECT_EQ(std::vector<int32_t>(made, made + count), stream.tokens);
  EXPECT_EQ(count, 3);
  rondo_model_destroy(model);
}

TEST_F(CApi, CallsWithOneModelTakeTurns) {
  rondo_model* model = create();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 5; ++n) {
        double loss = 0;
        char* text = nullptr;
        rondo_generate_options options{};
        options.size = sizeof options;
        options.max_new_tokens = 3;
        const rondo_status status = i % 2 == 0 ? rondo_train_text(model, kTexts, 2, &loss)
                                               : rondo_generate_text(model, "the", &options, &text, nullptr);
        failed += status != RONDO_OK;
        rondo_free(text);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(rondo_model_destroy(model), RONDO_OK);
}

struct Inside {
  rondo_model* model;
  std::vector<rondo_status> statuses;
};
TEST_F(CApi, ACallbackMayNotCallItsOwnModel) {
  Inside inside{create(), {}};
  rondo_generate_options options{};
  options.size = sizeof options;
  options.user = &inside;
  options.on_token = [](void* user, int32_t) -> int32_t {
    auto& in = *static_cast<Inside*>(user);
    in.statuses = {rondo_set_learning_rate(in.model, 1), rondo_model_destroy(in.model)};
    return 1;
  };
  char* text = nullptr;
  EXPECT_EQ(rondo_generate_text(inside.model, "the", &options, &text, nullptr), RONDO_OK);
  rondo_free(text);
  EXPECT_EQ(inside.statuses, (std::vector<rondo_status>{RONDO_BUSY, RONDO_BUSY}));
  EXPECT_EQ(rondo_model_destroy(inside.model), RONDO_OK);
}

TEST_F(CApi, DestroyWaitsForCallsAndRefusesLaterOnes) {
  rondo_model* model = create();
  std::atomic<bool> started{false};
  rondo_status trained = RONDO_OK;
  std::thread worker([&] {
    while (trained == RONDO_OK) {
      trained = rondo_train_text(model, kTexts, 2, nullptr);
      started = true;
    }
  });
  while (!started) std::this_thread::yield();
  EXPECT_EQ(rondo_model_destroy(model), RONDO_OK);
  worker.join();
  EXPECT_EQ(trained, RONDO_BAD_ARGUMENT);
  expect(rondo_model_destroy(model), RONDO_BAD_ARGUMENT, "destroyed");
}

TEST_F(CApi, WrongCallsAreErrorsAndChangeNothing) {
  rondo_model* model = create();
  const rondo_lora_options good = lora();
  double loss = -1, before = 0, after = 0;
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &before), RONDO_OK);
  expect(rondo_model_create(nullptr, nullptr, &model), RONDO_BAD_ARGUMENT, "folder is a null pointer");
  expect(rondo_model_create("x", nullptr, nullptr), RONDO_BAD_ARGUMENT, "model is a null pointer");
  expect(rondo_add_lora(nullptr, &good), RONDO_BAD_ARGUMENT, "null pointer");
  expect(rondo_add_lora(reinterpret_cast<rondo_model*>(&loss), &good), RONDO_BAD_ARGUMENT, "no such model");
  EXPECT_EQ(rondo_model_destroy(nullptr), RONDO_OK);
  rondo_free(nullptr);

  // Options
  rondo_lora_options bad = good;
  bad.size = 0;
  expect(rondo_add_lora(model, &bad), RONDO_BAD_ARGUMENT, "sizeof(rondo_lora_options)");
  bad = good, bad.rank = -1;
  expect(rondo_add_lora(model, &bad), RONDO_BAD_ARGUMENT, "rank");
  bad = good, bad.reserved = 1;
  expect(rondo_add_lora(model, &bad), RONDO_BAD_ARGUMENT, "reserved");
  bad = good, bad.targets = "nothing_of_this_name";
  expect(rondo_add_lora(model, &bad), RONDO_BAD_ARGUMENT, "c_attn");
  struct Newer {
    rondo_lora_options known;
    int64_t field;
  } newer{good, 0};
  newer.known.size = sizeof newer;
  newer.field = 1;
  expect(rondo_add_lora(model, &newer.known), RONDO_BAD_ARGUMENT, "does not know");
  rondo_optimizer_options step = adamw(std::nan(""));
  expect(rondo_set_optimizer(model, &step), RONDO_BAD_ARGUMENT, "lr");
  step = adamw(1e-3), step.beta1 = 1;
  expect(rondo_set_optimizer(model, &step), RONDO_BAD_ARGUMENT, "beta");
  expect(rondo_set_learning_rate(model, -1), RONDO_BAD_ARGUMENT, "lr");
  rondo_model_options of_model{};
  of_model.size = sizeof of_model;
  of_model.dtype = "int8";
  rondo_model* none = nullptr;
  expect(rondo_model_create((folder_ / "model").c_str(), &of_model, &none), RONDO_BAD_ARGUMENT, "int8");
  of_model.dtype = nullptr;
  of_model.device = "gpu";
  expect(rondo_model_create((folder_ / "model").c_str(), &of_model, &none), RONDO_BAD_ARGUMENT, "\"gpu\"");
  of_model.device = "cuda:100";
  std::string why_not;
  expect(rondo_model_create((folder_ / "model").c_str(), &of_model, &none), RONDO_BAD_ARGUMENT,
         device_count(Backend::kCUDA, &why_not) == 0 ? why_not.c_str() : "no device cuda:100");

  // Rows
  const int32_t outside[] = {1, 700, 2};
  expect(rondo_train_tokens(model, nullptr, nullptr, 2, 6, &loss), RONDO_BAD_ARGUMENT, "tokens");
  expect(rondo_train_tokens(model, kRows, nullptr, 0, 6, &loss), RONDO_BAD_ARGUMENT, "batch");
  expect(rondo_train_tokens(model, kRows, nullptr, 2, 1, &loss), RONDO_BAD_ARGUMENT, "length");
  expect(rondo_train_tokens(model, kRows, nullptr, 1, int64_t{1} << 62, &loss), RONDO_BAD_ARGUMENT, "64 positions");
  expect(rondo_train_tokens(model, kRows, nullptr, std::numeric_limits<int64_t>::max(), 2, &loss), RONDO_BAD_ARGUMENT,
         "batch");
  expect(rondo_train_tokens(model, outside, nullptr, 1, 3, &loss), RONDO_BAD_ARGUMENT, "700");
  const int32_t ignored[] = {-100, -100, -100};
  expect(rondo_train_tokens(model, kRows, ignored, 1, 3, &loss), RONDO_BAD_ARGUMENT, "-100");
  const int32_t wrong[] = {-100, -1, 3};
  expect(rondo_train_tokens(model, kRows, wrong, 1, 3, &loss), RONDO_BAD_ARGUMENT, "label -1");
  expect(rondo_train_text(model, nullptr, 2, &loss), RONDO_BAD_ARGUMENT, "texts");
  expect(rondo_train_text(model, kTexts, 0, &loss), RONDO_BAD_ARGUMENT, "count");
  const char* const holes[] = {"the people", nullptr};
  expect(rondo_train_text(model, holes, 2, &loss), RONDO_BAD_ARGUMENT, "text 1");
  const char* const broken[] = {"the \xFF people"};
  expect(rondo_train_text(model, broken, 1, &loss), RONDO_BAD_ARGUMENT, "UTF-8");
  std::string endless;
  for (int i = 0; i < 200; ++i) endless += "the people ";
  const char* const too_long[] = {endless.c_str()};
  expect(rondo_train_text(model, too_long, 1, &loss), RONDO_BAD_ARGUMENT, "64 positions");
  expect(rondo_evaluate_text(model, kTexts, 2, nullptr), RONDO_BAD_ARGUMENT, "loss");
  EXPECT_EQ(loss, -1);

  // Generation
  rondo_generate_options g{};
  g.size = sizeof g;
  char* text = nullptr;
  int32_t ids[4];
  int64_t count = -1;
  expect(rondo_generate_text(model, nullptr, &g, &text, nullptr), RONDO_BAD_ARGUMENT, "prompt");
  expect(rondo_generate_text(model, "the", &g, nullptr, nullptr), RONDO_BAD_ARGUMENT, "text");
  expect(rondo_generate_text(model, "", &g, &text, nullptr), RONDO_BAD_ARGUMENT, "empty");
  expect(rondo_generate_tokens(model, kRows, 2, &g, ids, 4, &count, nullptr), RONDO_BAD_ARGUMENT, "capacity");
  expect(rondo_generate_tokens(model, kRows, -1, nullptr, ids, 128, &count, nullptr), RONDO_BAD_ARGUMENT, "prompt");
  g.max_new_tokens = -1;
  expect(rondo_generate_text(model, "the", &g, &text, nullptr), RONDO_BAD_ARGUMENT, "max_new_tokens");
  g.max_new_tokens = std::numeric_limits<int64_t>::max();  // until the model is full
  rondo_finish_reason reason = -1;
  EXPECT_EQ(rondo_generate_text(model, "the", &g, &text, &reason), RONDO_OK) << rondo_last_error();
  EXPECT_TRUE(reason == RONDO_FINISH_MODEL_FULL || reason == RONDO_FINISH_END);
  rondo_free(text);
  text = nullptr;
  g.top_p = -1;
  expect(rondo_generate_text(model, "the", &g, &text, nullptr), RONDO_BAD_ARGUMENT, "top_p");
  g.top_p = 0, g.stop_count = 1;
  expect(rondo_generate_text(model, "the", &g, &text, nullptr), RONDO_BAD_ARGUMENT, "stop");
  expect(rondo_encode(model, "the", nullptr, 4, &count), RONDO_BAD_ARGUMENT, "ids");
  expect(rondo_decode(model, nullptr, 4, &text), RONDO_BAD_ARGUMENT, "ids");
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(count, -1);

  // Files
  expect(rondo_save_adapter(model, (folder_ / "adapter").c_str()), RONDO_BAD_ARGUMENT, "");
  expect(rondo_load_adapter(model, "/nowhere"), RONDO_BAD_FILE, "/nowhere");
  expect(rondo_set_num_threads(0), RONDO_BAD_ARGUMENT, "0");
  expect(rondo_set_memory_limit(-1), RONDO_BAD_ARGUMENT, "-1");
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &after), RONDO_OK);
  EXPECT_EQ(before, after);
  rondo_model_destroy(model);
}

TEST_F(CApi, ErrorsHaveKinds) {
  rondo_model* model = nullptr;
  std::ofstream(folder_ / "model/config.json") << R"({"model_type": "gpt2", "n_layer": -1})";
  expect(rondo_model_create((folder_ / "model").c_str(), nullptr, &model), RONDO_BAD_MODEL, "n_layer");
  nn::GPT2 other({.vocab_size = 300, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 32}, 1);
  nn::save_pretrained(other, folder_ / "model");
  model = create();
  double loss = 0;
  expect(rondo_train_text(model, kTexts, 2, &loss), RONDO_BAD_ARGUMENT, "is not this model's");
  // An adapter of another model.
  const rondo_lora_options o = lora();
  ASSERT_EQ(rondo_add_lora(model, &o), RONDO_OK);
  ASSERT_EQ(rondo_save_adapter(model, (folder_ / "adapter").c_str()), RONDO_OK);
  expect(rondo_save_model(model, (folder_ / "saved").c_str()), RONDO_BAD_ARGUMENT, "");
  rondo_model_destroy(model);
  nn::GPT2 wide({.vocab_size = 300, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 16}, 1);
  nn::save_pretrained(wide, folder_ / "model");
  model = create();
  expect(rondo_load_adapter(model, (folder_ / "adapter").c_str()), RONDO_BAD_MODEL, "c_attn");
  rondo_model_destroy(model);
  // Memory, beyond what was freed and kept
  ASSERT_EQ(rondo_trim_memory(), RONDO_OK);
  ASSERT_EQ(rondo_set_memory_limit(1), RONDO_OK);
  expect(rondo_model_create((folder_ / "model").c_str(), nullptr, &model), RONDO_OUT_OF_MEMORY, "limit of 1");
  ASSERT_EQ(rondo_set_memory_limit(0), RONDO_OK);
  // No tokenizer: token ids only.
  std::filesystem::remove(folder_ / "model/tokenizer.json");
  model = create();
  expect(rondo_train_text(model, kTexts, 2, &loss), RONDO_BAD_ARGUMENT, "no tokenizer");
  const int32_t prompt[] = {5, 6};
  int32_t made[128];
  int64_t count = 0;
  EXPECT_EQ(rondo_generate_tokens(model, prompt, 2, nullptr, made, 128, &count, nullptr), RONDO_OK);
  EXPECT_EQ(count, 62 + 1);  // the model is full; the last token is never fed
  rondo_model_destroy(model);
}

TEST_F(CApi, OutOfMemoryInAStepLeavesAModelThatTrainsOn) {
  const std::vector<double> alone = losses();
  rondo_model* model = create(3);
  const rondo_lora_options o = lora();
  const rondo_optimizer_options a = adamw(1e-2);
  ASSERT_EQ(rondo_add_lora(model, &o), RONDO_OK);
  ASSERT_EQ(rondo_set_optimizer(model, &a), RONDO_OK);
  double before = 0, after = 0, loss = 0;
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &before), RONDO_OK);
  // The limit grows until a step fits; each step that does not fit changes nothing.
  int refused = 0;
  int64_t in_use = 0;
  rondo_trim_memory();
  rondo_memory(&in_use, nullptr);
  for (int64_t limit = in_use;; limit += 64 << 10) {
    rondo_trim_memory();
    ASSERT_EQ(rondo_set_memory_limit(limit), RONDO_OK);
    const rondo_status status = rondo_train_text(model, kTexts, 2, &loss);
    ASSERT_EQ(rondo_set_memory_limit(0), RONDO_OK);
    if (status == RONDO_OK) break;
    ASSERT_EQ(status, RONDO_OUT_OF_MEMORY) << rondo_last_error();
    ++refused;
    ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &after), RONDO_OK);
    ASSERT_EQ(before, after) << "after " << refused << " steps that did not fit";
    ASSERT_LT(refused, 10000);
  }
  EXPECT_GT(refused, 3);
  rondo_model_destroy(model);
}

TEST(CApiSettings, AreThoseOfTheProcess) {
  const int before = num_threads();
  ASSERT_EQ(rondo_set_num_threads(3), RONDO_OK);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(before);
  const int64_t cache = allocator::cache_limit();
  ASSERT_EQ(rondo_set_cache_limit(5), RONDO_OK);
  EXPECT_EQ(allocator::cache_limit(), 5);
  allocator::set_cache_limit(cache);
  std::string heard;
  const auto log = [](void* user, const char* message) { static_cast<std::string*>(user)->append(message); };
  ASSERT_EQ(rondo_set_log(log, &heard), RONDO_OK);
  compile::log::warn_once("for c_api_test.cc");
  EXPECT_NE(heard.find("for c_api_test.cc\n"), std::string::npos) << heard;
  ASSERT_EQ(rondo_set_log(nullptr, nullptr), RONDO_OK);
}

TEST_F(CApi, EveryFamilyAndDtypeTrains) {
  for (const char* family : {"gpt2", "llama2", "llama3", "qwen2", "qwen3", "mistral"})
    for (const char* dtype : {"float32", "bfloat16", "float64", "auto"})
      for (const int32_t bf16 : {0, 1}) {
        rondo_model_options options{};
        options.size = sizeof options;
        options.dtype = dtype;
        options.bf16 = bf16;
        rondo_model* model = nullptr;
        const std::string folder = std::string(tests::kReferenceDir) + "/pretrained/" + family;
        ASSERT_EQ(rondo_model_create(folder.c_str(), &options, &model), RONDO_OK) << rondo_last_error();
        const rondo_optimizer_options a = adamw(1e-2);
        ASSERT_EQ(rondo_set_optimizer(model, &a), RONDO_OK);
        const int32_t rows[] = {5, 17, 40, 3, 9, 31, 7, 8, 60, 2, 1, 57};  // of 61 tokens
        double first = 0, last = 0;
        ASSERT_EQ(rondo_evaluate_tokens(model, rows, nullptr, 2, 6, &first), RONDO_OK) << rondo_last_error();
        for (int i = 0; i < 10; ++i)
          ASSERT_EQ(rondo_train_tokens(model, rows, nullptr, 2, 6, &last), RONDO_OK) << rondo_last_error();
        EXPECT_LT(last, first - 0.1) << family << " " << dtype << " " << bf16;
        rondo_generate_options g{};
        g.size = sizeof g;
        g.max_new_tokens = 4;
        int32_t made[4];
        int64_t count = 0;
        EXPECT_EQ(rondo_generate_tokens(model, rows, 3, &g, made, 4, &count, nullptr), RONDO_OK) << rondo_last_error();
        EXPECT_EQ(count, 4);
        EXPECT_EQ(rondo_model_destroy(model), RONDO_OK);
      }
}

TEST_F(CApi, ASavedModelHasItsTokenizerWhereverTheHostIsNow) {
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  rondo_model* model = nullptr;
  EXPECT_EQ(rondo_model_create("model", nullptr, &model), RONDO_OK) << rondo_last_error();
  std::filesystem::current_path(here);
  const std::string saved = folder_ / "saved";
  ASSERT_EQ(rondo_save_model(model, saved.c_str()), RONDO_OK) << rondo_last_error();
  double before = 0, after = 0;
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &before), RONDO_OK);
  rondo_model_destroy(model);
  ASSERT_EQ(rondo_model_create(saved.c_str(), nullptr, &model), RONDO_OK) << rondo_last_error();
  ASSERT_EQ(rondo_evaluate_text(model, kTexts, 2, &after), RONDO_OK) << rondo_last_error();
  EXPECT_EQ(before, after);
  // The first folder loses its tokenizer: a save says so.
  std::filesystem::remove(saved + "/tokenizer.json");
  expect(rondo_save_model(model, (folder_ / "again").c_str()), RONDO_BAD_FILE, "no tokenizer");
  rondo_model_destroy(model);
}

// Threads that make any call with any handle and any small argument, right or wrong. Nothing crashes or hangs, and
// every status is one of the list.
TEST_F(CApi, RandomCallsFromThreads) {
  const std::string folder = folder_ / "model", saved = folder_ / "saved", adapter = folder_ / "adapter";
  std::atomic<rondo_model*> handles[3] = {create(1), create(2), nullptr};
  std::atomic<int> calls{0}, good{0};
  const auto call_all = [&](uint64_t seed) {
    uint64_t offset = 0;
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(philox(seed, offset++, 0)[0] % static_cast<uint64_t>(n));
    };
    for (int i = 0; i < 250; ++i) {
      std::atomic<rondo_model*>& slot = handles[pick(3)];
      rondo_model* const model = slot.load();
      const int64_t batch = pick(4) - 1, length = pick(8) - 1;
      double loss = 0;
      int64_t count = 0;
      int32_t ids[200];
      char* text = nullptr;
      rondo_generate_options g{};
      g.size = pick(9) == 0 ? 3 : sizeof g;
      g.max_new_tokens = pick(6) - 1;
      if (g.max_new_tokens == 0) g.max_new_tokens = 1;
      g.temperature = static_cast<double>(pick(4) - 1);
      g.top_k = pick(5) - 1;
      rondo_lora_options l = lora();
      l.rank = pick(6) - 1;
      rondo_status status = RONDO_OK;
      switch (pick(16)) {
        case 0: {
          rondo_model* made = nullptr;
          status = rondo_model_create(pick(4) == 0 ? nullptr : folder.c_str(), nullptr, &made);
          if (made != nullptr) rondo_model_destroy(slot.exchange(made));
          break;
        }
        case 1: status = rondo_model_destroy(pick(3) == 0 ? model : nullptr); break;
        case 2: status = rondo_add_lora(model, &l); break;
        case 3: status = rondo_merge_adapter(model); break;
        case 4: status = rondo_save_adapter(model, adapter.c_str()); break;
        case 5: status = rondo_load_adapter(model, adapter.c_str()); break;
        case 6: status = rondo_save_model(model, saved.c_str()); break;
        case 7: status = rondo_set_learning_rate(model, static_cast<double>(pick(3)) - 1); break;
        case 8:
          status = rondo_evaluate_tokens(model, kRows, pick(2) == 0 ? nullptr : kRows, batch, length, &loss);
          break;
        case 9: status = rondo_evaluate_text(model, kTexts, pick(3), &loss); break;
        case 10: status = rondo_generate_text(model, pick(5) == 0 ? "" : "the", &g, &text, nullptr); break;
        case 11: status = rondo_generate_tokens(model, kRows, pick(4), &g, ids, 200, &count, nullptr); break;
        case 12: status = rondo_encode(model, kTexts[0], ids, pick(20), &count); break;
        case 13: status = rondo_decode(model, kRows, pick(6) - 1, &text); break;
        default: status = rondo_train_tokens(model, kRows, nullptr, batch, length, &loss);
      }
      rondo_free(text);
      ++calls;
      good += status == RONDO_OK;
      if (status < RONDO_OK || status > RONDO_OTHER) ADD_FAILURE() << status;
      // Statuses that no such call may have.
      if (status == RONDO_OTHER || status == RONDO_BUSY || status == RONDO_OUT_OF_MEMORY)
        ADD_FAILURE() << status << ": " << rondo_last_error();
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(call_all, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(good, calls / 10);
  EXPECT_LT(good, calls * 9 / 10);
  for (auto& handle : handles) rondo_model_destroy(handle.load());
}

}  // namespace
}  // namespace rondo
