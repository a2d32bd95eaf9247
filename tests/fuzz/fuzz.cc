#include "rondo/tests/fuzz/fuzz.h"

#include "absl/strings/str_cat.h"
#include "rondo/tests/fuzz/shrink.h"

namespace rondo::fuzz {

std::string try_seed(uint64_t seed, const FuzzOptions& options) {
  const auto compare = [&](const Program& program) {
    return options.compare ? options.compare(program) : difference(program, options.check);
  };
  Program program;
  std::string what;
  try {
    program = generate(seed, options.generate);
    what = compare(program);
  } catch (const std::exception& e) {
    return absl::StrCat("seed ", seed, ": the fuzzer itself fails: ", e.what(), "\n", to_string(program));
  }
  if (what.empty()) return "";
  // A smaller program may fail in another way; but it fails.
  const Program small = shrink(program, [&](const Program& candidate) {
    try {
      return !compare(candidate).empty();
    } catch (const std::exception&) {
      return false;  // shrinking made something that no longer fits together
    }
  });
  return absl::StrCat("seed ", seed, ": ", what, "\nshrunk from ", program.steps.size(), " to ", small.steps.size(),
                      " steps: ", compare(small), "\n", to_string(small), "repeat with: fuzz_compile --seed ", seed,
                      " --steps ", options.generate.max_steps, " --large ", options.generate.large, "\n");
}

}  // namespace rondo::fuzz
