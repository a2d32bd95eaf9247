#include "rondo/compile/jit/artifacts.h"

#include <algorithm>
#include <istream>
#include <iterator>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/jit/tuner.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/trusted_file.h"

// Implements the functions of cache.h for artifact files, and its report. Both cover the code of all targets.
namespace rondo::compile {
namespace {

std::string component(const HostKey& key, const char* name) {
  for (const HostKey::Component& c : key.components)
    if (c.name == name) return c.value;
  return "";
}

// Says why the code of `target` cannot be used, if no device of this process runs it, and what the user can do.
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

// Takes over a section of an artifact, made for `target`. Its choices of Mode::kMaxAutotune go to the tuner, after its
// kernels are taken.
absl::Status take(const Target& target, KernelFile section) {
  const std::string build = component(HostKey::parse(section.host), "build");
  for (const RuntimeCode& kind : target.runtime_code)
    if (kind.build == build) return kind.take(section);
  std::vector<KernelRecord>& records = section.kernels;
  const auto choices = std::stable_partition(records.begin(), records.end(),
                                             [](const KernelRecord& r) { return !Tuner::is_choice(r); });
  const std::vector<KernelRecord> chosen(std::make_move_iterator(choices), std::make_move_iterator(records.end()));
  records.erase(choices, records.end());
  absl::Status status = CodeStore::of(target).take(std::move(section));
  for (const KernelRecord& record : chosen)
    if (status.ok()) status = Tuner::instance().take(target.key(), record);
  return status;
}

constexpr const char* kNoPath = "artifacts";

int load(std::string_view bytes, const std::string& path) {
  using Cause = ArtifactError::Cause;
  const auto fail = [&](Cause cause, const std::string& why) { throw ArtifactError(path, cause, why); };
  absl::StatusOr<std::vector<KernelFile>> sections = io::unpack_artifact(bytes);
  if (absl::IsFailedPrecondition(sections.status()))
    fail(Cause::kOtherVersion, std::string(sections.status().message()));
  if (!sections.ok()) fail(Cause::kDamaged, std::string(sections.status().message()));
  int taken = 0;
  std::vector<std::string> reasons;  // why sections were passed over
  Cause cause = Cause::kOtherVersion;
  const auto pass_over = [&](std::string why, bool other_machine) {
    if (other_machine) cause = Cause::kOtherMachine;
    if (std::find(reasons.begin(), reasons.end(), why) == reasons.end()) reasons.push_back(std::move(why));
  };
  for (KernelFile& section : *sections) {
    const HostKey made_for = HostKey::parse(section.host);
    const std::string name = component(made_for, "target");
    const auto target = std::find_if(targets().begin(), targets().end(),
                                     [&](const Target* t) { return t->name() == name; });
    if (target == targets().end()) {
      pass_over(
          absl::StrCat("made for ", name.empty() ? "an unknown target" : name, ", which this build does not know"),
          /*other_machine=*/true);
      continue;
    }
    if (!device_of(**target).has_value()) {
      pass_over(missing_device(**target), /*other_machine=*/true);
      continue;
    }
    const auto count = std::count_if(section.kernels.begin(), section.kernels.end(),
                                     [](const KernelRecord& r) { return !Tuner::is_choice(r); });
    const bool same_machine = component(made_for, "cpu") == component((*target)->key(), "cpu");
    const absl::Status status = take(**target, std::move(section));
    if (status.ok()) taken += static_cast<int>(count);
    else if (absl::IsFailedPrecondition(status)) pass_over(std::string(status.message()), !same_machine);
    else fail(Cause::kDamaged, std::string(status.message()));
  }
  if (taken == 0 && !reasons.empty()) fail(cause, absl::StrJoin(reasons, "; "));
  return taken;
}

}  // namespace

std::vector<KernelFile> artifact_sections(std::span<const Target* const> of) {
  std::vector<KernelFile> sections;
  for (const Target* target : of) {
    // Uses existing stores only: making one needs the target's key, which needs the compiler.
    for (const CodeStore* store : CodeStore::all())
      if (&store->target() == target) {
        KernelFile generated = store->contents();
        std::vector<KernelRecord> choices = Tuner::instance().contents(generated.host);
        std::move(choices.begin(), choices.end(), std::back_inserter(generated.kernels));
        if (!generated.kernels.empty()) sections.push_back(std::move(generated));
      }
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

void save_artifacts(const std::string& path) { write_artifact(path, artifact_bytes()); }
void save_artifacts(std::ostream& out) {
  const std::string bytes = artifact_bytes();
  if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush())
    throw Error("save_artifacts: the stream did not take the bytes");
}
std::string artifact_bytes() {
  return within_memory("artifact_bytes", [] { return io::pack_artifact(artifact_sections(targets())); });
}

int load_artifacts(const std::string& path) {
  const absl::StatusOr<std::string> bytes = io::read_trusted_file(path);
  if (!bytes.ok()) throw FileError(path, std::string(bytes.status().message()));
  return load(*bytes, path);
}
int load_artifacts(std::istream& in) {
  return within_memory("load_artifacts", [&] {
    if (!in) throw Error("load_artifacts: the stream has failed already; did its file open?");
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    return load(bytes, kNoPath);
  });
}
int load_artifact_bytes(std::string_view bytes) { return load(bytes, kNoPath); }

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
