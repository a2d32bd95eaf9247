#include "rondo/runtime/random.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace rondo {

namespace {
std::atomic<uint64_t> next_id{1};
thread_local GeneratorScope* innermost = nullptr;
}  // namespace

Generator::Generator(uint64_t seed) : seed_(seed), id_(next_id.fetch_add(1, std::memory_order_relaxed)) {}
Generator::Generator(const Generator& other) : Generator(other.seed()) { offset_ = other.offset(); }
Generator& Generator::operator=(const Generator& other) {
  set_state(other.seed(), other.offset());
  return *this;
}
Generator::~Generator() {
  if (innermost != nullptr) GeneratorScope::note_end(*this);
}

uint64_t Generator::seed() const {
  if (innermost != nullptr) GeneratorScope::note_use(*this);
  return seed_;
}
uint64_t Generator::offset() const {
  if (innermost != nullptr) GeneratorScope::note_use(*this);
  return offset_;
}
void Generator::set_state(uint64_t seed, uint64_t offset) {
  if (innermost != nullptr) GeneratorScope::note_use(*this);
  seed_ = seed;
  offset_ = offset;
}
uint64_t Generator::next_offset() {
  if (innermost != nullptr) GeneratorScope::note_use(*this);
  return offset_++;
}

Generator& default_generator() {
  // A backward may run on another thread than its forward: there, this stands for the forward's.
  static thread_local Generator generator{Generator::Default()};
  return generator;
}
void manual_seed(uint64_t seed) { default_generator().set_state(seed, 0); }

GeneratorScope::GeneratorScope(Mode mode, std::vector<GeneratorState>& states)
    : mode_(mode), states_(states), outer_(std::exchange(innermost, this)) {}

// A generator that never changes may be a const object.
void GeneratorScope::set(Generator& generator, uint64_t seed, uint64_t offset) {
  if (generator.seed_ == seed && generator.offset_ == offset) return;
  generator.seed_ = seed;
  generator.offset_ = offset;
}

GeneratorScope::~GeneratorScope() {
  innermost = outer_;
  if (mode_ == kNote) return;
  for (const Used& used : used_) {
    if (used.generator == nullptr) continue;
    set(*used.generator, used.seed, used.offset);
  }
}

// The outer scope comes first: what it replays is what the inner one notes.
void GeneratorScope::note_use(const Generator& generator) {
  static constexpr auto visit = [](auto& self, GeneratorScope* scope, Generator& used) -> void {
    if (scope == nullptr) return;
    self(self, scope->outer_, used);
    scope->first_use(used);
  };
  visit(visit, innermost, const_cast<Generator&>(generator));
}

void GeneratorScope::first_use(Generator& generator) {
  if (std::any_of(used_.begin(), used_.end(), [&](const Used& u) { return u.id == generator.id_; })) return;
  used_.push_back({&generator, generator.id_, generator.seed_, generator.offset_});
  if (mode_ == kNote) {
    states_.push_back({generator.id_, generator.seed_, generator.offset_});
    return;
  }
  for (const GeneratorState& state : states_) {
    if (state.id == generator.id_) set(generator, state.seed, state.offset);
  }
}

void GeneratorScope::note_end(const Generator& generator) {
  for (GeneratorScope* scope = innermost; scope != nullptr; scope = scope->outer_)
    for (Used& used : scope->used_)
      if (used.id == generator.id_) used.generator = nullptr;
}

}  // namespace rondo
