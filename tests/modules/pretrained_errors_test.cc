// Folders that are broken, incomplete or hostile: typed errors that name what is wrong, and nothing else happens.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/modules/pretrained_cases.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
namespace fs = std::filesystem;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

// A copy of a recorded folder that a test may spoil.
struct Copy : TempFolder {
  explicit Copy(const std::string& name) : name(name) {
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(recorded_folder(name) + "/" + file, *this / file);
  }
  std::string name;
  std::string config() const { return read_bytes(*this / "config.json"); }
  void set(std::string_view field, std::string_view value) {
    std::string text = config();
    const std::string quoted = "\"" + std::string(field) + "\": ";
    const size_t at = text.find(quoted);
    if (at == text.npos) {
      text.insert(1, quoted + std::string(value) + ",");
    } else {
      const size_t begin = at + quoted.size();
      text.replace(begin, text.find_first_of(",\n", begin) - begin, value);
    }
    write_bytes(*this / "config.json", text);
  }
  void load(const PretrainedOptions& options = {}) const { load_case(name, path(), options, {}); }
  ConfigProblems problems(const PretrainedOptions& options = {}) const {
    try {
      load(options);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.path(), *this / "config.json");
      return error.problems();
    }
    return {};
  }
};

using Names = std::vector<std::string>;

TEST(PretrainedConfig, ListsEveryFieldThatChangesTheMathematics) {
  Copy gpt2("gpt2");
  gpt2.set("scale_attn_weights", "false");
  gpt2.set("scale_attn_by_inverse_layer_idx", "true");
  gpt2.set("tie_word_embeddings", "false");
  gpt2.set("activation_function", "\"relu\"");
  gpt2.set("add_cross_attention", "true");
  const Names unsupported = gpt2.problems().unsupported;
  EXPECT_EQ(std::set<std::string>(unsupported.begin(), unsupported.end()),
            (std::set<std::string>{"scale_attn_weights: false", "scale_attn_by_inverse_layer_idx: true",
                                   "tie_word_embeddings: false", "activation_function: \"relu\"",
                                   "add_cross_attention: true"}));
  const struct {
    const char *name, *field, *value, *problem;
  } cases[] = {
      {"llama2", "hidden_act", "\"gelu\"", "hidden_act: \"gelu\""},
      {"llama2", "attention_dropout", "0.5", "attention_dropout: 0.5"},
      {"llama2", "rope_type", "\"longrope\"", "rope_parameters.rope_type: \"longrope\""},
      {"llama2", "partial_rotary_factor", "0.5", "partial_rotary_factor: 0.5"},
      {"qwen3", "quantization_config", "{\"bits\": 4}", "quantization_config: {\"bits\": 4}"},
      {"mistral", "attention_bias", "true", "attention_bias: true"},
      {"bert_sequence", "position_embedding_type", "\"relative_key\"", "position_embedding_type: \"relative_key\""},
      {"bert_token", "is_decoder", "true", "is_decoder: true"},
      {"bert_token", "pruned_heads", "{\"0\": [1]}", "pruned_heads: {\"0\": [1]}"},
      {"roberta_sequence", "problem_type", "\"ranking\"", "problem_type: \"ranking\""},
      {"roberta_sequence", "pad_token_id", "-2", "pad_token_id: -2"},
      {"roberta_sequence", "pad_token_id", "null", "pad_token_id: null"},
      {"vit", "hidden_act", "\"quick_gelu\"", "hidden_act: \"quick_gelu\""},
      {"distilbert_token", "activation", "\"relu\"", "activation: \"relu\""},
      {"bert_masked", "tie_word_embeddings", "false", "tie_word_embeddings: false"},
      {"distilbert_masked", "tie_word_embeddings", "false", "tie_word_embeddings: false"},
      {"llama_sequence", "problem_type", "\"ranking\"", "problem_type: \"ranking\""},
      {"gpt2", "model_type", "\"gemma\"",
       "model_type: \"gemma\" (there are gpt2, llama, qwen2, qwen3, mistral, bert, roberta, distilbert, vit, "
       "segformer, vision-encoder-decoder)"},
  };
  for (const auto& c : cases) {
    Copy folder(c.name);
    folder.set(c.field, c.value);
    EXPECT_EQ(folder.problems().unsupported, Names{c.problem}) << c.field;
    EXPECT_EQ(folder.problems({.allow_unknown_fields = true}).unsupported, Names{c.problem}) << c.field;
  }
  // An override makes the field's value irrelevant.
  Copy dropout("llama2");
  dropout.set("attention_dropout", "0.5");
  EXPECT_NO_THROW(dropout.load({.dropout = 0.0}));
  // And an error shows the caller's value.
  EXPECT_EQ(dropout.problems({.dropout = 0.25}).unsupported, Names{"attention_dropout: 0.25"});
  EXPECT_EQ(Copy("bert_sequence").problems({.num_labels = 1, .problem_type = ProblemType::kSingleLabel}).invalid,
            Names{"problem_type: \"single_label_classification\", wanted \"regression\", or at least two labels"});
}

