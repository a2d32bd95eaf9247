#include "rondo/compile/stages/reproducer.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::compile {
namespace {

// FNV-1a: the same on every machine.
uint64_t hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001B3u;
  return h;
}

std::string contents(const StageInput& input, std::string_view error) {
  return absl::StrCat("# A stage of the compiler failed. rondo_replay FILE runs it again.\n# ",
                      absl::StrReplaceAll(std::string(error), {{"\n", "\n# "}}), "\nstage ",
                      std::string(name_of(input.stage)), "\n", input.text());
}

}  // namespace

std::string save_reproducer(const StageInput& input, std::string_view error) {
  const char* chosen = std::getenv("RONDO_REPRODUCERS");
  if (chosen != nullptr && std::string_view(chosen) == "off") return "";
  try {
    const std::string text = contents(input, error);
    const std::filesystem::path folder = chosen != nullptr && *chosen != '\0' ? chosen
                                                                              : std::filesystem::temp_directory_path();
    std::filesystem::create_directories(folder);
    const std::string path =
        (folder / formatted("rondo-%s-%016x.txt", std::string(name_of(input.stage)), hash(text))).string();
    io::write_file_atomic(path, text);
    return absl::StrCat(" (to reproduce: rondo_replay ", path, ")");
  } catch (const std::exception& e) {  // the first failure is the one to report
    return absl::StrCat(" (no reproducer: ", e.what(), ")");
  }
}

void run_reproducible(const StageInput& input, absl::FunctionRef<void()> body) {
  try {
    enter_stage(input.stage);
    body();
  } catch (const OutOfMemoryError&) {
    throw;  // the stage has not failed
  } catch (const Error& e) {
    if (input.may_refuse) throw;
    throw Error(absl::StrCat(e.what(), save_reproducer(input, e.what())));
  } catch (const InternalError& e) {
    throw InternalError(absl::StrCat(e.what(), save_reproducer(input, e.what())));
  }
}

}  // namespace rondo::compile
