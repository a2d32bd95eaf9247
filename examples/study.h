// A study: measures many runs of a program, and makes a table of them. Each row is run in a process of its own with an
// empty cache. With --study_peer, a program in another framework (the peer) runs each row, too, in turns with ours.
//
//   return run_study({.options = o.study, .folder = "out", .rows = rows, .title = "A GPT of 6 layers", ...});
//
// A row runs this program again, with the row's options and --report FILE (run_report.h). The folder gets runs/, with a
// JSON file and a log for each process, and study.txt and study.html after each row. A run that has its JSON file is
// not measured again: a study that was killed goes on, and a row that failed is tried again.
// --study_peer is a command, with settings in front of it if need be: "OMP_NUM_THREADS=1 python3 peer.py".
//
// A peer is called with --row=NAME --report=FILE --initial=FOLDER --timed_steps=N --threads=N --dtype=float32|bfloat16
// --processes=N --artifact=FILE --fill=0|1 and Study::shared, and writes the report. FOLDER has what
// Study::write_start() leaves there. --fill=1: only leave compiled code in the cache, or in the artifact. The cache
// folder, empty or filled, is in TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rondo/examples/flags.h"

namespace rondo::examples {

struct StudyOptions {
  bool on = false, full = false;
  std::string rows, peer;
  int64_t steps = 100, rounds = 0;
  double timeout = 1800;
};
// Adds --study, --study_rows, --study_steps, --study_rounds and --study_timeout. `folder`: the option that names the
// folder.
void add_options(Flags& flags, StudyOptions& options, const std::string& folder);

struct StudyRow {
  // Where compiled code comes from. For kCache and kArtifact, an earlier run that is not measured leaves it there.
  enum class Code : uint8_t { kNone, kCache, kArtifact };

  std::string name;   // the name for --study_rows and for the peer's --row
  std::string title;  // the row's name in the table
  double published;   // steps/s that the study has published; 0: none
  std::vector<std::string> options;
  std::string note = {};     // how Rondo's way of running this row differs from the peer's
  std::string same_as = {};  // the name of a row that Rondo runs in the same way: that row's results are used
  int processes = 1;
  Code code = Code::kNone;
  bool is_compile_time = false;    // the row measures its first steps: no others are timed
  double published_first_s = 0;    // seconds of the first steps in the published study
  int64_t most_compilations = 0;   // the most compilations that a block may need; 0: no limit
  double compile_ratio = 0;        // the peer's time for compiling must be at least this many times ours
  bool has_other_batches = false;  // the row runs batches of its own, so its loss is not compared
  // Requirements in comparison with another row of ours.
  std::string beside = {};  // the other row's name
  double least_speed = 0;   // the speed must be at least this many times the other row's
  double most_memory = 0;   // the memory must be at most this many times the other row's; 0: no requirement
  std::string says = {};    // the requirement on speed, in words

  bool compiles() const { return most_compilations > 0 || is_compile_time || !same_as.empty(); }
};

struct Study {
  const StudyOptions& options;
  std::string folder;
  bool overwrites = false;         // --overwrite_output_dir: results in the folder are deleted
  std::span<const StudyRow> rows;  // in the order of the table
  std::string heading, title;      // the heading of the page; what is measured, and on which machine
  std::string published;           // the heading of the column for StudyRow::published
  std::vector<std::string> dtypes;
  std::vector<std::string> shared;  // options of the model and its data, which all rows share with the peer
  std::function<std::vector<std::string>(const StudyRow&)> own = nullptr;  // more options for Rondo's runs of a row
  std::function<void(const std::string& folder)> write_start = nullptr;    // writes what a peer begins with

  int64_t timed_steps(const StudyRow& row) const { return row.is_compile_time ? 0 : options.steps; }
};

// Returns f32, and bf16 if the device is no CPU or the processor can multiply bf16.
std::vector<std::string> dtypes_of_host(Device device);

// Runs the study. Returns the exit status: 1 if a row failed. Throws Error if the folder holds another study.
int run_study(const Study& study);

}  // namespace rondo::examples
