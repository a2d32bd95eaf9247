#include "rondo/tests/fuzz/model.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {

const Tensor& Interpreter::value(ValueId id) const {
  static const Tensor kUndefined;
  return id == kNone ? kUndefined : values_.at(id);
}

std::vector<Tensor> Interpreter::call(const Step& step, int64_t times) {
  std::optional<GradMode> mode;
  if (step.no_grad) mode.emplace(false);
  std::optional<amp::Autocast> autocast;
  if (step.autocast) autocast.emplace(kBF16);
  Step annealed;
  const bool changes = anneals && counter > 0 && step.kind->has(kScalar);
  if (changes) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kWild[] = {-0.0, kInf, std::numeric_limits<double>::quiet_NaN(), 1e30, -kInf, 1e-42};
    annealed = step;
    annealed.scalar /= static_cast<double>(1 + counter);
    if (wild && counter % 2 == 1)
      annealed.scalar =
          kWild[static_cast<size_t>(counter / 2 + (step.out.empty() ? 0 : step.out[0])) % std::size(kWild)];
  }
  Scene scene{changes ? annealed : step, {}, batch, counter, training, kept, retained, hook_calls, generator};
  for (ValueId id : step.in) scene.in.push_back(value(id));
  std::vector<Tensor> results;
  for (int64_t i = 0; i < times; ++i) {
    results = step.kind->run(scene);
    if (!results.empty()) scene.in[0] = results[0];
  }
  return results;
}

void Interpreter::run(const Step& step) {
  if (step.when == Step::When::kOddSteps && counter % 2 == 0) {
    if (!step.out.empty()) values_[step.out[0]] = value(step.in[0]);
    return;
  }
  const std::vector<Tensor> results = call(step, step.when == Step::When::kRepeated ? 1 + counter % 3 : 1);
  for (size_t i = 0; i < step.out.size(); ++i) values_[step.out[i]] = results[i];
}

std::vector<double> numbers(const Leaf& leaf, int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<double> values(static_cast<size_t>(n));
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double special[] = {0, -0.0, kInf, -kInf, std::nan(""), 1e-40, 6e-8, 3e4, 1e20};
  for (double& v : values) {
    if (leaf.bound > 0) {
      v = static_cast<double>(random.below(leaf.bound));
      continue;
    }
    // About normal: the sum of three uniform numbers.
    v = random.uniform(-1, 1) + random.uniform(-1, 1) + random.uniform(-1, 1);
    if (leaf.fill == Fill::kHalves) v = std::floor(v * 2) / 2;
    if (leaf.fill == Fill::kPositive) v = std::abs(v) + 0.1;
    if (leaf.fill == Fill::kSpecial && random.chance(0.1)) v = special[random.below(std::size(special))];
  }
  return values;
}

std::vector<double> perturbed(std::vector<double> values, double perturbation, uint64_t seed) {
  Random random(~seed ^ std::bit_cast<uint64_t>(perturbation));
  if (perturbation != 0)
    for (double& v : values) v *= 1 + random.uniform(-1, 1) * perturbation;
  return values;
}

uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 0x9E3779B97F4A7C15u + b).next(); }

namespace {

Tensor in_layout(const Tensor& dense, Layout layout) {
  if (layout == Layout::kDense) return dense;
  constexpr const char* kNames[] = {"", "last two transposed", "every second", "offset", "expanded along 0"};
  for (test::Layout& candidate : test::layouts_of(dense))
    if (candidate.name == kNames[static_cast<int>(layout)]) return candidate.tensor;
  return dense;
}

}  // namespace

Tensor make_leaf(const Program& program, const Leaf& leaf, int64_t batch, uint64_t salt, double perturbation) {
  const Dims sizes = concrete(leaf.meta.sizes, batch);
  int64_t room = 0;  // for other handles to this memory
  for (const Leaf& other : program.leaves)
    if (other.same_as == leaf.id) room = std::max(room, other.overlap);
  const int64_t n = sizes.numel() + room;
  const uint64_t seed = mix(mix(program.seed, static_cast<uint64_t>(leaf.id)), salt);
  std::vector<double> values = numbers(leaf, n, seed);
  if (leaf.drawn_in) values = Tensor::from(values, {n}).to(*leaf.drawn_in).to_vector<double>();
  if (leaf.bound == 0) values = perturbed(std::move(values), perturbation, seed);
  const Tensor flat = Tensor::from(values, {n}).to(leaf.meta.dtype);
  const Tensor dense = Tensor::from_storage(flat.storage(), flat.storage_offset(), sizes, contiguous_strides(sizes),
                                            leaf.meta.dtype);
  return room > 0 ? dense : in_layout(dense, leaf.layout);
}

Scenery::Scenery(const Program& program, double perturbation) : program(program), perturbation(perturbation) {
  for (const Leaf& leaf : program.leaves)
    if (leaf.role == Leaf::Role::kInput && first_input == kNone) first_input = leaf.id;
  for (size_t i = 0; i < program.steps.size(); ++i)
    for (ValueId id : program.steps[i].in) last_use[id] = i;
}

