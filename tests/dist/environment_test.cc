#include "rondo/dist/transport/environment.h"

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
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "RONDO_STORE",
                             "RONDO_STORE_TOKEN",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "OMPI_MCA_ess_base_jobid",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "PMI_PORT",
                             "PMI_ID"})
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

// torchrun's agent listens at MASTER_PORT itself.
TEST_F(EnvironmentTest, TheAgentsPortIsLeftToIt) {
  std::map<std::string, std::string> variables = {{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_PORT", "29500"},
                                                  {"TORCHELASTIC_RUN_ID", "a"},
                                                  {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  set(variables);
  EXPECT_EQ(Environment::from_process().master_port, 29500);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  set(variables);
  const int port = Environment::from_process().master_port;
  EXPECT_GE(port, 20'000);
  EXPECT_LT(port, 32'000);
  EXPECT_NE(port, 29500);
  variables["RANK"] = "1";
  set(variables);
  EXPECT_EQ(Environment::from_process().master_port, port);
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  set(variables);
  EXPECT_NE(Environment::from_process().master_port, port);
}

TEST_F(EnvironmentTest, ReadsMpirunsVariables) {
  std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_SIZE", "3"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                                  {"PMIX_NAMESPACE", "3129802753"}};
  set(variables);
  const Environment e = Environment::from_process();
  EXPECT_EQ(e.rank, 2);
  EXPECT_EQ(e.world_size, 3);
  EXPECT_EQ(e.local_rank, 2);
  EXPECT_EQ(e.local_world_size, 3);
  EXPECT_EQ(e.run_id, "3129802753");
  // The same port in every rank of the job, another in another job.
  EXPECT_GE(e.master_port, 20'000);
  EXPECT_LT(e.master_port, 32'000);
  variables["OMPI_COMM_WORLD_RANK"] = variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  set(variables);
  EXPECT_EQ(Environment::from_process().master_port, e.master_port);
  variables["PMIX_NAMESPACE"] = "3129802754";
  set(variables);
  EXPECT_NE(Environment::from_process().master_port, e.master_port);
  variables["MASTER_PORT"] = "1234";
  set(variables);
  EXPECT_EQ(Environment::from_process().master_port, 1234);
  // torchrun's variables are those of the innermost launcher.
  variables["RANK"] = "1", variables["WORLD_SIZE"] = "2";
  set(variables);
  EXPECT_EQ(Environment::from_process().world_size, 2);
  // MPICH's.
  set({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_PORT", "h:5"}});
  EXPECT_EQ(Environment::from_process().rank, 1);
  EXPECT_EQ(Environment::from_process().world_size, 2);
}

TEST_F(EnvironmentTest, ReadsSrunsVariables) {
  std::map<std::string, std::string> variables = {
      {"SLURM_PROCID", "1"},         {"SLURM_NTASKS", "4"},  {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"},
      {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};
  set(variables);
  const Environment e = Environment::from_process();
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.world_size, 4);
  EXPECT_EQ(e.run_id, "77.0");
  variables["SLURM_STEP_NUM_NODES"] = "2";
  EXPECT_NE(error(variables).find("this job of srun has 4 processes, not all of them on this machine "
                                  "(SLURM_STEP_NUM_NODES=2): set RANK"),
            std::string::npos);
  // A script of sbatch is no step: one process, whatever its job may start.
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(Environment::from_process().world_size, 1);
}

// A rank of a larger job would otherwise train alone.
TEST_F(EnvironmentTest, HalfOfALaunchersVariables) {
  const auto expect_missing = [](const std::string& set, const std::string& value, const std::string& missing) {
    EXPECT_EQ(error({{set, value}}).find("the variable " + set + "=" + value + " without " + missing + ": start"), 0u)
        << error({{set, value}});
  };
  expect_missing("OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK");
  expect_missing("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE");
  expect_missing("PMI_SIZE", "2", "PMI_RANK");
  expect_missing("PMI_RANK", "1", "PMI_SIZE");
  expect_missing("SLURM_STEP_NUM_TASKS", "4", "SLURM_PROCID");
  EXPECT_EQ(error({{"PMI_SIZE", "two"}}), "the variable PMI_SIZE=two must be a number from 1 to 16384");
  // These are whole: a job of one, a shell of sbatch, another launcher that says all, variables of our own.
  set({{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(Environment::from_process().world_size, 1);
  set({{"PMI_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "7"}});
  EXPECT_EQ(Environment::from_process().world_size, 2);
  set({{"OMPI_COMM_WORLD_SIZE", "4"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(Environment::from_process().world_size, 1);
}

TEST_F(EnvironmentTest, NonsenseIsNamed) {
  EXPECT_EQ(error({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "3"}}),
            "the variable OMPI_COMM_WORLD_RANK=3 must be a number from 0 to 2");
  EXPECT_NE(error({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})
                .find("this job of mpirun (Open MPI) has 4 processes, not all of them on this machine"),
            std::string::npos);
  EXPECT_EQ(error({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
            "the variable MASTER_PORT is not set: start the program with rondorun");
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
