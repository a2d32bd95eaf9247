// Checkpoints of a Trainer: their contents, and the checks before a run resumes from one.
#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/log.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/lora/lora_layer.h"
#include "rondo/optim/trainer/trainer_run.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::optim {
namespace {

constexpr std::string_view kBest = "best.", kScaler = "scaler.";

void add(io::Checksum& sum, std::string_view text) {
  const uint64_t length = text.size();
  sum.update(&length, sizeof length);
  sum.update(text);
}

void add(io::Checksum& sum, const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous().to(kCPU);
  add(sum, name_of(dense.dtype()));
  add(sum, to_string(dense.sizes()));
  if (dense.numel() > 0) sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
}

std::string text_of(const io::Checksum& sum) { return absl::StrCat(absl::Hex(sum.digest(), absl::kZeroPad16)); }

// Describes the properties of an adapter that the shapes of its tensors do not show.
std::string adapter_identity(nn::ModuleBase& model) {
  const std::string name = nn::active_adapter(model);
  if (name.empty()) return "none";
  const nn::LoraOptions o = nn::adapter_options(model, name);
  std::string patterns;
  for (const auto& [pattern, alpha] : o.alpha_pattern) absl::StrAppend(&patterns, ", alpha ", alpha, " of ", pattern);
  return absl::StrCat("'", name, "' of rank ", o.rank, ", alpha ", o.alpha, ", dropout ", o.dropout,
                      o.rslora ? ", rslora" : "", patterns);
}

// Returns the entries whose names begin with `prefix`, and removes the prefix from their names.
nn::StateDict with_prefix(const io::TensorMap& tensors, std::string_view prefix) {
  nn::StateDict found;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  return found;
}

// Returns whether two paths name the same file, however they are spelled.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  return std::filesystem::equivalent(a, b, none);
}

// Returns the options, by name, that a resumed run takes from its own TrainerOptions. It warns if the interrupted run
// had others.
std::map<std::string, std::string> settings_of(const TrainerOptions& o) {
  return {{"seed", absl::StrCat(o.seed)},
          {"max_grad_norm", absl::StrCat(o.max_grad_norm)},
          {"autocast", o.autocast ? std::string(name_of(*o.autocast)) : "off"}};
}

// Changes the order of a data source's batches. Without keep() the destructor restores its order, position and
// checksum.
class OrderOf {
 public:
  OrderOf(data::BatchSource& source, std::string& checksum)
      : source_(source), checksum_(checksum), rows_(source.rows()), at_(source.position()), known_(checksum) {}
  ~OrderOf() {
    if (!changed_) return;
    try {
      source_.cut_from(rows_.order);
      source_.seek(at_);
      checksum_ = known_;
    } catch (...) {  // the source had this order before: only a source that breaks its contract throws
    }
  }
  OrderOf(const OrderOf&) = delete;
  OrderOf& operator=(const OrderOf&) = delete;
  bool cut_from(int64_t rows) {
    changed_ = source_.cut_from(rows);
    if (changed_) checksum_.clear();
    return changed_;
  }
  void keep() { changed_ = false; }

 private:
  data::BatchSource& source_;
  std::string& checksum_;
  const data::BatchSource::Rows rows_;
  const data::BatchSource::Position at_;
  const std::string known_;
  bool changed_ = false;
};

void check_fits(const std::vector<nn::NamedTensor>& targets, const nn::StateDict& state, const std::string& what) {
  nn::load_tensors(targets, state, /*strict=*/true, what, [](Tensor& /*target*/, const Tensor& /*value*/) {});
}

}  // namespace

bool TrainerRun::only_trainable() const {
  return options_.save_only_trainable.value_or(!nn::active_adapter(model_).empty());
}

std::vector<nn::NamedTensor> TrainerRun::trained_tensors() const {
  nn::StateDict state = model_.state_dict();
  for (const nn::NamedTensor& p : model_.named_parameters())
    if (!p.tensor.requires_grad()) state.erase(p.name);
  std::vector<nn::NamedTensor> tensors;
  for (auto& [name, tensor] : state) tensors.push_back({name, tensor});
  return tensors;
}

std::vector<nn::NamedTensor> TrainerRun::saved_tensors() const {
  if (only_trainable()) return trained_tensors();
  std::vector<nn::NamedTensor> tensors;
  for (auto& [name, tensor] : model_.state_dict()) tensors.push_back({name, tensor});
  return tensors;
}

