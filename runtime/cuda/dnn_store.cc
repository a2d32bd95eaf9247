#include "rondo/runtime/cuda/dnn_store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/io/disk_cache.h"

namespace rondo::cuda {
namespace {

// 4,096 plans have about 12 MB.
constexpr size_t kMostPlans = 4096;

struct HeldPlan {
  MadePlan plan;
  bool from_artifact = false;
};
struct Shelf {
  std::string key;
  std::shared_ptr<io::DiskCache> disk;
  std::map<std::string, HeldPlan> plans;  // by graph
};
struct PlanStore {
  std::mutex mutex;
  std::map<int, Shelf> shelves;  // by capability
};
PlanStore& plan_store() {
  static auto* const store = new PlanStore;
  return *store;
}

// `version`: "" where there is no cuDNN. Artifacts are then accepted and never used.
io::HostKey key_of_plans(int capability, const std::string& version) {
  return {{{"target", absl::StrCat("cuda ", Architecture(architecture_of(capability)).name())},
           {"build", kDnnMaker},
           {"capability", absl::StrCat(capability)},
           {"cuDNN", version}}};
}

// REQUIRES: the lock is held.
Shelf& shelf_of(int capability, const std::string& version) {
  Shelf& shelf = plan_store().shelves[capability];
  io::HostKey key = key_of_plans(capability, version);
  if (shelf.disk != nullptr && shelf.key == key.text()) return shelf;
  if (shelf.disk != nullptr) shelf.plans.clear();  // another cuDNN
  shelf.key = key.text();
  shelf.disk = std::make_shared<io::DiskCache>(io::DiskCacheOptions::from_environment(), std::move(key));
  return shelf;
}

// REQUIRES: the lock is held.
void hold_plan(Shelf& shelf, const std::string& graph, HeldPlan held) {
  if (shelf.plans.size() >= kMostPlans) shelf.plans.erase(shelf.plans.begin());
  shelf.plans[graph] = std::move(held);
}

}  // namespace

std::string MadePlan::pack() const {
  return io::pack({"plan of cuDNN",
                   {{"plan", text},
                    {"why not", why_not},
                    {"engine", absl::StrCat(engine)},
                    {"workspace", absl::StrCat(workspace)},
                    {"notes", notes}}});
}
bool MadePlan::unpack(const std::string& bytes) {
  const absl::StatusOr<io::KernelFile> file = io::unpack(bytes);
  if (!file.ok() || file->host != "plan of cuDNN" || file->kernels.size() != 5) return false;
  text = file->kernels[0].object;
  why_not = file->kernels[1].object;
  notes = file->kernels[4].object;
  return text.empty() != why_not.empty() && absl::SimpleAtoi(file->kernels[2].object, &engine) &&
         absl::SimpleAtoi(file->kernels[3].object, &workspace) && workspace >= 0;
}

StoredPlan stored_plan(const Cudnn& library, int capability, const std::string& graph, bool keeps_refusals,
                       const std::function<MadePlan()>& make) {
  const std::string version = version_of(library);
  std::shared_ptr<io::DiskCache> disk;
  {
    const std::lock_guard lock(plan_store().mutex);
    Shelf& shelf = shelf_of(capability, version);
    disk = shelf.disk;
    if (const auto found = shelf.plans.find(graph); found != shelf.plans.end())
      return {
          std::exchange(found->second.from_artifact, false) ? StoredPlan::From::kArtifact : StoredPlan::From::kMemory,
          found->second.plan};
  }
  StoredPlan stored;
  if (const std::optional<std::string> bytes = disk->find(graph)) {
    if (stored.plan.unpack(*bytes)) stored.from = StoredPlan::From::kDisk;
    else disk->reject(graph, "a plan of cuDNN is damaged");
  }
  if (stored.from != StoredPlan::From::kDisk) {
    stored = {StoredPlan::From::kMade, make()};
    if (stored.plan.text.empty() && !keeps_refusals) return stored;
    disk->store(graph, stored.plan.pack());
  }
  const std::lock_guard lock(plan_store().mutex);
  hold_plan(shelf_of(capability, version), graph, {stored.plan});
  return stored;
}

void replace_plan(const Cudnn& library, int capability, const std::string& graph, const MadePlan& plan) {
  std::shared_ptr<io::DiskCache> disk;
  {
    const std::lock_guard lock(plan_store().mutex);
    Shelf& shelf = shelf_of(capability, version_of(library));
    disk = shelf.disk;
    hold_plan(shelf, graph, {plan});
  }
  disk->store(graph, plan.pack());
}

std::vector<io::KernelFile> stored_plans(int architecture) {
  const std::lock_guard lock(plan_store().mutex);
  std::vector<io::KernelFile> files;
  for (const auto& [capability, shelf] : plan_store().shelves) {
    if (architecture_of(capability) != architecture || shelf.plans.empty()) continue;
    io::KernelFile& file = files.emplace_back();
    file.host = shelf.key;
    for (const auto& [graph, held] : shelf.plans)
      if (!held.plan.text.empty()) file.kernels.push_back({graph, held.plan.pack()});
    if (file.kernels.empty()) files.pop_back();
  }
  return files;
}

absl::Status add_plans(int architecture, const io::KernelFile& file) {
  const io::HostKey there = io::HostKey::parse(file.host);
  int capability = 0;
  for (const io::HostKey::Component& component : there.components)
    if (component.name == "capability")
      for (const char c : component.value) capability = capability * 10 + (c >= '0' && c <= '9' ? c - '0' : 0);
  if (capability < 10 || capability > 9999 || architecture_of(capability) != architecture)
    return absl::InvalidArgumentError(absl::StrCat("plans of cuDNN for a device of capability ", capability));
  const Cudnn* const library = find_cudnn(nullptr);
  const std::string version = library == nullptr ? "" : version_of(*library);
  if (absl::Status status = io::accepts(key_of_plans(capability, version), file.host); !status.ok()) return status;
  std::vector<MadePlan> plans;
  for (const io::KernelRecord& record : file.kernels)
    if (!plans.emplace_back().unpack(record.object))
      return absl::InvalidArgumentError("a plan of cuDNN in the file is damaged");
  const std::lock_guard lock(plan_store().mutex);
  Shelf& shelf = shelf_of(capability, version);
  for (size_t i = 0; i < plans.size(); ++i)
    if (!shelf.plans.contains(file.kernels[i].kernel))
      hold_plan(shelf, file.kernels[i].kernel, {std::move(plans[i]), true});
  return absl::OkStatus();
}

void forget_plans() {
  const std::lock_guard lock(plan_store().mutex);
  plan_store().shelves.clear();
}

}  // namespace rondo::cuda
