#include "rondo/runtime/cuda/dnn_store.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/nvrtc.h"

namespace rondo::cuda {
namespace {

struct PlanStores {
  std::mutex mutex;
  std::map<int, std::shared_ptr<io::ObjectStore>> by_capability;  // each maps the text of a graph to its plan
};
PlanStores& plan_stores() {
  static auto* const stores = new PlanStores;
  return *stores;
}

// The key of plans in caches and artifacts. `version`: "" if there is no cuDNN. Artifacts are then accepted, but their
// plans are never used.
io::HostKey key_of_plans(int capability, const std::string& version) {
  return {{{"target", absl::StrCat("cuda ", Architecture(architecture_of(capability)).name())},
           {"build", kDnnMaker},
           {"capability", absl::StrCat(capability)},
           {"cuDNN", version}}};
}

// Returns the store of a capability. Makes a new one if cuDNN's version has changed.
std::shared_ptr<io::ObjectStore> store_of(int capability, const std::string& version) {
  io::HostKey key = key_of_plans(capability, version);
  const std::lock_guard lock(plan_stores().mutex);
  std::shared_ptr<io::ObjectStore>& store = plan_stores().by_capability[capability];
  if (store == nullptr || key.text() != store->host().text())
    store = std::make_shared<io::ObjectStore>(io::DiskCacheOptions::from_environment(), std::move(key));
  return store;
}

absl::Status unpack(const std::string& bytes, MadePlan& plan, const char* damage) {
  return plan.unpack(bytes) ? absl::OkStatus() : absl::InvalidArgumentError(damage);
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
  StoredPlan stored;
  const auto read = [&](const std::string& bytes) { return unpack(bytes, stored.plan, "a plan of cuDNN is damaged"); };
  const auto make_and_pack = [&]() -> std::optional<std::string> {
    stored.plan = make();
    if (stored.plan.text.empty() && !keeps_refusals) return std::nullopt;
    return stored.plan.pack();
  };
  stored.from = store_of(capability, version_of(library))->find_or_make(graph, read, make_and_pack);
  return stored;
}

void replace_plan(const Cudnn& library, int capability, const std::string& graph, const MadePlan& plan) {
  store_of(capability, version_of(library))->add(graph, plan.pack());
}

std::vector<io::KernelFile> stored_plans(int architecture) {
  const std::lock_guard lock(plan_stores().mutex);
  std::vector<io::KernelFile> files;
  for (const auto& [capability, store] : plan_stores().by_capability) {
    if (store == nullptr || architecture_of(capability) != architecture) continue;
    io::KernelFile file = store->contents();
    std::erase_if(file.kernels, [](const io::KernelRecord& record) {
      MadePlan plan;
      return !plan.unpack(record.object) || plan.text.empty();
    });
    if (!file.kernels.empty()) files.push_back(std::move(file));
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
  return store_of(capability, version)->take(file, [](const std::string& bytes) {
    MadePlan plan;
    return unpack(bytes, plan, "a plan of cuDNN in the file is damaged");
  });
}

void forget_plans() {
  const std::lock_guard lock(plan_stores().mutex);
  plan_stores().by_capability.clear();
}

}  // namespace rondo::cuda