// Returns a checksum of the frozen parameters, without those of other adapters. It is computed once, because these
// parameters do not change.
const std::string& TrainerRun::base_checksum() {
  if (!base_checksum_.empty()) return base_checksum_;
  io::Checksum sum;
  std::unordered_set<const TensorImpl*> seen;  // so that tied parameters count once
  for (const nn::NamedModule& m : nn::base_modules(model_))
    for (const nn::ModuleBase::Slot& slot : m.module.own_slots()) {
      const Tensor& p = *slot.tensor;
      if (!slot.is_parameter || !p.defined() || p.requires_grad() || !seen.insert(p.impl()).second) continue;
      add(sum, m.name);
      add(sum, slot.name);
      add(sum, p);
    }
  return base_checksum_ = text_of(sum);
}

// Returns the fingerprint of the data. If the source has none, returns a checksum of a few batches spread over the
// first epoch, with the first and the last one, or of the first few if the epoch does not end. Other data, batch sizes,
// tokenizers, shuffles or masks give other checksums.
const std::string& TrainerRun::data_checksum() {
  if (!data_checksum_.empty()) return data_checksum_;
  if (const uint64_t known = source_.fingerprint(); known != 0)
    return data_checksum_ = absl::StrCat(absl::Hex(known, absl::kZeroPad16));
  const data::BatchSource::Position before = source_.position();
  const bool ends = source_.size() != data::BatchSource::kEndless;
  const int64_t last = ends ? source_.size() - 1 : 3, parts = std::min<int64_t>(last, 3);
  io::Checksum sum;
  try {
    for (int64_t part = 0; part <= parts; ++part) {
      source_.seek({0, parts == 0 ? 0 : last / parts * part + last % parts * part / parts});
      const std::optional<data::Batch> batch = source_.next();
      if (!batch) throw Error("Trainer: the training data holds no batch");
      for (const Tensor& tensor : *batch) add(sum, tensor);
    }
  } catch (...) {
    source_.seek(before);
    throw;
  }
  source_.seek(before);
  return data_checksum_ = text_of(sum);
}

// If output_dir has checkpoints of another run, throws Error, or deletes them with overwrite_output_dir: this run must
// not be resumed from them later.
void TrainerRun::claim_output_dir() {
  const std::string& folder = options_.output_dir;
  if (!writes() || owns_output_dir_) return;
  std::vector<std::string> others = io::list_checkpoints(folder);  // newest first
  bool resumed_here = false;
  for (size_t i = 0; i < others.size() && !resumed_here; ++i)
    if (same_file(others[i], resumed_path_)) {
      others.resize(i);  // keeps those that are newer than the resumed one
      resumed_here = true;
    }
  if (!others.empty() && !options_.overwrite_output_dir)
    throw Error(absl::StrCat("Trainer: ", folder, " holds ", resumed_here ? "later " : "",
                             "checkpoints of another run, the newest is ", others.front(),
                             ". Call resume_from_checkpoint() to go on from it, set overwrite_output_dir to delete ",
                             others.size() == 1 ? "it" : "them", ", or choose another output_dir"));
  for (const std::string& path : others) {
    std::error_code error;
    if (!std::filesystem::remove(path, error) && error) throw FileError(path, "cannot remove: " + error.message());
  }
  if (!others.empty()) io::fsync_folder(folder);
  owns_output_dir_ = true;
}

nn::StateDict TrainerRun::optimizer_state() {
  return replicas_ != nullptr ? replicas_->optimizer_state(optimizer_) : optimizer_.state_dict();
}

