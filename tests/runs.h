// The ways in which a model of blocks runs, for tests that go through all of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "rondo/compile/compile.h"

namespace rondo::test {

enum class Runs : uint8_t { kEagerly, kInRegions, kWhole };

inline void compile_as(Runs how, nn::ModuleBase& model) {
  if (how == Runs::kInRegions) compile::compile_regions(model);
  if (how == Runs::kWhole) compile::compile_module(model);
}

inline std::string name_of_runs(const testing::TestParamInfo<Runs>& info) {
  constexpr const char* kNames[] = {"eager", "regions", "whole"};
  return kNames[static_cast<size_t>(info.param)];
}

inline const Runs kAllRuns[] = {Runs::kEagerly, Runs::kInRegions, Runs::kWhole};

}  // namespace rondo::test
