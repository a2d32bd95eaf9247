#include "rondo/compile/jit/artifacts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/trusted_file.h"

// The file functions and the report of cache.h: what this process has for all targets.
namespace rondo::compile {
namespace {

std::string component(const HostKey& key, const char* name) {
  for (const HostKey::Component& c : key.components)
    if (c.name == name) return c.value;
  return "";
}

// Advice to the user about code for a target that no device here runs.
std::string missing_device(const Target& target) {
  std::string why_none;
  std::vector<std::string> here;
  for (int i = 0; i < device_count(target.backend, &why_none); ++i) {
    const Device device{target.backend, static_cast<int8_t>(i)};
    const Target* runs = find_target(device);
    here.push_back(absl::StrCat(to_string(device), runs == nullptr ? " has no target" : " takes " + runs->name()));
  }
  return absl::StrCat("made for ", target.name(), ", and ", here.empty() ? why_none : absl::StrJoin(here, ", "),
                      here.empty() ? "" : "; make it for this device with compile_for()");
}

}  // namespace

std::vector<KernelFile> artifact_sections(std::span<const Target* const> of) {
  std::vector<KernelFile> sections;
  for (const Target* target : of) {
    // No store is made here: a key asks for the compiler.
    for (const CodeStore* store : CodeStore::all())
      if (KernelFile generated = store->contents(); &store->target() == target && !generated.kernels.empty())
        sections.push_back(std::move(generated));
    for (const RuntimeCode& code : target->runtime_code)
      for (KernelFile& made : code.contents())
        if (!made.kernels.empty()) sections.push_back(std::move(made));
  }
  return sections;
}

void write_artifact(const std::string& path, const std::string& packed) {
  io::AtomicFile out(path, io::Access::kOwner);
  out.write(packed);
  out.commit();
}

void save_artifacts(const std::string& path) { write_artifact(path, io::pack_artifact(artifact_sections(targets()))); }

int load_artifacts(const std::string& path) {
  const auto fail = [&](const std::string& why) { throw FileError(path, "artifacts: " + why); };
  const absl::StatusOr<std::string> bytes = io::read_trusted_file(path);
  if (!bytes.ok()) fail(std::string(bytes.status().message()));
  absl::StatusOr<std::vector<KernelFile>> sections = io::unpack_artifact(*bytes);
  if (!sections.ok()) fail(std::string(sections.status().message()));
  int taken = 0;
  std::vector<std::string> reasons;  // why sections were passed over
  const auto pass_over = [&](std::string why) {
    if (std::find(reasons.begin(), reasons.end(), why) == reasons.end()) reasons.push_back(std::move(why));
  };
  for (KernelFile& section : *sections) {
    const HostKey made_for = HostKey::parse(section.host);
    const std::string name = component(made_for, "target");
    const auto target = std::find_if(targets().begin(), targets().end(),
                                     [&](const Target* t) { return t->name() == name; });
    if (target == targets().end()) {
      pass_over(
          absl::StrCat("made for ", name.empty() ? "an unknown target" : name, ", which this build does not know"));
      continue;
    }
    if (!device_of(**target).has_value()) {
      pass_over(missing_device(**target));
      continue;
    }
    const int count = static_cast<int>(section.kernels.size());
    const std::string build = component(made_for, "build");
    const std::span<const RuntimeCode> kinds = (*target)->runtime_code;
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const RuntimeCode& k) { return k.build == build; });
    const absl::Status status = kind != kinds.end() ? kind->take(section)
                                                    : CodeStore::of(**target).take(std::move(section));
    if (status.ok()) taken += count;
    else if (absl::IsFailedPrecondition(status)) pass_over(std::string(status.message()));
    else fail(std::string(status.message()));
  }
  if (taken == 0 && !reasons.empty()) fail(absl::StrJoin(reasons, "; "));
  return taken;
}

CacheReport cache_report() {
  CacheReport sum = CodeStore::of(target_of(kCPU)).report();
  for (const CodeStore* store : CodeStore::all()) {
    if (store == &CodeStore::of(target_of(kCPU))) continue;
    CacheReport report = store->report();
    sum.from_memory += report.from_memory;
    sum.from_artifacts += report.from_artifacts;
    sum.from_disk += report.from_disk;
    sum.misses += report.misses;
    std::move(report.missed.begin(), report.missed.end(), std::back_inserter(sum.missed));
  }
  for (const Target* target : targets())
    for (const RuntimeCode& code : target->runtime_code) code.add_to(sum);
  return sum;
}

}  // namespace rondo::compile