// Writes a checkpoint. Returns its path, or "" if this process does not write: it has then only sent its part of the
// states.
std::string TrainerRun::write_checkpoint() {
  if (options_.output_dir.empty()) throw Error("Trainer::save_checkpoint: output_dir is empty");
  if (in_step_) throw Error("Trainer::save_checkpoint: a step is under way; save in on_step(), not in on_micro_step()");
  nn::StateDict states = optimizer_state();
  if (!writes()) return "";
  const data::BatchSource::Position at = position();
  io::Checkpoint now{.step = state_.step, .optimizer = std::move(states)};
  for (const nn::NamedTensor& t : saved_tensors()) now.model[t.name] = t.tensor;
  now.state["trainer"] = int64_t{1};  // the version of the checkpoint's format
  now.state["epoch"] = at.epoch;
  now.state["batch"] = at.batch;
  now.state["batches_per_epoch"] = train_data_.size();
  now.state["batches_per_step"] = batches_per_step();
  if (const data::BatchSource::Rows rows = source_.rows(); rows.batch > 0) {
    now.state["rows_per_batch"] = rows.batch;
    now.state["rows_of_order"] = rows.order;
  }
  now.state["epoch_steps"] = state_.step + epoch_offset_;
  now.state["data_checksum"] = data_checksum();
  now.state["only_trainable"] = only_trainable();
  if (only_trainable()) {
    now.state["base_checksum"] = base_checksum();
    now.state["adapter"] = adapter_identity(model_);
  }
  for (const auto& [name, value] : settings_of(options_)) now.state["option." + name] = value;
  now.state["loss"] = state_.loss;
  now.state["lr"] = state_.lr;
  now.state["grad_norm"] = state_.grad_norm;
  now.state["evaluated_step"] = state_.evaluated_step;
  now.state["skipped_steps"] = state_.skipped_steps;
  now.state["best_step"] = state_.best.step;
  now.state["evaluations_since_best"] = state_.best.evaluations_since;
  if (state_.eval_loss) now.state["eval_loss"] = *state_.eval_loss;
  if (state_.best.loss) now.state["best_loss"] = *state_.best.loss;
  if (scaler_)
    for (const auto& [name, tensor] : scaler_->state_dict()) now.extra[std::string(kScaler) + name] = tensor;
  for (const auto& [name, tensor] : state_.best.state) now.extra[std::string(kBest) + name] = tensor;
  return io::save_checkpoint(options_.output_dir, now, {.keep = options_.save_total_limit});
}

std::optional<ResumedRun> TrainerRun::resume_from_checkpoint(const std::string& folder) {
  const std::string& from = folder.empty() ? options_.output_dir : folder;
  if (from.empty()) throw Error("Trainer::resume_from_checkpoint: name a folder, or set output_dir");
  io::LatestCheckpoint latest = io::load_latest_checkpoint(from);
  if (!latest.checkpoint) {
    // Starting silently from the beginning would lose the progress of the run.
    if (!latest.skipped.empty()) throw FileError(latest.skipped.front().path, latest.skipped.front().reason);
    return std::nullopt;
  }
  resume(*latest.checkpoint, latest.path);
  owns_output_dir_ = same_file(from, options_.output_dir);
  return ResumedRun{latest.checkpoint->step, latest.path, std::move(latest.skipped)};
}

void TrainerRun::resume_from_file(const std::string& path) { resume(io::load_checkpoint(path), path); }

