#include "rondo/examples/gpt_study.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/random/random.h"

namespace rondo::examples {
namespace {

using Words = std::vector<std::string>;

// Returns random text. It begins with every printable character, so that the vocabulary is the same for every seed.
std::string random_text(int64_t size, uint64_t seed) {
  constexpr int64_t kFirst = ' ', kCount = 95;
  std::string text;
  for (int64_t i = 0; i < size; ++i) {
    const auto word = static_cast<int64_t>(philox(seed, static_cast<uint64_t>(i), 0)[0]);
    text.push_back(static_cast<char>(kFirst + (i < kCount ? i : word % kCount)));
  }
  return text;
}

std::vector<StudyRow> make_rows() {
  std::vector<StudyRow> rows;
  struct Kind {
    const char *name, *title;
    double eager, compiled;  // steps/s of the published study
  };
  struct Way {
    const char *name, *title;
    Words options;
  };
  const Kind kinds[] = {{"train", "training", 1000.0 / 57, 1000.0 / 33},
                        {"infer", "inference", 1000.0 / 18, 1000.0 / 29},
                        {"generate", "generation", 0, 0}};
  const Way ways[] = {{"regions", "regions", {"--compile=regions"}},
                      {"reduce_overhead", "regions, reduce-overhead", {"--compile=regions", "--mode=reduce-overhead"}},
                      {"max_autotune", "regions, max-autotune", {"--compile=regions", "--mode=max-autotune"}},
                      {"whole", "the whole model", {"--compile=whole"}}};
  for (const Kind& kind : kinds) {
    const std::string measure = absl::StrCat("--measure=", kind.name), eager = absl::StrCat(kind.name, "_eager");
    const bool is_training = kind.name == std::string_view("train");
    rows.push_back({.name = eager,
                    .title = absl::StrCat(kind.title, ": eager"),
                    .published = kind.eager,
                    .options = {measure, "--compile=none"},
                    .has_other_batches = !is_training});
    for (const Way& way : ways) {
      const bool is_generated_eagerly = kind.name == std::string_view("generate") &&
                                        way.name == std::string_view("whole");
      if (is_generated_eagerly) continue;
      StudyRow& row = rows.emplace_back(
          StudyRow{.name = absl::StrCat(kind.name, "_", way.name),
                   .title = absl::StrCat(kind.title, ": ", way.title),
                   .published = kind.compiled,
                   .options = way.options,
                   .most_compilations = 2,
                   .has_other_batches = !is_training,
                   .beside = eager,
                   .least_speed = 1,
                   .most_memory = 1,
                   .says = absl::StrCat(kind.title, ", ", way.title, ": no slower than eager")});
      row.options.push_back(measure);
    }
  }
  return rows;
}

Words shared_options(const TrainOptions& o) {
  return {absl::StrCat("--n_layer=", o.n_layer),
          absl::StrCat("--n_head=", o.n_head),
          absl::StrCat("--n_embd=", o.n_embd),
          absl::StrCat("--block_size=", o.block_size),
          absl::StrCat("--batch_size=", o.batch_size),
          absl::StrCat("--untimed_steps=", o.untimed_steps),
          absl::StrCat("--seed=", o.seed),
          absl::StrCat("--device=", to_string(o.device))};
}

}  // namespace

std::span<const StudyRow> gpt_study_rows() {
  static const std::vector<StudyRow> rows = make_rows();
  return rows;
}

int run_gpt_study(const TrainOptions& o, bool one_dtype) {
  const std::string text = absl::StrCat(o.out_dir, "/text.txt");
  io::make_folders(o.out_dir);
  io::write_file_atomic(text, random_text(200 * o.block_size + 10'000, static_cast<uint64_t>(o.seed)));
  const auto own = [&](const StudyRow& row) -> Words {
    const bool makes_tokens = std::ranges::count(row.options, "--measure=generate") > 0;
    const int64_t timed = makes_tokens ? std::max<int64_t>(o.block_size - kMeasuredPrompt - o.untimed_steps, 1)
                                       : o.study.steps;
    return {absl::StrCat("--data=", text), absl::StrCat("--out_dir=", o.out_dir, "/work"),
            absl::StrCat("--max_iters=", 2 * o.untimed_steps + timed)};
  };
  return run_study({.options = o.study,
                    .folder = o.out_dir,
                    .rows = gpt_study_rows(),
                    .heading = "A GPT, compiled and eager",
                    .title = formatted("A GPT of %d layers of %d, batches of %d with %d tokens; %d untimed steps, %d "
                                       "timed; a step of generation is a token; %s, %d threads",
                                       o.n_layer, o.n_embd, o.batch_size, o.block_size, o.untimed_steps, o.study.steps,
                                       to_string(o.device), num_threads()),
                    .published = "1.5B",
                    .dtypes = one_dtype ? Words{o.dtype} : dtypes_of_host(o.device),
                    .shared = shared_options(o),
                    .own = own});
}

}  // namespace rondo::examples
