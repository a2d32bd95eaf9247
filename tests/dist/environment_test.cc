#include "rondo/dist/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>

#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

class EnvironmentTest : public testing::Test {
 protected:
  void SetUp() override { set({}); }
  void TearDown() override { set({}); }
  static void set(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                             "RONDO_STORE", "RONDO_STORE_TOKEN", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
      ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static std::string error(const std::map<std::string, std::string>& variables) {
    set(variables);
    return test::error_of([] { Environment::from_process(); });
  }
};

TEST_F(EnvironmentTest, OneProcessWhereNothingIsSet) {
  const Environment e = Environment::from_process();
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world_size, 1);
  EXPECT_EQ(e.local_world_size, 1);
}

TEST_F(EnvironmentTest, ReadsTorchrunsVariables) {
  set({{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "host"},
       {"MASTER_PORT", "29500"}});
  const Environment e = Environment::from_process();
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 4);
  EXPECT_EQ(e.master_addr, "host");
  EXPECT_EQ(e.master_port, 29500);
  EXPECT_EQ(e.store_address().host, "host");
  EXPECT_EQ(e.run_id, "none");
  EXPECT_EQ(e.restart_count, 0);
  set({{"RONDO_STORE", "[::1]:77"},
       {"RONDO_STORE_TOKEN", "secret"},
       {"TORCHELASTIC_RUN_ID", "job7"},
       {"TORCHELASTIC_RESTART_COUNT", "3"}});
  const Environment under_launcher = Environment::from_process();
  EXPECT_EQ(under_launcher.store_address().port, 77);
  EXPECT_EQ(under_launcher.store_token, "secret");
  EXPECT_EQ(under_launcher.run_id, "job7");
  EXPECT_EQ(under_launcher.restart_count, 3);
}

TEST_F(EnvironmentTest, NonsenseIsNamed) {
  EXPECT_EQ(error({{"WORLD_SIZE", "two"}}), "the variable WORLD_SIZE=two must be a number from 1 to 16384");
  EXPECT_EQ(error({{"WORLD_SIZE", "2"}}), "the variable WORLD_SIZE=2 without RANK: start the program with rondorun");
  EXPECT_EQ(error({{"WORLD_SIZE", "2"}, {"RANK", "2"}}), "the variable RANK=2 must be a number from 0 to 1");
  EXPECT_EQ(error({{"WORLD_SIZE", "2"}, {"RANK", "1"}}),
            "the variable MASTER_PORT is not set: start the program with rondorun");
  EXPECT_EQ(error({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_PORT", "70000"}}),
            "the variable MASTER_PORT=70000 must be a number from 1 to 65535");
}

}  // namespace
}  // namespace rondo::dist
