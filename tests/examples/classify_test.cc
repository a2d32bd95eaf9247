// examples/classify.cc on a small BERT that the test makes: a classifier comes out, it sorts texts, and what cannot
// work is said in a sentence.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rondo/modules/layers/init.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

struct Finished {
  int status;
  std::string out;
  int count(const std::string& part) const {
    int n = 0;
    for (size_t at = out.find(part); at != std::string::npos; at = out.find(part, at + 1)) ++n;
    return n;
  }
  // The number behind the last "accuracy ".
  double accuracy() const { return std::stod(out.substr(out.rfind("accuracy ") + 9)); }
};

class Classify : public testing::Test {
 protected:
  void SetUp() override {
    nn::BertModel model(
        {.vocab_size = 600, .block_size = 32, .n_layer = 2, .n_head = 2, .n_embd = 32, .n_hidden = 64, .dropout = 0.1});
    nn::save_pretrained(model, folder_ / "model");
    std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/bert_uncased.json"),
                               folder_ / "model/tokenizer.json");
    const char* const kinds[] = {"a runner ran", "the national gradient", "unbelievable angstrom"};
    const char* const names[] = {"sport", "state", "unit"};
    std::ofstream train(folder_ / "train.tsv"), val(folder_ / "val.jsonl"), texts(folder_ / "texts.txt");
    for (int i = 0; i < 240; ++i) train << names[i % 3] << "\t" << kinds[i % 3] << (i % 5 == 0 ? " and so on\n" : "\n");
    for (int i = 0; i < 12; ++i)
      val << R"({"text": ")" << kinds[i % 3] << R"( of the", "label": ")" << names[i % 3] << "\"}\n";
    for (int i = 0; i < 3; ++i) texts << kinds[i] << " of the\n";
  }
  // Arguments, and those of the training files if `trains`.
  // `behind`: shell code behind the command.
  Finished run(const std::string& options, bool trains = true, const std::string& behind = "") {
    const std::string log = folder_ / "log";
    const std::string files = absl::StrCat(
        " --model_name_or_path=", folder_ / "model", " --train_file=", folder_ / "train.tsv",
        " --validation_file=", folder_ / "val.jsonl", " --output_dir=", folder_ / "out");
    const int status = std::system(absl::StrCat(tests::kClassify, trains ? files : "", " --max_seq_length=32 ", options,
                                                " >", log, " 2>&1 ", behind)
                                       .c_str());
    std::stringstream out;
    out << std::ifstream(log).rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out.str()};
  }
  std::string predict(const std::string& model) {
    return absl::StrCat("--do_predict --test_file=", folder_ / "texts.txt", " --model_name_or_path=", folder_ / model);
  }
  test::TempFolder folder_;
};

TEST_F(Classify, AClassifierComesOutAndSortsTexts) {
  const Finished done = run("--learning_rate=3e-3 --num_train_epochs=4 --warmup_ratio=0.1 --weight_decay=0.01");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(done.count("accuracy "), 4) << done.out;  // one an epoch
  EXPECT_EQ(done.accuracy(), 1) << done.out;
  const auto model = nn::AutoModelForSequenceClassification::from_pretrained(folder_ / "out");
  EXPECT_EQ(model.label_names(), (std::vector<std::string>{"sport", "state", "unit"}));
  const Finished sorted = run(predict("out"), /*trains=*/false);
  ASSERT_EQ(sorted.status, 0) << sorted.out;
  std::stringstream lines(sorted.out);
  for (const char* name : {"sport", "state", "unit"}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_TRUE(line.starts_with(std::string(name) + "\t0.")) << line;
    EXPECT_TRUE(line.ends_with(" of the")) << line;
  }
  // Batches of one text have no padding and the same answers.
  EXPECT_EQ(run(predict("out") + " --per_device_eval_batch_size=1 --compile=none", false).out, sorted.out);
}

TEST_F(Classify, Roberta) {
  nn::BertModel model({.vocab_size = 1000,
                       .block_size = 34,
                       .n_segment = 1,
                       .n_layer = 2,
                       .n_head = 2,
                       .n_embd = 32,
                       .n_hidden = 64,
                       .padding_idx = 1,
                       .roberta = true},
                      /*has_pooler=*/true);
  nn::save_pretrained(model, folder_ / "model");
  std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/roberta.json"),
                             folder_ / "model/tokenizer.json", std::filesystem::copy_options::overwrite_existing);
  const Finished done = run("--learning_rate=3e-3 --num_train_epochs=10 --warmup_ratio=0.1");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(done.accuracy(), 1) << done.out;
  const Finished together = run(predict("out"), /*trains=*/false);
  EXPECT_EQ(together.status, 0) << together.out;
  EXPECT_EQ(run(predict("out") + " --per_device_eval_batch_size=1", false).out, together.out);
}

