#include "rondo/examples/flags.h"

#include <gtest/gtest.h>

#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

struct FlagsTest : ::testing::Test {
  FlagsTest() {
    flags.add("n_layer", &layers, "blocks");
    flags.add("learning_rate", &rate, "after warm-up");
    flags.add("bias", &bias, "biases");
    flags.add("compile", &compile, "how", {"none", "regions"});
    flags.add("device", &device, "where");
  }
  std::string error_of(const std::vector<std::string>& args) {
    try {
      flags.parse(args);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  int64_t layers = 4;
  double rate = 1e-3;
  bool bias = false;
  std::string compile = "none";
  Device device;
  Flags flags{"program", "Purpose."};
};

TEST_F(FlagsTest, BothFormsAndNegativeNumbers) {
  flags.parse({"--n_layer=6", "--learning_rate", "-2.5e-4", "--bias", "true", "--compile=regions"});
  EXPECT_EQ(layers, 6);
  EXPECT_EQ(rate, -2.5e-4);
  EXPECT_TRUE(bias);
  EXPECT_EQ(compile, "regions");
  EXPECT_TRUE(flags.given("bias"));
}

TEST_F(FlagsTest, ADeviceIsThere) {
  flags.parse({"--device=cpu"});
  EXPECT_EQ(flags.values().at("device"), "cpu");
  EXPECT_EQ(error_of({"--device=gpu"}), "--device=gpu: no device is called \"gpu\": write cpu, cuda or cuda:1");
  std::string why_not;
  if (device_count(Backend::kCUDA, &why_not) > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(error_of({"--device=cuda"}), "--device=cuda: " + why_not);
  EXPECT_EQ(why_not.find("no CUDA device: "), 0u) << why_not;
  EXPECT_EQ(device, kCPU);
}

TEST_F(FlagsTest, ABoolAloneIsOn) {
  flags.parse({"--bias", "--n_layer=6"});
  EXPECT_TRUE(bias);
  EXPECT_EQ(layers, 6);
  flags.parse({"--bias=false"});
  EXPECT_FALSE(bias);
  flags.parse({"--bias"});
  EXPECT_TRUE(bias);
}

TEST_F(FlagsTest, ErrorsNameTheFlagAndTheNearestOne) {
  EXPECT_EQ(error_of({"--n_layers=3"}), "unknown flag --n_layers; did you mean --n_layer? (--help lists all)");
  EXPECT_EQ(error_of({"--zebra_count=3"}), "unknown flag --zebra_count (--help lists all)");
  EXPECT_EQ(error_of({"--n_layer=four"}), "--n_layer=four: must be a whole number");
  EXPECT_EQ(error_of({"--n_layer=1.5"}), "--n_layer=1.5: must be a whole number");
  EXPECT_EQ(error_of({"--n_layer"}), "--n_layer needs a value");
  EXPECT_EQ(error_of({"--n_layer", "--bias=true"}), "--n_layer needs a value");
  EXPECT_EQ(error_of({"--compile=all"}), "--compile=all: must be one of none, regions");
  EXPECT_EQ(error_of({"6"}), "\"6\" is not a flag; flags look like --name=value");
  EXPECT_EQ(layers, 4);
}

TEST_F(FlagsTest, NoValueIsGuessed) {
  EXPECT_EQ(error_of({"--n_layer=9223372036854775808"}), "--n_layer=9223372036854775808: must be a whole number");
  EXPECT_EQ(error_of({"--n_layer=0x10"}), "--n_layer=0x10: must be a whole number");
  for (const std::string text : {"nan", "inf", "1e999", "1,5", ""})
    EXPECT_EQ(error_of({"--learning_rate=" + text}), "--learning_rate=" + text + ": must be a finite number");
  EXPECT_EQ(error_of({"--bias=perhaps"}), "--bias=perhaps: must be true or false");
  EXPECT_EQ(layers, 4);
  EXPECT_EQ(rate, 1e-3);
  flags.parse({"--n_layer=010"});
  EXPECT_EQ(layers, 10);
}

TEST_F(FlagsTest, ValuesReadBackExactly) {
  rate = 0.1 + 0.2;
  for (const auto& [name, text] : flags.values()) flags.set(name, text);
  EXPECT_EQ(rate, 0.1 + 0.2);
  EXPECT_NE(flags.usage().find("--learning_rate=0.001 "), std::string::npos);  // the default, not the value
}

}  // namespace
}  // namespace rondo::examples
