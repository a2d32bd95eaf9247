#include "rondo/dist/groups/compile_once.h"

#include <cstring>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/compile/cache.h"

namespace rondo::dist {
namespace {

constexpr const char* kName = "compiled code";

// Rank 0's outcome, which every rank receives.
struct Outcome {
  bool failed = false;
  std::string bytes;  // artifacts, or the error's message
};
void broadcast(ProcessGroup& group, Outcome& outcome) {
  Tensor header = Tensor::from<int64_t>({outcome.failed, static_cast<int64_t>(outcome.bytes.size())}, {2}, kCPU);
  group.broadcast(header, /*root=*/0, kName).wait();
  const std::vector<int64_t> numbers = header.to_vector<int64_t>();
  outcome.failed = numbers[0] != 0;
  outcome.bytes.resize(static_cast<size_t>(numbers[1]));
  if (outcome.bytes.empty()) return;
  Tensor bytes = Tensor::zeros({numbers[1]}, {kU8, kCPU});
  std::memcpy(bytes.mutable_data<uint8_t>(), outcome.bytes.data(), outcome.bytes.size());
  group.broadcast(bytes, /*root=*/0, kName).wait();
  std::memcpy(outcome.bytes.data(), bytes.data<uint8_t>(), outcome.bytes.size());
}

int load(const std::string& bytes) {
  try {
    return compile::load_artifact_bytes(bytes);
  } catch (const compile::ArtifactError& error) {
    if (error.cause() == compile::ArtifactError::Cause::kDamaged) throw;
    return 0;  // made for another processor, device or build
  }
}

}  // namespace

int compile_once(ProcessGroup& group, const std::function<void()>& work) {
  if (work == nullptr) throw Error("compile_once: there is no work");
  if (group.rank() != 0) {
    Outcome outcome;
    broadcast(group, outcome);
    if (outcome.failed) throw Error(absl::StrCat("compile_once: rank 0 failed: ", outcome.bytes));
    const int loaded = load(outcome.bytes);
    work();
    return loaded;
  }
  Outcome outcome;
  std::exception_ptr error;
  try {
    work();
    if (group.world_size() > 1) outcome.bytes = compile::artifact_bytes();
  } catch (const std::exception& e) {
    error = std::current_exception();
    outcome = {true, e.what()};
  } catch (...) {
    error = std::current_exception();
    outcome = {true, "by something that is no std::exception"};
  }
  broadcast(group, outcome);
  if (error) std::rethrow_exception(error);
  return 0;
}

}  // namespace rondo::dist