// Heads for next or masked tokens go, a classifier comes. Neither model takes segments.
TEST_F(Classify, DistilBertAndADecoder) {
  const auto train_and_sort = [&] {
    const Finished done = run("--learning_rate=3e-3 --num_train_epochs=6 --warmup_ratio=0.1 --overwrite_output_dir");
    ASSERT_EQ(done.status, 0) << done.out;
    EXPECT_EQ(done.accuracy(), 1) << done.out;
    const Finished together = run(predict("out"), /*trains=*/false);
    EXPECT_EQ(together.status, 0) << together.out;
    EXPECT_EQ(run(predict("out") + " --per_device_eval_batch_size=1", false).out, together.out);
  };
  {
    nn::BertForMaskedLM model({.vocab_size = 600,
                               .block_size = 32,
                               .n_layer = 2,
                               .n_head = 2,
                               .n_embd = 32,
                               .n_hidden = 64,
                               .distilbert = true});
    nn::save_pretrained(model, folder_ / "model");
  }
  train_and_sort();
  // The tokenizer names the padding token, which config.json does not: -1, as in the first Llamas, is none.
  nn::Llama model({.vocab_size = 800,
                   .block_size = 32,
                   .n_layer = 2,
                   .n_head = 2,
                   .n_kv_head = 1,
                   .n_embd = 32,
                   .n_hidden = 64,
                   .qkv_bias = true,
                   .o_bias = false});
  nn::save_pretrained(model, folder_ / "model");
  const std::string config = folder_ / "model/config.json";
  nn::ConfigFields fields(config, io::read_text(config, nn::ConfigFields::kMostBytes));
  fields.set("pad_token_id", "-1");
  nn::write_fields(config, fields.fields());
  std::filesystem::copy_file(absl::StrCat(tests::kReferenceDir, "/tokenizers/qwen2.json"),
                             folder_ / "model/tokenizer.json", std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder_ / "model/tokenizer_config.json") << R"({"pad_token": "<|endoftext|>"})";
  train_and_sort();
  EXPECT_EQ(nn::AutoModelForSequenceClassification::from_pretrained(folder_ / "out").facts().padding_idx, 700);
}

// Numbers instead of classes, and several classes for each text: the saved config.json says so, and predicting obeys
// it.
TEST_F(Classify, RegressionAndSeveralLabels) {
  std::ofstream numbers(folder_ / "numbers.tsv"), several(folder_ / "several.jsonl");
  const char* const texts[] = {"a runner ran", "the national gradient", "unbelievable angstrom"};
  const char* const labels[] = {R"(["run", "slow"])", "[]", R"(["slow"])"};
  for (int i = 0; i < 240; ++i) {
    numbers << (i % 3) - 1 << ".5\t" << texts[i % 3] << "\n";
    several << R"({"text": ")" << texts[i % 3] << R"(", "label": )" << labels[i % 3] << "}\n";
  }
  numbers.close();
  several.close();
  const auto train = [&](const std::string& type, const std::string& file) {
    return run(absl::StrCat("--model_name_or_path=", folder_ / "model", " --problem_type=", type,
                            " --train_file=", folder_ / file, " --validation_file=", folder_ / file,
                            " --output_dir=", folder_ / type, " --num_train_epochs=6 --learning_rate=2e-3"),
               false);
  };
  std::ofstream(folder_ / "seen.txt") << texts[0] << "\n" << texts[1] << "\n" << texts[2] << "\n";
  const auto predict = [&](const std::string& type) {
    return run(
        absl::StrCat("--model_name_or_path=", folder_ / type, " --do_predict --test_file=", folder_ / "seen.txt"),
        false);
  };
  const Finished regression = train("regression", "numbers.tsv");
  ASSERT_EQ(regression.status, 0) << regression.out;
  EXPECT_EQ(regression.count("240 texts of 1 numbers"), 1) << regression.out;
  EXPECT_LT(std::stod(regression.out.substr(regression.out.rfind("error ") + 6)), 0.1) << regression.out;
  const Finished scores = predict("regression");
  ASSERT_EQ(scores.status, 0) << scores.out;
  EXPECT_LT(std::stod(scores.out), 0) << scores.out;  // -1.5 was learnt
  const Finished labelled = train("multi_label_classification", "several.jsonl");
  ASSERT_EQ(labelled.status, 0) << labelled.out;
  EXPECT_GT(labelled.accuracy(), 0.95) << labelled.out;
  const Finished sorted = predict("multi_label_classification");
  EXPECT_EQ(sorted.out.rfind("run,slow\t", 0), 0u) << sorted.out;
  EXPECT_EQ(sorted.count("\nslow\t0."), 1) << sorted.out;
  EXPECT_EQ(train("ranking", "numbers.tsv").count("--problem_type is ranking"), 1);
  EXPECT_NE(train("regression", "train.tsv").status, 0);
}

