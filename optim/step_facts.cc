// The facts of a step that processes compare if they train one model (update_facts.h).
#include "absl/strings/str_cat.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::optim {
namespace {

// Returns the upper 53 bits of a hash, which a double holds exactly.
double number_of(uint64_t hash) { return static_cast<double>(hash >> 11); }

}  // namespace

UpdateFacts Step::facts_of(Optimizer& optimizer, const StepOptions& options) {
  OptimizerState& state = state_of(optimizer);
  const bool names_wanted = state.fact_names == nullptr;
  std::vector<std::string> names;
  UpdateFacts facts;
  // `group`: negative for facts about all groups.
  const auto add = [&](int group, std::string_view name, double number) {
    facts.numbers.push_back(number);
    if (!names_wanted) return;
    const std::string where = group < 0 ? "" : absl::StrCat(", group ", group);
    names.push_back(absl::StrCat(optimizer.name(), where, ": ", std::string(name)));
  };
  add(-1, "number of groups", optimizer.n_groups());
  add(-1, "hash of which parameters were updated (0: all that have a gradient)", 0);  // kUpdatedFact
  add(-1, "max_norm", options.max_norm);
  add(-1, "grad_scale", options.grad_scale);
  add(-1, "decay of averages (-1: none)", state.averaging ? state.average_decay : -1);
  add(-1, "warm-up of averages", state.averaging && state.average_warmup ? 1 : 0);
  for (int group = 0; group < optimizer.n_groups(); ++group) {
    const auto g = static_cast<size_t>(group);
    add(group, "number of parameters", static_cast<double>(state.group_sizes[g]));
    optimizer.visit_options(group, [&](std::string_view name, Saved, double& value) { add(group, name, value); });
    add(group, "hash of shapes, formula and format of states", number_of(state.group_hashes[g]));
    const ScalarRule rule = optimizer.scalars(group);
    io::Checksum sum;
    sum.update(rule.values.data(), sizeof rule.values);
    add(group, "hash of the formula's scalars", number_of(sum.digest()));
  }
  if (names_wanted) state.fact_names = std::make_shared<const std::vector<std::string>>(std::move(names));
  facts.names = state.fact_names;
  if (state.states_loaded) state.loaded_facts = facts_of_states(optimizer.name(), optimizer.state_dict());
  state.states_loaded = false;
  if (!state.loaded_facts) return facts;
  std::vector<std::string> all = *facts.names;
  all.insert(all.end(), state.loaded_facts->names->begin(), state.loaded_facts->names->end());
  facts.names = std::make_shared<const std::vector<std::string>>(std::move(all));
  facts.numbers.insert(facts.numbers.end(), state.loaded_facts->numbers.begin(), state.loaded_facts->numbers.end());
  state.loaded_facts.reset();
  return facts;
}

double Step::hash_of(const std::vector<bool>& updated) {
  io::Checksum sum;
  for (const bool is_updated : updated) sum.update(&is_updated, sizeof is_updated);
  return number_of(sum.digest());
}

UpdateFacts Step::facts_of_states(const char* optimizer, const nn::StateDict& state) {
  std::vector<std::string> names;
  UpdateFacts facts;
  for (const auto& [name, value] : state) {
    if (!name.starts_with("state.")) continue;
    const Tensor here = value.detach().contiguous().to(kCPU);
    io::Checksum sum;
    sum.update(name);
    sum.update(to_string(here.sizes()));
    sum.update(here.raw_data(), static_cast<size_t>(here.nbytes()));
    names.push_back(absl::StrCat(optimizer, ", loaded: hash of ", name));
    facts.numbers.push_back(number_of(sum.digest()));
  }
  facts.names = std::make_shared<const std::vector<std::string>>(std::move(names));
  return facts;
}

}  // namespace rondo::optim
