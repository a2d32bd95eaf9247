#include "rondo/compile/jit/targets.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/cpu/target.h"
#include "rondo/compile/jit/cuda/target.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::compile {
namespace {

// A new target is one line here.
constexpr const Target* kTargets[] = {
    &cpu::kTarget,
    &cuda::kSm80,
    &cuda::kSm90,
    &cuda::kSm100,
};

std::string names() {
  std::string text;
  for (const Target* target : kTargets) absl::StrAppend(&text, text.empty() ? "" : ", ", target->name());
  return text;
}

}  // namespace

const Target* find_target(Device device) {
  for (const Target* target : kTargets)
    if (target->backend == backend_of(device).kernels && (target->runs_on == nullptr || target->runs_on(device)))
      return target;
  return nullptr;
}

const Target& target_of(Device device) {
  if (const Target* target = find_target(device)) return *target;
  throw Error(absl::StrCat("compile: there is no code generator for ", to_string(device), " (there are: ", names(),
                           "); run its modules without compilation"));
}

std::optional<Device> device_of(const Target& target) {
  for (int i = 0; i < device_count(target.backend); ++i) {
    const Device device{target.backend, static_cast<int8_t>(i)};
    if (target.runs_on == nullptr || target.runs_on(device)) return device;
  }
  return std::nullopt;
}

const Target& target_named(std::string_view name) {
  for (const Target* target : kTargets)
    if (target->name() == name) return *target;
  throw Error(absl::StrCat("compile: no target \"", std::string(name), "\"; there are: ", names()));
}

std::span<const Target* const> targets() { return kTargets; }

}  // namespace rondo::compile
