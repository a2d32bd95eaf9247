#include "rondo/runtime/random/random.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "rondo/runtime/base/within_memory.h"

namespace rondo {

namespace {
std::atomic<uint64_t> next_id{1};
thread_local GeneratorScope* innermost_generator_scope = nullptr;
thread_local GeneratorHolder* innermost_holder = nullptr;

// The seed of threads that never called manual_seed themselves.
struct ProcessSeed {
  std::mutex mutex;  // guards `seed`
  uint64_t seed = 0;
  std::atomic<uint64_t> times{0};  // how often `seed` was set
  std::atomic<uint64_t> threads{0};
};
ProcessSeed& process_seed() {
  static auto* seed = new ProcessSeed;
  return *seed;
}

struct ThreadSeed {
  uint64_t number = process_seed().threads.fetch_add(1);  // in the order of first use
  // The value of ProcessSeed::times when this thread took the seed. The first thread of an unseeded process draws from
  // (0, 0), like any new Generator; other threads take a seed at their first draw.
  uint64_t times = number == 0 ? 0 : ~uint64_t{0};
  bool own = false;  // this thread called manual_seed
};
ThreadSeed& thread_seed() {
  static thread_local ThreadSeed seed;
  return seed;
}

// Returns the seed for thread `number`; it differs from the process's seed.
uint64_t seed_of_thread(uint64_t seed, uint64_t number) {
  constexpr uint64_t kThreads = 0x7468726561647300u;
  const auto words = philox(seed ^ kThreads, number, kThreads);
  return static_cast<uint64_t>(words[0]) << 32 | words[1];
}

}  // namespace

Generator::Generator(uint64_t seed) : seed_(seed), id_(next_id.fetch_add(1, std::memory_order_relaxed)) {}
Generator::Generator(const Generator& other) : Generator(other.seed()) { offset_ = other.offset(); }
Generator& Generator::operator=(const Generator& other) {
  set_state(other.seed(), other.offset());
  return *this;
}
Generator::~Generator() {
  for (GeneratorHolder* holder = innermost_holder; holder != nullptr; holder = holder->outer_) holder->forget(*this);
}

uint64_t Generator::seed() const {
  if (innermost_generator_scope != nullptr) GeneratorScope::note_use(*this);
  return seed_;
}
uint64_t Generator::offset() const {
  if (innermost_generator_scope != nullptr) GeneratorScope::note_use(*this);
  return offset_;
}
void Generator::set_state(uint64_t seed, uint64_t offset) {
  if (innermost_generator_scope != nullptr) GeneratorScope::note_use(*this);
  seed_ = seed;
  offset_ = offset;
}
uint64_t Generator::next_offset() {
  if (innermost_generator_scope != nullptr) GeneratorScope::note_use(*this);
  return offset_++;
}

Generator& default_generator() try {
  // A backward may run on another thread than its forward. Default generators of all threads have the same id, so the
  // default generator of the backward's thread then stands for that of the forward's thread.
  static thread_local Generator generator{Generator::Default()};
  ThreadSeed& mine = thread_seed();
  ProcessSeed& process = process_seed();
  if (mine.own || process.times.load(std::memory_order_acquire) == mine.times) return generator;
  std::lock_guard lock(process.mutex);
  mine.times = process.times.load(std::memory_order_relaxed);
  generator.seed_ = seed_of_thread(process.seed, mine.number);  // direct, so that a GeneratorScope sees no use
  generator.offset_ = 0;
  return generator;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("default_generator");
}

void seed_step(uint64_t seed, int rank, int64_t step) {
  constexpr uint64_t kSeedOfRank = 0x9E3779B97F4A7C15u;  // odd, so its multiples differ for all ranks
  default_generator().set_state(seed + static_cast<uint64_t>(rank) * kSeedOfRank, static_cast<uint64_t>(step) << 32);
}

void manual_seed(uint64_t seed) try {
  thread_seed().own = true;
  default_generator().set_state(seed, 0);
  ProcessSeed& process = process_seed();
  std::lock_guard lock(process.mutex);
  process.seed = seed;
  process.times.fetch_add(1, std::memory_order_release);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("manual_seed");
}

GeneratorHolder::GeneratorHolder() : outer_(std::exchange(innermost_holder, this)) {}
GeneratorHolder::~GeneratorHolder() { innermost_holder = outer_; }

GeneratorScope::GeneratorScope(Mode mode, std::vector<GeneratorState>& states)
    : mode_(mode), states_(states), outer_(std::exchange(innermost_generator_scope, this)) {}

// Writes only if something changes, because note_use() casts away const: an unchanged generator may be a const object.
void GeneratorScope::set(Generator& generator, uint64_t seed, uint64_t offset) {
  if (generator.seed_ == seed && generator.offset_ == offset) return;
  generator.seed_ = seed;
  generator.offset_ = offset;
}

GeneratorScope::~GeneratorScope() {
  innermost_generator_scope = outer_;
  if (mode_ == kNote) return;
  for (const Used& used : used_) {
    if (used.generator == nullptr) continue;
    set(*used.generator, used.seed, used.offset);
  }
}

// Calls first_use() of the outer scopes first, because an inner scope must record the state that an outer scope has
// replayed.
void GeneratorScope::note_use(const Generator& generator) {
  static constexpr auto visit = [](auto& self, GeneratorScope* scope, Generator& used) -> void {
    if (scope == nullptr) return;
    self(self, scope->outer_, used);
    scope->first_use(used);
  };
  visit(visit, innermost_generator_scope, const_cast<Generator&>(generator));
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

void GeneratorScope::forget(const Generator& generator) noexcept {
  for (Used& used : used_)
    if (used.id == generator.id_) used.generator = nullptr;
}

}  // namespace rondo