TEST(PretrainedConfig, UnknownFieldsAreListedUnlessAllowed) {
  Copy folder("llama2");
  folder.set("attention_multiplier", "0.5");
  folder.set("rope_type", "\"default\", \"beta_fast\": 32, \"beta_last\": 3");
  EXPECT_EQ(folder.problems().unknown, (Names{"rope_parameters.beta_last: 3", "attention_multiplier: 0.5"}));
  EXPECT_NO_THROW(folder.load({.allow_unknown_fields = true}));
}

// Fields that change the mathematics by a rule of the reference that is easily missed.
TEST(PretrainedConfig, TheReferencesRules) {
  const auto llama = [](const std::string& rope) {
    Copy folder("llama2");
    const std::string text = folder.config();
    const size_t at = text.find("\"rope_parameters\""), end = text.find('}', at) + 1;
    write_bytes(folder / "config.json", text.substr(0, at) + rope + text.substr(end));
    return folder.problems().missing.empty() ? AutoModelForCausalLM::from_pretrained(folder.path()).as<Llama>()->config
                                             : throw Error(folder.problems().missing[0]);
  };
  using Kind = RopeScaling::Kind;
  const std::string llama3 = R"("factor": 8, "low_freq_factor": 1, "high_freq_factor": 4)";
  // Where a file has both, rope_scaling alone counts, and an empty one is none.
  LlamaConfig c = llama(R"("rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 77})");
  EXPECT_TRUE(c.rope_scaling.kind == Kind::kLinear && c.rope_scaling.factor == 2 && c.rope_base == 10000);
  c = llama(R"("rope_scaling": {}, "rope_theta": 5, "rope_parameters": {"rope_theta": 77})");
  EXPECT_TRUE(c.rope_scaling.kind == Kind::kNone && c.rope_base == 77);
  // The first training's length: the file's, outside before inside, else max_position_embeddings.
  c = llama(R"("rope_scaling": {"rope_type": "llama3", )" + llama3 + "}");
  EXPECT_EQ(c.rope_scaling.original_positions, 32);
  c = llama(R"("original_max_position_embeddings": 4, "rope_scaling": {"original_max_position_embeddings": 8,
      "rope_type": "llama3", )" +
            llama3 + "}");
  EXPECT_EQ(c.rope_scaling.original_positions, 4);
  EXPECT_EQ(error_of([&] { llama(R"("rope_scaling": {"rope_type": "llama3", "factor": 8})"); }),
            "rope_scaling.low_freq_factor");
  EXPECT_EQ(error_of([&] { llama(R"("rope_scaling": {"rope_type": "yarn"})"); }), "rope_scaling.factor");
  c = llama(R"("rope_scaling": {"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 8,
      "mscale": 0.5, "mscale_all_dim": 0.25})");
  EXPECT_EQ(c.rope_scaling.factor, 4);
  EXPECT_NEAR(*c.rope_scaling.attention_factor, (0.05 * std::log(4) + 1) / (0.025 * std::log(4) + 1), 1e-12);
  EXPECT_EQ(c.max_length(), 32);
  // A row of padding counts from the end if negative; null is none.
  Copy bert("bert_sequence");
  const auto padding = [&] {
    return AutoModelForSequenceClassification::from_pretrained(bert.path())
        .as<BertForSequenceClassification>()
        ->config.padding_idx;
  };
  EXPECT_EQ(padding(), 0);
  bert.set("pad_token_id", "-1");
  EXPECT_EQ(padding(), 60);
  bert.set("pad_token_id", "null");
  EXPECT_EQ(padding(), std::nullopt);
  // Names of classes count, not num_labels.
  bert.set("num_labels", "7");
  EXPECT_NO_THROW(bert.load());
  Copy vit("vit");
  vit.set("image_size", "[16, 8]");
  EXPECT_EQ(vit.problems().unsupported, Names{"image_size: [16, 8]"});
  // Mistral's code ignores layer_types.
  Copy mistral("mistral");
  mistral.set("layer_types", "[\"full_attention\", \"sliding_attention\"]");
  EXPECT_EQ(mistral.problems().unsupported.size(), 1u);
}

