// Computes the step counts and scalars of a step: uploads the values that the host knows, and queues programs for the
// others.
#include <algorithm>
#include <span>

#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_launches.h"
#include "rondo/optim/step_programs.h"

namespace rondo::optim {
namespace {

const RowProgram& program_of(const ScalarRule& rule) { return rule.program == nullptr ? no_step() : *rule.program; }

}  // namespace

void StepLaunches::prepare_scalars() {
  sort_into_rows();
  absl::InlinedVector<ScalarRule, 2> rules;  // by group
  for (int group = 0; group < optimizer_.n_groups(); ++group) rules.push_back(optimizer_.scalars(group));
  upload_scalars(rules);
  state_.queue.keep(false);
  queue_counts();
  queue_rules(rules);
  if (state_.averaging && state_.average_warmup) queue_warm_averages();
}

// Parameters of one group that have one count share their scalars, unless each has its own (UpdatePlan::own_scalars).
// If only some of the parameters of a count are updated, these get a new count.
void StepLaunches::sort_into_rows() {
  for (StepUpdate& u : updates_) {
    const ParamSlot& slot = *u.slot;
    const std::shared_ptr<StepCount>& count = slot.state.steps.count();
    if (count->cohort >= cohorts_.size() || cohorts_[count->cohort].before != count) {
      count->cohort = cohorts_.size();
      cohorts_.push_back({count, nullptr});
    }
    ++cohorts_[count->cohort].size;
    const size_t group = static_cast<size_t>(slot.group);
    if (slot.plan->own_scalars || rows_.empty() || rows_.back().cohort != count->cohort || rows_.back().group != group)
      rows_.push_back({count->cohort, group, slot.plan->own_scalars ? &slot.weights() : nullptr});
    u.row = rows_.size() - 1;
  }
  for (Cohort& cohort : cohorts_) {
    const bool all_updated = cohort.size == cohort.before->sharers();
    cohort.after = all_updated ? cohort.before : std::make_shared<StepCount>(0, device_);
  }
}

void StepLaunches::upload_scalars(const absl::InlinedVector<ScalarRule, 2>& rules) {
  std::vector<double> values(rows_.size() * kRowValues + 1);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::span<double> out = std::span(values).subspan(i * kRowValues, kRowValues);
    const ScalarRule& rule = rules[rows_[i].group];
    out[kAverageWeight] = 1 - state_.average_decay;
    std::copy(rule.values.begin(), rule.values.end(), out.begin() + kFirstScalar);
    std::copy(rule.numbers.begin(), rule.numbers.end(), out.begin() + kRuleNumbers);
    if (rows_[i].own != nullptr)
      optimizer_.own_scalars(static_cast<int>(rows_[i].group), *rows_[i].own,
                             out.subspan(kFirstScalar, kMaxScalars - kFirstScalar),
                             out.subspan(kSweepNumbers, kMaxNumbers));
  }
  values.back() = 1;
  values_ = numbers_on(device_, values);
}

// Queues the programs that count the step. They run even if the step is skipped, because the two places of a count swap
// in any case. In a skipped step, the new value is the old one.
void StepLaunches::queue_counts() {
  const compile::Condition always{row(rows_.size()), 1};
  const std::shared_ptr<Foreach> counting = scalar_pass(device_, count_step());
  ForeachTable& counts = state_.queue.table();
  for (const Cohort& cohort : cohorts_)
    add_call(counts, *counting, {cohort.before->now(), &decided()->updates, cohort.after->next()}, nullptr);
  state_.queue.add(counting, always);
}

// Queues the programs that compute the scalars that depend on the count: one launch for each program.
void StepLaunches::queue_rules(const absl::InlinedVector<ScalarRule, 2>& rules) {
  const auto program_of_row = [&](const Row& row) { return &program_of(rules[row.group]); };
  absl::InlinedVector<const RowProgram*, 2> programs;
  for (const Row& row : rows_)
    if (std::find(programs.begin(), programs.end(), program_of_row(row)) == programs.end())
      programs.push_back(program_of_row(row));
  for (const RowProgram* program : programs) {
    const std::shared_ptr<Foreach> pass = scalar_pass(device_, program->body);
    ForeachTable& table = state_.queue.table();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (program_of_row(rows_[i]) != program) continue;
      double* out = row(i);
      const std::span<void*> operands = add_call(table, *pass, out + kRuleNumbers);
      operands[0] = const_cast<double*>(&decided()->factor);
      operands[1] = cohorts_[rows_[i].cohort].after->next();
      operands[2] = out + kGradFactor;
      for (size_t k = 0; k < program->writes.size(); ++k) operands[3 + k] = out + kFirstScalar + program->writes[k];
    }
    state_.queue.add(pass, compile::Condition{&decided()->updates, 1});
  }
}

void StepLaunches::queue_warm_averages() {
  const std::shared_ptr<Foreach> pass = scalar_pass(device_, warm_average());
  ForeachTable& table = state_.queue.table();
  for (size_t i = 0; i < rows_.size(); ++i) {
    double* weight = row(i) + kAverageWeight;
    add_call(table, *pass, {cohorts_[rows_[i].cohort].after->next(), weight, weight}, nullptr);
  }
  state_.queue.add(pass, compile::Condition{&decided()->updates, 1});
}

void StepLaunches::advance_counts() {
  for (const Cohort& cohort : cohorts_) cohort.after->advance();
  for (const StepUpdate& u : updates_) {
    CountShare& steps = u.slot->state.steps;
    const std::shared_ptr<StepCount>& after = cohorts_[steps->cohort].after;
    if (after != steps.count()) steps = CountShare(after);
  }
}

}  // namespace rondo::optim
