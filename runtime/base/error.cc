#include "rondo/runtime/base/error.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/called_as.h"
#include "rondo/runtime/base/location.h"

namespace rondo {
namespace {

// True for Rondo's own files. Rondo's modules call ops, too, but users want to see the line of their own program.
bool is_library_file(std::string_view file) {
  for (std::string_view folder : {"/rondo/modules/", "/rondo/optim/", "/rondo/compile/", "/rondo/runtime/"})
    if (file.find(folder) != file.npos) return true;
  // The source tree, under the name that this build gives it (absolute, relative or mapped).
  static constexpr std::string_view kThis = __FILE__, kName = "runtime/base/error.cc";
  static_assert(kThis.ends_with(kName));
  constexpr std::string_view root = kThis.substr(0, kThis.size() - kName.size());
  if (!file.starts_with(root)) return false;
  for (std::string_view folder : {"modules/", "optim/", "compile/", "runtime/"})
    if (file.substr(root.size()).starts_with(folder)) return true;
  return false;
}

// Returns is_library_file(), cached by the address of the file name, which is a literal. An unloaded plug-in may leave
// a stale address behind; the worst outcome is a report that names the wrong frame.
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

CallSite::CallSite(std::source_location where) : where_(user_location(where)) {
  const ModuleFrame* frame = ModuleFrame::innermost();
  known_ = where_.line() != 0 || frame != nullptr;  // false in a graph that was parsed from text
  if (frame != nullptr) module_ = frame->path();
}

std::string CallSite::text() const {
  if (!known_) return "";
  return absl::StrCat(" (", where_.file_name(), ":", where_.line(), module_.empty() ? "" : ", in ", module_, ")");
}

std::string describe_location(std::source_location where) {
  if (const CallSite* site = CallSiteScope::current()) return site->text();
  return CallSite(where).text();
}

namespace {
thread_local const CalledAs* innermost_name = nullptr;
}

CalledAs::CalledAs(std::string_view called, std::string_view op) : called_(called), op_(op), outer_(innermost_name) {
  innermost_name = this;
}
CalledAs::~CalledAs() { innermost_name = outer_; }
std::string_view CalledAs::name_of(std::string_view op) {
  for (const CalledAs* scope = innermost_name; scope != nullptr; scope = scope->outer_)
    if (scope->op_ == op) op = scope->called_;
  return op;
}

void throw_op_error(std::string_view op, std::string_view what, std::source_location where) {
  throw Error(absl::StrCat(std::string(CalledAs::name_of(op)), ": ", std::string(what), describe_location(where)));
}

void throw_undefined(const char* op, std::source_location where) {
  throw_op_error(op, "the tensor is undefined", where);
}

}  // namespace rondo