TEST(PretrainedConfig, MissingAndInvalidFields) {
  Copy folder("llama2");
  write_bytes(folder / "config.json", "{\"model_type\": \"llama\"}");
  EXPECT_EQ(folder.problems().missing,
            (Names{"vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"}));
  write_bytes(folder / "config.json", "{}");
  EXPECT_EQ(folder.problems().missing, Names{"model_type"});
  const struct {
    const char *name, *field, *value;
  } cases[] = {
      {"gpt2", "n_layer", "-2"},
      {"gpt2", "n_layer", "0"},
      {"gpt2", "n_layer", "100000000"},
      {"gpt2", "n_embd", "16.5"},
      {"gpt2", "n_embd", "99999999999999999999"},
      {"gpt2", "vocab_size", "\"61\""},
      {"gpt2", "resid_pdrop", "1.5"},
      {"gpt2", "layer_norm_epsilon", "0"},
      {"gpt2", "layer_norm_epsilon", "1e999"},
      {"gpt2", "n_head", "[4]"},
      {"llama2", "rms_norm_eps", "-1e-6"},
      {"llama2", "num_key_value_heads", "3"},
      {"llama2", "head_dim", "3"},
      {"llama2", "tie_word_embeddings", "1"},
      {"llama2", "pad_token_id", "61"},
      {"llama2", "pad_token_id", "-62"},
      {"llama2", "rope_theta", "-5"},
      {"llama3", "factor", "0"},
      {"llama3", "high_freq_factor", "0.5"},
      {"qwen2", "layer_types", "[\"full_attention\"]"},
      {"qwen2", "layer_types", "[\"full_attention\", 3]"},
      {"mistral", "sliding_window", "0"},
      {"bert_sequence", "id2label", "3"},
      {"bert_sequence", "num_attention_heads", "5"},
      {"bert_sequence", "pad_token_id", "61"},
      {"roberta_token", "max_position_embeddings", "3"},
      {"vit", "patch_size", "5"},
      {"vit", "image_size", "[16]"},
      {"vit", "image_size", "[16, -16]"},
      {"bert_regression_sequence", "problem_type", "\"single_label_classification\""},
  };
  for (const auto& c : cases) {
    Copy folder(c.name);
    std::string text = folder.config();
    if (c.field == std::string("layer_types") || c.field == std::string("id2label"))  // values of several lines
      text = replaced(text, "\"" + std::string(c.field) + "\"", "\"transformers_weights\": null, \"ignored\"");
    write_bytes(folder / "config.json", text);
    folder.set(c.field, c.value);
    const ConfigProblems problems = folder.problems({.allow_unknown_fields = true});
    ASSERT_FALSE(problems.invalid.empty()) << c.name << " " << c.field << " " << c.value;
    EXPECT_NE(problems.invalid[0].find(c.field), std::string::npos) << problems.invalid[0];
  }
}

TEST(PretrainedConfig, NotJson) {
  Copy folder("gpt2");
  const std::string good = folder.config();
  std::string nested = "{\"model_type\": \"gpt2\", \"x\": ";
  for (int i = 0; i < 100000; ++i) nested += "[";
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("null"), std::string("\xff\xfe"), nested, good + "x",
        replaced(good, "\"n_head\"", "\"n_embd\""), good.substr(0, good.size() / 2), std::string("{\"a\": NaN}"),
        std::string(20 << 20, ' ')}) {
    write_bytes(folder / "config.json", bad);
    EXPECT_THROW(folder.load(), FileError) << bad.substr(0, 40);
  }
  fs::remove(folder / "config.json");
  EXPECT_THROW(folder.load(), FileError);
  fs::create_directory(folder / "config.json");
  EXPECT_THROW(folder.load(), FileError);
  fs::remove(folder / "config.json");
  ASSERT_EQ(mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_THROW(folder.load(), FileError);
  EXPECT_THROW(AutoModel::from_pretrained("/no/such/folder"), FileError);
}