void Scenery::run_steps(size_t begin, size_t end, int within) {
  const auto is_output = [&](ValueId id) {
    return std::find(program.outputs.begin(), program.outputs.end(), id) != program.outputs.end();
  };
  for (size_t i = begin; i < end;) {
    const Step& step = program.steps[i];
    if (const int part = program.part_inside(step.part, within); part != 0) {
      // As many steps as there are of it, in one call.
      range.first = i;
      while (i < end && program.part_inside(program.steps[i].part, within) == part) ++i;
      range.second = i;
      const Tensor first = !step.in.empty() && step.in[0] != kNone ? machine.value(step.in[0]) : nothing;
      parts[static_cast<size_t>(part) - 1](first);
      continue;
    }
    machine.run(step);
    // As in C++, a value lives until its scope ends: here, its last use.
    for (ValueId id : step.in)
      if (last_use[id] == i && !is_output(id)) machine.release(id);
    for (ValueId id : step.out)
      if (!last_use.contains(id) && !is_output(id)) machine.release(id);
    ++i;
  }
}

bool takes_arguments(const Program& program) {
  size_t inputs = 0;
  for (const Leaf& leaf : program.leaves) inputs += leaf.role == Leaf::Role::kInput;
  return program.as_function && inputs <= kMaxArguments && program.outputs.size() == 1;
}

Block::Block(Scenery* scenery) : scenery(*scenery) {
  const Program& program = scenery->program;
  const auto layer = static_cast<uint64_t>(std::strtoull(name().c_str(), nullptr, 10));
  Stack* stack = parent() != nullptr ? dynamic_cast<Stack*>(parent()->parent()) : nullptr;
  for (const Leaf& leaf : program.leaves) {
    if (leaf.role != Leaf::Role::kParameter && leaf.role != Leaf::Role::kBuffer) continue;
    const std::string name = absl::StrCat("v", leaf.id);
    Tensor value = make_leaf(program, leaf, program.batches[0], layer << 32, scenery->perturbation);
    Tensor& handle = leaf.role == Leaf::Role::kParameter ? parameter(name, value) : buffer(name, value);
    if (const Tensor same = leaf.same_as != kNone ? look_at(*lasting.at(leaf.same_as), leaf.look) : Tensor();
        same.defined())
      handle = same;
    else handle.requires_grad_(leaf.requires_grad);
    // Every second parameter is one of all layers.
    if (program.tie_layers && layer > 0 && leaf.role == Leaf::Role::kParameter && leaf.same_as == kNone &&
        leaf.id % 2 == 0)
      handle = *stack->h[0].lasting.at(leaf.id);
    lasting[leaf.id] = &handle;
  }
}

std::vector<Tensor> Block::run() {
  Interpreter& machine = scenery.machine;
  for (const auto& [id, handle] : lasting) machine.bind(id, *handle);
  machine.training = is_training();
  struct Clear {
    Interpreter& machine;
    ~Clear() { machine.clear(); }
  } clear{machine};
  scenery.run_steps(0, scenery.program.steps.size(), 0);
  std::vector<Tensor> results;
  for (ValueId id : scenery.program.outputs) results.push_back(machine.value(id));
  return results;
}

std::vector<Tensor> Block::forward(const Tensor& first) {
  for (const auto& [id, tensor] : scenery.inputs) scenery.machine.bind(id, tensor);
  if (scenery.first_input != kNone) scenery.machine.bind(scenery.first_input, first);
  return run();
}

Tensor Block::apply(const std::vector<const Tensor*>& arguments) {
  size_t i = 0;
  for (const auto& [id, tensor] : scenery.inputs) scenery.machine.bind(id, *arguments[i++]);
  return std::move(run()[0]);
}

std::vector<Tensor> Block::call(const Tensor& first) {
  if (!takes_arguments(scenery.program)) return (*this)(first);
  std::vector<Tensor> a;
  for (const auto& [id, tensor] : scenery.inputs) a.push_back(id == scenery.first_input ? first : tensor);
  if (a.size() < 2) a.resize(2, scenery.nothing);
  return {a.size() == 2   ? (*this)(a[0], a[1])
          : a.size() == 3 ? (*this)(a[0], a[1], a[2])
                          : (*this)(a[0], a[1], a[2], a[3])};
}

Stack::Stack(Scenery* scenery) : scenery(*scenery), h(child("h")) {
  for (int i = 0; i < scenery->program.layers; ++i) h.emplace_back(scenery);
}

std::vector<Tensor> Stack::forward(const Tensor& first) {
  std::vector<Tensor> all, results;
  for (Block& block : h) {
    Tensor x = first;
    if (scenery.program.chained)
      for (size_t i = 0; i < results.size(); ++i)
        if (const Tensor& y = results[i]; y.dtype() == x.dtype() && y.sizes() == x.sizes() &&
                                          scenery.program.may_chain(scenery.program.outputs[i], scenery.first_input))
          x = y;
    results = block.call(x);
    all.insert(all.end(), results.begin(), results.end());
  }
  return all;
}

}  // namespace rondo::fuzz
