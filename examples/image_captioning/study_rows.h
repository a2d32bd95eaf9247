// The rows of the published study: a ViT-base with a GPT-2, batches of 64, captions of up to 256 tokens, on one A100.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rondo::examples {

struct StudyRow {
  // Where compiled code comes from. What is not kNone leaves it there in a run before, which is not measured.
  enum class Code : uint8_t { kNone, kCache, kArtifact };

  std::string name;   // of --study_rows, and the peer's --row
  std::string title;  // of the table
  double published;   // steps/s of PyTorch 2.7 on an A100 (80 GB); 0: none
  std::vector<std::string> options;
  std::string note = {};     // how Rondo's form differs from the peer's
  std::string same_as = {};  // Rondo's form is that row's: it is measured there
  int processes = 1;
  Code code = Code::kNone;
  bool is_compile_time = false;    // the row is about its first steps: none but these are timed
  double published_first_s = 0;    // the study's seconds of the first 20 steps
  int64_t most_compilations = 0;   // that a kind of block may need; 0: no bound
  double compile_ratio = 0;        // how many times shorter than the peer's compiling must be
  bool has_other_batches = false;  // so its loss is another one
  bool follows_optimizer = false;  // may not be slower than the row before

  bool compiles() const { return most_compilations > 0 || is_compile_time || !same_as.empty(); }
};

// In the order of the table.
std::span<const StudyRow> study_rows();

}  // namespace rondo::examples