TEST(PretrainedConfig, FamilyWithoutTheTask) {
  const std::string error = error_of(
      [&] { AutoModelForSequenceClassification::from_pretrained(recorded_folder("gpt2")); });
  EXPECT_NE(
      error.find("AutoModelForSequenceClassification::from_pretrained: there is no such model of the family gpt2"),
      std::string::npos)
      << error;
  EXPECT_THROW(AutoModelForCausalLM::from_pretrained(recorded_folder("vit")), ConfigError);
  EXPECT_THROW(AutoModelForCausalLM::from_pretrained(recorded_folder("bert_sequence")), ConfigError);
  EXPECT_THROW(AutoModel::from_pretrained(recorded_folder("vit")), ConfigError);
  EXPECT_THROW(AutoModelForImageClassification::from_pretrained(recorded_folder("llama2")), Error);
}

// ---- Weights

struct Weights : Copy {
  explicit Weights(const std::string& name)
      : Copy(name), file(io::load_safetensors(recorded_folder(name) + "/model.safetensors")) {}
  io::LoadedTensors file;
  StateDictReport report(const PretrainedOptions& options = {}) {
    io::save_safetensors(*this / "model.safetensors", file.tensors, file.metadata);
    try {
      load(options);
    } catch (const StateDictError& error) {
      return error.report();
    }
    return {};
  }
};

TEST(PretrainedWeights, ListsEveryNameThatDoesNotFit) {
  Weights llama("llama2");
  io::TensorMap& tensors = llama.file.tensors;
  tensors.erase("model.norm.weight");
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  tensors["model.layers.2.mlp.up_proj.weight"] = Tensor::zeros({24, 16});
  tensors["model.embed_tokens.weight"] = Tensor::zeros({60, 16});
  tensors["lm_head.weight"] = Tensor::zeros({61, 16}, {kI64});
  const StateDictReport report = llama.report();
  EXPECT_EQ(report.missing, (Names{"model.layers.1.mlp.up_proj.weight", "model.norm.weight"}));
  EXPECT_EQ(report.unexpected, Names{"model.layers.2.mlp.up_proj.weight"});
  EXPECT_EQ(report.mismatched, (Names{"lm_head.weight: a float[61, 16] wanted, i64[61, 16] given",
                                      "model.embed_tokens.weight: a float[61, 16] wanted, f32[60, 16] given"}));
  // `fresh` does not make an integer a weight, and a prefix covers what begins with it only.
  EXPECT_EQ(llama.report({.fresh = {"model."}, .ignore = {"model."}}).mismatched.size(), 1u);
  // A file for (in, out) that holds (out, in).
  Weights gpt2("gpt2");
  Tensor& fc = gpt2.file.tensors.at("transformer.h.0.mlp.c_fc.weight");
  fc = fc.t().contiguous();
  EXPECT_EQ(gpt2.report().mismatched,
            Names{"transformer.h.0.mlp.c_fc.weight: a float[16, 40] wanted, f32[40, 16] given"});
  // A part of a joined weight.
  Weights vit("vit");
  vit.file.tensors.erase("vit.encoder.layer.1.attention.attention.key.bias");
  EXPECT_EQ(vit.report().missing, Names{"vit.encoder.layer.1.attention.attention.key.bias"});
  EXPECT_TRUE(vit.report({.fresh = {"vit.encoder.layer.1."}}).empty());
}

TEST(PretrainedWeights, EveryTruncationIsAFileError) {
  const Copy folder("gpt2_gelu");
  const std::string path = folder / "model.safetensors", whole = read_bytes(path);
  for (size_t bytes = 0; bytes < whole.size(); bytes = bytes < 64 ? bytes + 1 : bytes + 977) {
    write_bytes(path, std::string_view(whole).substr(0, bytes));
    EXPECT_THROW(folder.load(), FileError) << bytes;
    EXPECT_THROW(folder.load({.map = true}), FileError) << bytes;
  }
}

// A flipped bit in the header is an error or another name; never a crash. In the data it is another number.
TEST(PretrainedWeights, FlippedBitsOfTheHeader) {
  const Copy folder("llama2");
  const std::string path = folder / "model.safetensors", whole = read_bytes(path);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  int loaded = 0;
  for (size_t at = 0; at < 8 + header; at += at < 16 ? 1 : 7) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    write_bytes(path, bad);
    try {
      folder.load();
      ++loaded;  // in the metadata
    } catch (const Error&) {
    }
  }
  EXPECT_LT(loaded, 10);
}