// A folder of one label that does not say its problem: numbers, as in transformers.
TEST_F(Classify, OneLabelIsARegression) {
  nn::BertForSequenceClassification model({.vocab_size = 600,
                                           .block_size = 32,
                                           .n_layer = 1,
                                           .n_head = 2,
                                           .n_embd = 32,
                                           .n_hidden = 64,
                                           .num_classes = 1,
                                           .dropout = 0});
  nn::init_normal(model, 1);
  nn::save_pretrained(model, folder_ / "model");
  std::ofstream numbers(folder_ / "train.tsv");
  for (int i = 0; i < 8; ++i) numbers << "2.0\ta runner ran\n";
  numbers.close();
  std::ofstream(folder_ / "texts.txt") << "a runner ran\n";
  const Finished before = run(predict("model"), /*trains=*/false);
  const double error = 2.0 - std::stod(before.out);
  const std::string files = absl::StrCat("--model_name_or_path=", folder_ / "model",
                                         " --train_file=", folder_ / "train.tsv", " --output_dir=", folder_ / "out",
                                         " ");
  const Finished done = run(files + "--logging_steps=1 --num_train_epochs=1", /*trains=*/false);
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(done.count("this is a regression"), 1) << done.out;
  EXPECT_NEAR(std::stod(done.out.substr(done.out.find("loss ") + 5)), error * error, 1e-3) << done.out;
}

// A classifier that is trained on keeps the numbers of its classes, in whatever order the file has their names.
TEST_F(Classify, ClassesKeepTheirNumbers) {
  ASSERT_EQ(run("--learning_rate=3e-3 --num_train_epochs=4 --warmup_ratio=0.1").status, 0);
  // The same classes by other names, which sort otherwise.
  std::stringstream config;
  config << std::ifstream(folder_ / "out/config.json").rdbuf();
  const std::string renamed = absl::StrReplaceAll(config.str(), {{"\"sport\"", "\"zebra\""}});
  ASSERT_NE(renamed, config.str());
  std::ofstream(folder_ / "out/config.json") << renamed;
  for (const bool all : {true, false}) {  // a file that lacks a class keeps the head, too
    std::ofstream train(folder_ / "more.tsv");
    for (int i = 0; i < 30; ++i) train << "zebra\ta runner ran\nstate\tthe national gradient\n";
    if (all) train << "unit\tunbelievable angstrom\n";
    train.close();
    const Finished more = run(
        absl::StrCat("--model_name_or_path=", folder_ / "out", " --train_file=", folder_ / "more.tsv",
                     " --validation_file=", folder_ / "more.tsv", " --output_dir=", folder_ / "more",
                     " --overwrite_output_dir", " --learning_rate=0 --num_train_epochs=1"),
        /*trains=*/false);
    ASSERT_EQ(more.status, 0) << more.out;
    EXPECT_EQ(more.accuracy(), 1) << more.out;
    EXPECT_EQ(nn::AutoModelForSequenceClassification::from_pretrained(folder_ / "more").label_names(),
              (std::vector<std::string>{"zebra", "state", "unit"}));
  }
}

TEST_F(Classify, TheSameSeedGivesTheSameRun) {
  const std::string options = "--num_train_epochs=0.5 --overwrite_output_dir";
  const Finished a = run(options), b = run(options), other = run(options + " --seed=7");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, other.out);
}