// Resumes from a checkpoint. Checks everything before it changes anything.
void TrainerRun::resume(const io::Checkpoint& checkpoint, const std::string& path) {
  if (training_) throw Error("Trainer: resume before train(), not during it");
  const auto refuse = [&](auto... what) {
    throw ResumeError(absl::StrCat("cannot resume from ", path, ": ", what...));
  };
  const auto number = [&](const char* name) { return checkpoint.get<int64_t>(name); };
  if (!checkpoint.state.contains("trainer")) refuse("a Trainer did not write it");
  if (number("trainer") != 1) refuse("it has format ", number("trainer"), " and this version reads 1");

  if (checkpoint.get<bool>("only_trainable") != only_trainable())
    refuse(only_trainable() ? "it holds a whole model, and this run saves only what is trained (an adapter, or "
                              "save_only_trainable)"
                            : "it holds only what was trained, and this run saves the whole model; add the adapter "
                              "first, or set save_only_trainable");
  if (only_trainable()) {
    if (const std::string here = adapter_identity(model_); checkpoint.get<std::string>("adapter") != here)
      refuse("its adapter is ", checkpoint.get<std::string>("adapter"), ", the model's is ", here);
    if (checkpoint.get<std::string>("base_checksum") != base_checksum())
      refuse("it was trained on another base: the frozen parameters differ. Load the model that it was trained on");
  }
  check_fits(saved_tensors(), checkpoint.model, absl::StrCat(path, ", for ", model_.type_name()));

  data::BatchSource::Position at{number("epoch"), number("batch")};
  OrderOf order(source_, data_checksum_);
  bool same_batches = true;
  if (options_.ignore_data_skip) {
    at = {};
  } else {
    // The batch size may have changed: the rows are the same, in the same order, but cut into other batches.
    data::BatchSource::Rows then;
    const data::BatchSource::Rows rows = source_.rows();
    if (checkpoint.state.contains("rows_per_batch")) then = {number("rows_per_batch"), number("rows_of_order")};
    if (then.batch > 0 && rows.batch > 0 && !(then == rows) && order.cut_from(then.order)) {
      same_batches = then.batch == rows.batch;
      if (at.batch >= number("batches_per_epoch")) {
        at.batch = train_data_.size();
      } else {
        if (at.batch < 0 || at.batch > INT32_MAX || then.batch > INT32_MAX) refuse("there is no batch ", at.batch);
        const int64_t row = at.batch * then.batch;
        if (row % rows.batch != 0)
          refuse("it has trained on ", row, " rows of the epoch, and no batch of ", rows.batch,
                 " rows begins there. ignore_data_skip goes on at the beginning of this data");
        at.batch = row / rows.batch;
      }
    } else if (number("batches_per_epoch") != train_data_.size()) {
      refuse("it was trained on other data: ", number("batches_per_epoch"), " batches an epoch, now there are ",
             train_data_.size(), ". ignore_data_skip goes on at the beginning of this data");
    }
    if (checkpoint.get<std::string>("data_checksum") != data_checksum())
      refuse(
          "it was trained on other data: its batches differ. ignore_data_skip goes on at the beginning of "
          "this data");
    if (at.epoch < 0 || at.batch < 0 || at.batch > train_data_.size()) refuse("there is no batch ", at.batch);
  }

  State state{.step = checkpoint.step,
              .skipped_steps = number("skipped_steps"),
              .loss = checkpoint.get<double>("loss"),
              .lr = checkpoint.get<double>("lr"),
              .grad_norm = checkpoint.get<double>("grad_norm"),
              .evaluated_step = number("evaluated_step"),
              .best = {.step = number("best_step"), .evaluations_since = number("evaluations_since_best")}};
  if (checkpoint.state.contains("eval_loss")) state.eval_loss = checkpoint.get<double>("eval_loss");
  if (checkpoint.state.contains("best_loss")) state.best.loss = checkpoint.get<double>("best_loss");
  // Note [Other steps]. Older files lack these numbers: all steps of their runs had one size.
  int64_t epoch_offset = 0;
  if (checkpoint.state.contains("batches_per_step") && !options_.ignore_data_skip) {
    const bool same_steps = same_batches && number("batches_per_step") == batches_per_step();
    epoch_offset = (same_steps ? number("epoch_steps") : epoch_steps_at(at)) - state.step;
  }
  const nn::StateDict best = with_prefix(checkpoint.extra, kBest), scaler = with_prefix(checkpoint.extra, kScaler);
  if (options_.load_best_model_at_end && state.best.loss) {
    if (best.empty())
      refuse("it does not hold the parameters of the best evaluation, which load_best_model_at_end needs");
    check_fits(trained_tensors(), best, absl::StrCat(path, ", the best parameters of ", model_.type_name()));
    for (const auto& [name, tensor] : best) state.best.state[name] = tensor.clone();
  }
  std::optional<amp::GradScaler> new_scaler = scaler_;
  if (new_scaler && !scaler.empty()) new_scaler->load_state_dict(scaler);

  // Other settings are allowed, because a user may want them. Older files do not record them.
  std::vector<std::string> warnings;
  for (const auto& [name, value] : settings_of(options_)) {
    if (!checkpoint.state.contains("option." + name)) continue;
    if (const auto& before = checkpoint.get<std::string>("option." + name); before != value)
      warnings.push_back(absl::StrCat("Trainer: ", path, " was saved with ", name, " = ", before,
                                      " and is resumed with ", value, ": it is not the run that was interrupted"));
  }

  // The last call that can fail. If it fails, it has changed nothing.
  if (replicas_ != nullptr) replicas_->load_optimizer_state(optimizer_, checkpoint.optimizer);
  else optimizer_.load_state_dict(checkpoint.optimizer);
  nn::load_tensors(saved_tensors(), checkpoint.model, /*strict=*/true, model_.type_name());
  scaler_ = new_scaler;
  order.keep();
  train_data_.seek(at);
  steps_per_epoch_ = steps_of_epoch(options_, train_data_.size());
  state_ = std::move(state);
  epoch_offset_ = epoch_offset;
  for (const std::string& text : warnings) compile::log::warn_once(text);
  max_steps_ = planned_steps(options_, train_data_.size()) - (options_.max_steps > 0 ? 0 : epoch_offset_);
  resumed_path_ = path;
  owns_output_dir_ = false;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  saved_step_ = same_file(folder.empty() ? "." : folder, options_.output_dir) ? state_.step : -1;
  timed_ = {};
  const std::lock_guard lock(progress_mutex_);
  progress_ = {.max_steps = max_steps_};
  show_state();
}

}  // namespace rondo::optim