// Somebody shortens the file while it is read: at moments that follow from how long reading takes, however busy the
// machine is, until some of them were within it.
TEST(PretrainedWeights, ShrinksWhileItIsRead) {
  using Clock = std::chrono::steady_clock;
  const TempFolder folder;
  {
    GPT2 model({.vocab_size = 20000, .block_size = 8, .n_layer = 1, .n_head = 1, .n_embd = 128}, 1);
    save_pretrained(model, folder.path());
  }
  const std::string path = folder / "model.safetensors";
  const std::string whole = read_bytes(path);
  std::mt19937 random(3);
  Clock::duration took{};
  const auto load = [&] {
    const Clock::time_point start = Clock::now();
    AutoModelForCausalLM::from_pretrained(folder.path());
    took = Clock::now() - start;
  };
  load();
  int while_it_was_read = 0;
  for (int i = 0; while_it_was_read < 3; ++i) {
    ASSERT_LT(i, 2000) << "the file never shrank while it was read: " << while_it_was_read;
    write_bytes(path, whole);
    const Clock::duration delay = took / 64 * static_cast<int>(random() % 64);
    std::atomic<bool> ready{false}, go{false};
    std::thread shrink([&] {
      ready = true;
      while (!go) std::this_thread::yield();
      for (const Clock::time_point until = Clock::now() + delay; Clock::now() < until;) std::this_thread::yield();
      EXPECT_EQ(::truncate(path.c_str(), 1000), 0);
    });
    while (!ready) std::this_thread::yield();
    go = true;
    try {
      load();
    } catch (const FileError& e) {
      while_it_was_read += std::string_view(e.what()).find("truncated while it was read") != std::string_view::npos;
    }
    shrink.join();
  }
}

TEST(PretrainedWeights, NothingIsDownloaded) {
  const TempFolder folder;
  const std::string name = folder / "gpt2";
  expect_file_error(name, "nothing is downloaded", [&] { AutoModelForCausalLM::from_pretrained(name); });
  expect_file_error(name, "nothing is downloaded", [&] { text::AutoTokenizer::from_pretrained(name); });
}

TEST(PretrainedWeights, Index) {
  const TempFolder folder;
  AutoModelForCausalLM::from_pretrained(recorded_folder("llama2"))
      .save_pretrained(folder.path(), {.max_shard_bytes = 9000});
  const auto load = [&] { AutoModelForCausalLM::from_pretrained(folder.path()); };
  const std::string index = folder / "model.safetensors.index.json", good = read_bytes(index);
  ASSERT_NO_THROW(load());
  const auto map = io::read_safetensors_index(index);
  const std::string one = map.at("lm_head.weight"), last = map.at("model.norm.weight"), first = folder / one;
  ASSERT_NE(one, last);
  fs::rename(first, folder / "elsewhere");
  expect_file_error(first, "cannot open", load);
  fs::rename(folder / "elsewhere", first);
  write_bytes(index, replaced(good, one, last));
  expect_file_error(index, "says that " + last + " holds", load);
  write_bytes(index, replaced(good, one, "../" + one));
  expect_file_error(index, "not a plain file name", load);
  const size_t line = good.find("    \"model.norm.weight\""), comma = good.rfind(',', line);
  std::string shorter = good;
  shorter.erase(comma, good.find('\n', line) - comma);
  if (good[good.find('\n', line) - 1] == ',') shorter.insert(comma, ",");
  write_bytes(index, shorter);
  expect_file_error(index, "does not name \"model.norm.weight\"", load);
  write_bytes(index, "{\"metadata\": {}}");
  expect_file_error(index, "has no weight_map", load);
  write_bytes(index, good);
  // A tensor in two shards must be the same in both: programs differ in which of them they take.
  io::TensorMap shard;
  for (const auto& [name, tensor] : io::load_safetensors(first).tensors) shard[name] = tensor.clone();
  const std::string before = read_bytes(first);
  shard["model.norm.weight"] = io::load_safetensors(folder / last).tensors.at("model.norm.weight").clone();
  io::save_safetensors(first, shard, {});
  ASSERT_NO_THROW(load());
  shard.at("model.norm.weight").add_(1);
  io::save_safetensors(first, shard, {});
  expect_file_error(index, "has two shards with values of \"model.norm.weight\" that differ", load);
  write_bytes(first, before);
  poke(first, 20, '\x01');
  EXPECT_THROW(load(), FileError);
  fs::remove(index);
  expect_file_error(folder.path(), "has neither model.safetensors nor model.safetensors.index.json", load);
  write_bytes(folder / "pytorch_model.bin", "");
  expect_file_error(folder.path(), "is a pickle", load);
}

