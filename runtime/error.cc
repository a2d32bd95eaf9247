#include "rondo/runtime/error.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/location.h"

namespace rondo {
namespace {

// Rondo's own modules call ops too; a user wants the line of their own program.
bool is_library_file(std::string_view file) {
  for (std::string_view folder : {"/rondo/modules/", "/rondo/optim/", "/rondo/compile/", "/rondo/runtime/"})
    if (file.find(folder) != file.npos) return true;
  // The source tree, by whatever name this build gives it (absolute, relative or mapped).
  static constexpr std::string_view kThis = __FILE__, kName = "runtime/error.cc";
  static_assert(kThis.ends_with(kName));
  constexpr std::string_view root = kThis.substr(0, kThis.size() - kName.size());
  if (!file.starts_with(root)) return false;
  for (std::string_view folder : {"modules/", "optim/", "compile/", "runtime/"})
    if (file.substr(root.size()).starts_with(folder)) return true;
  return false;
}

// As above. A location's file name is a literal, so its address stands for it; a name that a plug-in brought and took
// away again could at worst make a report name the wrong frame.
bool is_known_library_file(const char* file) {
  struct Known {
    const char* file = nullptr;
    bool library = false;
  };
  thread_local Known known[64];
  Known& slot = known[(reinterpret_cast<uintptr_t>(file) >> 3) * 0x9E3779B97F4A7C15u >> 58];
  if (slot.file != file) slot = {file, is_library_file(file)};
  return slot.library;
}

}  // namespace

std::source_location user_location(std::source_location where) {
  for (const ModuleFrame* f = ModuleFrame::innermost(); f != nullptr && is_known_library_file(where.file_name());
       f = f->outer())
    where = f->where();
  return where;
}

FileError::FileError(std::string path, std::string_view reason)
    : Error(path + ": " + std::string(reason)), path_(std::move(path)) {}

void throw_internal(std::string_view what, std::source_location where) {
  throw InternalError(
      absl::StrCat("internal error: ", std::string(what), " (", where.file_name(), ":", where.line(), ")"));
}

std::string describe_location(std::source_location where) {
  where = user_location(where);
  const ModuleFrame* frame = ModuleFrame::innermost();
  if (where.line() == 0 && frame == nullptr) return "";  // a graph that was read from text
  std::string text = absl::StrCat(" (", where.file_name(), ":", where.line());
  if (frame != nullptr && !frame->path().empty()) absl::StrAppend(&text, ", in ", frame->path());
  return text + ")";
}

void throw_op_error(std::string_view op, std::string_view what, std::source_location where) {
  throw Error(absl::StrCat(std::string(op), ": ", std::string(what), describe_location(where)));
}

}  // namespace rondo
