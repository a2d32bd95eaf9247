#include "rondo/dist/groups/nccl_library.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/library.h"

namespace rondo::dist {
namespace {

constexpr int kOldestNccl = 21800;

struct FoundNccl {
  std::mutex mutex;
  bool asked = false;
  const NcclLibrary* library = nullptr;
  std::string why_not;
  std::vector<std::unique_ptr<const NcclLibrary>> all;  // never freed: groups may still use a table after forget_nccl()
};
FoundNccl& found_nccl() {
  static FoundNccl* found = new FoundNccl;  // never destroyed: a group may be destroyed after main()
  return *found;
}

// Returns the text of an NCCL_VERSION_CODE. Its encoding changed with NCCL 2.9.
std::string version_text(int code) {
  return code < 10'000 ? absl::StrCat(code / 1000, ".", code % 1000 / 100, ".", code % 100)
                       : absl::StrCat(code / 10'000, ".", code % 10'000 / 100, ".", code % 100);
}

// Returns the table of the functions of the library with this handle. If the library is too old or lacks a function,
// returns null and sets `*why_not`.
std::unique_ptr<const NcclLibrary> table_of(void* handle, const std::string& path, std::string* why_not) {
  auto library = std::make_unique<NcclLibrary>();
  library->path = path;
  const char* missing = nullptr;
#define RONDO_NCCL_BIND(member, symbol, ...)                                                   \
  library->member = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(handle, #symbol)); \
  if (library->member == nullptr && missing == nullptr) missing = #symbol;
  RONDO_NCCL(RONDO_NCCL_BIND)
#undef RONDO_NCCL_BIND
  int version = 0;
  if (library->version != nullptr && library->version(&version) != NcclResult::kSuccess) version = 0;
  library->version_text = version_text(version);
  if (version < kOldestNccl) {
    *why_not = absl::StrCat(path, " is too old: it is NCCL ", library->version_text, ", and Rondo needs ",
                            version_text(kOldestNccl));
    return nullptr;
  }
  if (missing != nullptr) {
    *why_not = absl::StrCat(path, " has no ", missing);
    return nullptr;
  }
  return library;
}

}  // namespace

const NcclLibrary* find_nccl(std::string* why_not) {
  FoundNccl& found = found_nccl();
  const std::lock_guard lock(found.mutex);
  if (!std::exchange(found.asked, true)) {
    std::string path;
    if (void* handle = cuda::open_library("libnccl.so", {"2"}, &path, &found.why_not))
      if (auto library = table_of(handle, path, &found.why_not))
        found.library = found.all.emplace_back(std::move(library)).get();
  }
  if (why_not != nullptr) *why_not = found.why_not;
  return found.library;
}

void forget_nccl() {
  FoundNccl& found = found_nccl();
  const std::lock_guard lock(found.mutex);
  found.asked = false;
  found.library = nullptr;
  found.why_not.clear();
}

std::string describe(const NcclLibrary& library, NcclResult result, NcclComm comm) {
  const char *what = library.error_string(result), *more = library.last_error(comm);
  std::string text = what == nullptr ? absl::StrCat("result ", static_cast<int>(result)) : std::string(what);
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, " (", more, ")");
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

}  // namespace rondo::dist
