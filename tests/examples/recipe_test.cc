// Recipes: options from a YAML or JSON file, and what is said about files that are none.
#include "rondo/examples/recipe.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "rondo/examples/flags.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"

namespace rondo::examples {
namespace {

class Recipe : public testing::Test {
 protected:
  Recipe() {
    flags_.add("n_layer", &layers_, "blocks");
    flags_.add("learning_rate", &rate_, "after warm-up");
    flags_.add("bias", &bias_, "biases");
    flags_.add("mode", &mode_, "how", {"default", "max-autotune"});
    flags_.add("buckets", &buckets_, "sizes");
    flags_.add("name", &name_, "of the run");
  }
  std::string file(const std::string& text, const std::string& name = "recipe.yaml") const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  void parse(const std::string& text, std::vector<std::string> args = {}) {
    args.push_back("--recipe=" + file(text));
    flags_.parse(args);
  }
  // Without the folder.
  std::string error_of(const std::string& text) {
    std::string error = test::error_of([&] { parse(text); });
    if (error.starts_with(folder_.path() + "/")) error.erase(0, folder_.path().size() + 1);
    return error;
  }

  int64_t layers_ = 4;
  double rate_ = 1e-3;
  bool bias_ = true;
  std::string mode_ = "default", buckets_, name_;
  Flags flags_{"program", "Purpose."};
  test::TempFolder folder_;
};

TEST_F(Recipe, YamlWithAHeadingAndAList) {
  parse(
      "# mine\n"
      "n_layer: 6   # deep\n"
      "learning_rate: 3.0e-4\n"
      "bias: no\n"
      "name: \"a: b\"\n"
      "compile:\n"
      "  mode: max-autotune\n"
      "  buckets: [64, 128]\n");
  EXPECT_EQ(layers_, 6);
  EXPECT_EQ(rate_, 3e-4);
  EXPECT_FALSE(bias_);
  EXPECT_EQ(name_, "a: b");
  EXPECT_EQ(mode_, "max-autotune");
  EXPECT_EQ(buckets_, "64,128");
  EXPECT_TRUE(flags_.given("mode"));
  EXPECT_FALSE(flags_.given("compile"));
}

TEST_F(Recipe, Json) {
  parse(R"({"n_layer": 6, "compile": {"mode": "max-autotune", "buckets": [64, 128]}, "bias": false})");
  EXPECT_EQ(layers_, 6);
  EXPECT_EQ(buckets_, "64,128");
  EXPECT_FALSE(bias_);
}

TEST_F(Recipe, TheCommandLineWins) {
  for (const bool before : {false, true}) {
    const std::string recipe = "--recipe=" + file("n_layer: 6\nname: recipe\n");
    flags_.parse(before ? std::vector<std::string>{recipe, "--n_layer=8"}
                        : std::vector<std::string>{"--n_layer=8", recipe});
    EXPECT_EQ(layers_, 8);
    EXPECT_EQ(name_, "recipe");
  }
}

TEST_F(Recipe, OfOptionsThatWereSetReadsBack) {
  const std::string saved = folder_ / "saved.yaml";
  flags_.parse({"--name=yes: #1 \"quoted\"", "--bias=false", "--n_layer=2", "--save_recipe", saved});
  layers_ = 7, bias_ = true, name_ = "";
  flags_.parse({"--recipe", saved});
  EXPECT_FALSE(flags_.given("buckets"));  // a recipe that names an option gives it
  EXPECT_EQ(layers_, 2);
  EXPECT_FALSE(bias_);
  EXPECT_EQ(name_, "yes: #1 \"quoted\"");
  EXPECT_EQ(buckets_, "");
}

TEST_F(Recipe, AWrongKeyIsNamedWithItsLineAndTheNearestOne) {
  EXPECT_EQ(error_of("n_layer: 6\n\nlearning_rat: 1\n"),
            "recipe.yaml:3: unknown flag --learning_rat; did you mean --learning_rate? (--help lists all)");
  EXPECT_EQ(error_of("compile:\n  moed: default\n"),
            "recipe.yaml:2: unknown flag --moed; did you mean --mode? (--help lists all)");
  EXPECT_EQ(error_of("recipe: other.yaml\n"),
            "recipe.yaml:1: recipe is for the command line: a recipe names no other one");
  EXPECT_EQ(error_of("{\"n_layer\": 6,\n \"zebra_count\": 6}"),
            "recipe.yaml:2: unknown flag --zebra_count (--help lists all)");
}

TEST_F(Recipe, AWrongTypeIsNamedWithWhatItWants) {
  EXPECT_EQ(error_of("n_layer: four\n"), "recipe.yaml:1: --n_layer=four: must be a whole number");
  EXPECT_EQ(error_of("n_layer: [1, 2]\n"), "recipe.yaml:1: --n_layer=1,2: must be a whole number");
  EXPECT_EQ(error_of("bias: perhaps\n"), "recipe.yaml:1: --bias=perhaps: must be true or false");
  EXPECT_EQ(error_of("mode: fast\n"), "recipe.yaml:1: --mode=fast: must be one of default, max-autotune");
  EXPECT_EQ(error_of("n_layer:\n"), "recipe.yaml:1: n_layer has no value");
  EXPECT_EQ(error_of("n_layer: ~\n"), "recipe.yaml:1: n_layer has no value");
}

TEST_F(Recipe, WhatIsNoRecipe) {
  EXPECT_EQ(error_of("n_layer: 6\nname: a\nn_layer: 7\n"), "recipe.yaml:3: n_layer was given before, in line 1");
  EXPECT_EQ(error_of("n_layer: 6\ncompile:\n  n_layer: 7\n"), "recipe.yaml:3: n_layer was given before, in line 1");
  EXPECT_EQ(error_of(""), "recipe.yaml: the recipe is empty");
  EXPECT_EQ(error_of("# nothing\n"), "recipe.yaml: the recipe is empty");
  EXPECT_NE(error_of("just text\n").find("recipe.yaml:1: a recipe is a mapping"), std::string::npos);
  EXPECT_NE(error_of("- n_layer\n").find("recipe.yaml:1: a recipe is a mapping"), std::string::npos);
  EXPECT_EQ(error_of("a:\n  b:\n    c: 1\n"), "recipe.yaml:3: a mapping below b, which is below a heading");
  EXPECT_EQ(error_of("buckets: [[1], 2]\n"), "recipe.yaml:1: a list in the list buckets");
  EXPECT_EQ(error_of("buckets: [a: 1]\n"), "recipe.yaml:1: a mapping in the list buckets");
  EXPECT_EQ(error_of("buckets: [\"1,2\"]\n"), "recipe.yaml:1: a comma in a value of the list buckets");
  EXPECT_EQ(error_of("[1]: 2\n"), "recipe.yaml:1: a key must be the name of an option");
  EXPECT_EQ(error_of("n_layer: 6\n---\nn_layer: 7\n"), "recipe.yaml:2: a recipe is one document, and here is another");
  EXPECT_EQ(error_of("n_layer: 6\n bias: true\n").find("recipe.yaml:2: "), 0u);
  EXPECT_EQ(error_of("n_layer: [6\n").find("recipe.yaml:"), 0u);
  // A quote without an end is not what follows it.
  for (const char* quote : {"'", "\""})
    EXPECT_EQ(error_of(absl::StrCat("name: ", quote, "oo\nn_layer: 9\n")).find("recipe.yaml:"), 0u) << quote;
}

TEST_F(Recipe, FilesThatCannotBe) {
  const auto error = [&](const std::string& path) { return test::error_of([&] { read_recipe(path); }); };
  EXPECT_NE(error(folder_ / "missing.yaml").find("missing.yaml: "), std::string::npos);
  EXPECT_NE(error(folder_.path()).find(folder_.path() + ": "), std::string::npos);
  EXPECT_NE(error("").find(": "), std::string::npos);
  EXPECT_NE(error("/dev/zero").find("/dev/zero: "), std::string::npos);
  const std::string large = file("n_layer: 6\n", "large.yaml");
  std::filesystem::resize_file(large, 100 << 20);
  EXPECT_NE(error(large).find("large.yaml: "), std::string::npos);
}

// Files that mean harm end in an error, at once.
TEST_F(Recipe, Bombs) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string before(1, static_cast<char>(c - 1));
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [*", before, ", *", before, ", *", before,
                    "]\n");
  }
  EXPECT_EQ(error_of(bomb), "recipe.yaml:2: aliases are not taken in a recipe");
  EXPECT_EQ(error_of("n_layer: 6\n<<: *n\n").find("recipe.yaml:2: "), 0u);
  for (const std::string open : {"[", "{a: ", "- ", "? "}) {
    std::string deep = "buckets: ";
    for (int i = 0; i < 100'000; ++i) deep += open;
    EXPECT_NE(error_of(deep), "") << open;
  }
  EXPECT_NE(error_of(std::string("n_layer\0: 6\n", 13)), "");
  EXPECT_NE(error_of("n_layer: \xff\xfe\n"), "");
  EXPECT_NE(error_of("\xff\xfe\x00\x00"), "");
  EXPECT_NE(error_of("!!binary n_layer: [\n"), "");
}

}  // namespace
}  // namespace rondo::examples