// A full disk: the old model stays, nothing half-written appears.
TEST(PretrainedSave, AFailedSaveLeavesTheOldModel) {
  const Copy folder("gpt2");
  const auto model = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2_gelu"));
  const std::string before = read_bytes(folder / "model.safetensors"), config = folder.config();
  struct rlimit old_limit {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {10000, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of<FileError>([&] { model.save_pretrained(folder.path()); });
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(error.find("model.safetensors"), std::string::npos) << error;
  EXPECT_EQ(read_bytes(folder / "model.safetensors"), before);
  EXPECT_EQ(folder.config(), config);
  EXPECT_EQ(folder.entries(), 2);
}

TEST(PretrainedModels, MovedFromIsAnError) {
  auto model = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2"));
  const Tensor idx = Tensor::zeros({1, 4}, kI64);
  const AutoModelForCausalLM taken = std::move(model);
  EXPECT_TRUE(taken.as<GPT2>() != nullptr);
  const std::string moved = "PretrainedModel: the model was moved to another object";
  EXPECT_EQ(error_of([&] { model->num_parameters(); }), moved);
  EXPECT_EQ(error_of([&] { model.as<GPT2>(); }), moved);
  EXPECT_EQ(error_of([&] { model(idx); }), moved);
  EXPECT_EQ(error_of([&] { model.loss(idx, idx); }), moved);
  EXPECT_EQ(error_of([&] { model.causal_lm(); }), moved);
  EXPECT_EQ(error_of([&] { model.published_name("wte.weight"); }), moved);
  EXPECT_EQ(error_of([&] { model.save_pretrained("nowhere"); }), moved);
}

TEST(PretrainedModels, ErrorsNameTheCallersLine) {
  const auto here = [](int line) { return "pretrained_errors_test.cc:" + std::to_string(line); };
  const Tensor ids = Tensor::full({1, 2}, 1 << 20, kI64);
  auto gpt2 = AutoModelForCausalLM::from_pretrained(recorded_folder("gpt2"));
  EXPECT_NE(error_of([&] { gpt2(ids); }).find(here(__LINE__)), std::string::npos);
  EXPECT_NE(error_of([&] { gpt2.loss(Tensor(), ids); }).find(here(__LINE__)), std::string::npos);
  EXPECT_NE(error_of([&] { gpt2.loss(ids * 0, Tensor()); }).find(here(__LINE__)), std::string::npos);
  const Tensor zeros = ids * 0, floats = zeros.to(kF32), none;
  EXPECT_NE(error_of([&] { gpt2.loss(zeros, floats); }).find(here(__LINE__)), std::string::npos);
  auto tagger = AutoModelForTokenClassification::from_pretrained(recorded_folder("roberta_token"));
  EXPECT_NE(error_of([&] { tagger.loss(zeros, none, none, floats); }).find(here(__LINE__)), std::string::npos);
  EXPECT_NE(error_of([&] { tagger.loss(zeros, none, none, none); }).find(here(__LINE__)), std::string::npos);
  auto body = AutoModel::from_pretrained(recorded_folder("gpt2"));
  EXPECT_NE(error_of([&] { body(ids); }).find(here(__LINE__)), std::string::npos);
  auto bert = AutoModelForSequenceClassification::from_pretrained(recorded_folder("bert_sequence"));
  EXPECT_NE(error_of([&] { bert(ids); }).find(here(__LINE__)), std::string::npos);
}

// Two threads load and run models of their own.
TEST(PretrainedThreads, LoadAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (const char* name : {"llama3", "gpt2", "qwen3", "llama3"})
    threads.emplace_back([name, &equal] {
      const io::TensorMap values = expected_values(name);
      for (int i = 0; i < 5; ++i) {
        auto model = AutoModelForCausalLM::from_pretrained(recorded_folder(name), {.dtype = kF64});
        const double loss = model.loss(values.at("input.ids"), values.at("input.targets")).item();
        if (std::abs(loss - values.at("losses").to_vector<double>()[0]) < 1e-9) ++equal;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 20);
}

}  // namespace
}  // namespace rondo::nn