// The same losses as on the CPU, but for the order of sums.
TEST_F(Classify, OnACudaDevice) {
  const std::string options = "--num_train_epochs=0.3 --logging_steps=1 --learning_rate=3e-3 --overwrite_output_dir";
  const auto losses = [](const Finished& done) {
    EXPECT_EQ(done.status, 0) << done.out;
    std::vector<double> values;
    for (size_t at = 0; (at = done.out.find("loss ", at)) != std::string::npos; ++at)
      values.push_back(std::stod(done.out.substr(at + 5)));
    return values;
  };
  const std::vector<double> expected = losses(run(options));
  const test::Setting libraries("RONDO_CUDA_PATH", tests::kFakeCudaDir), orders("RONDO_FAKE_CUDA", "5:1:512");
  const std::vector<double> got = losses(run(options + " --device=cuda"));
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_GT(got.size(), 5u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1.5e-4) << i << ", of four digits";
  const Finished here = run(predict("out"), false), there = run(predict("out") + " --device=cuda", false);
  EXPECT_EQ(there.status, 0) << there.out;
  EXPECT_EQ(there.out.substr(0, there.out.find('\t')), here.out.substr(0, here.out.find('\t')));
}

TEST_F(Classify, TheBestEpochStays) {
  const Finished done = run("--learning_rate=3e-3 --num_train_epochs=3 --load_best_model_at_end --bf16");
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_NE(done.out.find("accuracy of the best epoch "), std::string::npos) << done.out;
}

// A run that is killed and resumed prints, logs and saves what an undisturbed one does.
TEST_F(Classify, AKillLosesNothing) {
  const std::string options = "--num_train_epochs=4 --logging_steps=1 --save_steps=3 --learning_rate=3e-3";
  const auto metrics = [this] {
    std::vector<std::string> lines;
    std::ifstream file(folder_ / "out/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(line.substr(0, line.find(",\"targets_per_s\"")));
    return lines;
  };
  const auto model = [this] {
    std::stringstream bytes;
    bytes << std::ifstream(folder_ / "out/model.safetensors", std::ios::binary).rdbuf();
    return bytes.str();
  };
  ASSERT_EQ(run(options).status, 0);
  const std::vector<std::string> lines = metrics();
  const std::string weights = model();
  ASSERT_EQ(lines.size(), 60u + 4u);
  std::filesystem::remove_all(folder_ / "out");
  // Kills itself after a while, then again after a while of what is left.
  bool killed = false;
  Finished done{-1, ""};
  for (const size_t lines_wanted : {8, 30, 1000}) {
    const std::string watch = absl::StrCat("& p=$!; while kill -0 $p 2>/dev/null && [ $(cat ",
                                           folder_ / "out/metrics.jsonl", " 2>/dev/null | wc -l) -lt ", lines_wanted,
                                           " ]; do sleep 0.01; done; kill -9 $p 2>/dev/null; wait $p");
    done = run(options + " --resume_from_checkpoint=true", true, watch);
    killed = killed || done.status == 137;
  }
  EXPECT_TRUE(killed);
  ASSERT_EQ(done.status, 0) << done.out;
  EXPECT_NE(done.out.find("resuming from "), std::string::npos) << done.out;
  EXPECT_EQ(metrics(), lines);
  EXPECT_EQ(model(), weights);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out"))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  // Another run does not write over it unawares.
  EXPECT_NE(run(options).out.find("holds checkpoints of another run"), std::string::npos);
}

TEST_F(Classify, WhatCannotWorkIsSaid) {
  const auto says = [](const Finished& done, const std::string& part) {
    EXPECT_EQ(done.status, 1);
    EXPECT_NE(done.out.find("classify: "), std::string::npos) << done.out;
    EXPECT_NE(done.out.find(part), std::string::npos) << done.out;
  };
  says(run("", /*trains=*/false), "--model_name_or_path");
  says(run("--do_predict"), "--test_file");
  says(run("--max_seq_length=64"), "32 positions");
  EXPECT_EQ(run("--max_seq_length=5 --num_train_epochs=0.1 --output_dir=" + folder_ / "cut")
                .count("112 of 240 texts were cut to --max_seq_length=5"),
            1);
  says(run("--model_name_or_path=/nowhere"), "/nowhere");
  says(run(predict("model"), /*trains=*/false), "classifier.weight");  // no head yet
  std::ofstream(folder_ / "val.jsonl") << "{\"text\": \"a runner\", \"label\": \"money\"}\n";
  says(run(""), "money");
  std::ofstream(folder_ / "train.tsv") << "sport\ta runner\nno tab here\n";
  says(run(""), "line 2");
  nn::BertModel narrow({.vocab_size = 300, .block_size = 32, .n_layer = 1, .n_head = 2, .n_embd = 32, .n_hidden = 64});
  nn::save_pretrained(narrow, folder_ / "model");
  std::ofstream(folder_ / "train.tsv") << "sport\ta runner\nstate\tthe national\n";
  says(run(""), "is not this model's");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace rondo
