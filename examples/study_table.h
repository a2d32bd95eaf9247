// The table of a study, as text and as an HTML page that loads no other file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/examples/run_report.h"
#include "rondo/examples/study.h"

namespace rondo::examples {

// The runs of a row by Rondo or by the peer: one for each round.
struct StudyRuns {
  std::vector<RunFacts> runs;
  std::string failure;  // why runs are missing; "": none is missing
  bool is_done() const { return !runs.empty() && failure.empty(); }
};

struct StudyResult {
  const StudyRow* row = nullptr;
  std::string dtype;
  StudyRuns ours, theirs;
};

struct StudyTable {
  std::string heading;                          // the heading of the page
  std::string title;                            // what was measured, and on which machine
  std::string legend;                           // explains the columns
  std::vector<std::string> columns;             // the first two are texts, the others numbers
  std::vector<std::vector<std::string>> cells;  // the texts of each row
  std::vector<double> ratios;                   // by row: our speed over the peer's; NaN: not measured
  std::vector<std::string> notes;               // failures, recompilations and graph breaks of the rows
  struct Check {
    std::string what, seen;
    bool holds = false;
  };
  std::vector<Check> checks;  // the study's requirements on our runs, as far as they were measured
};

// Returns the median of a figure over the runs that have measured it; NaN if none has.
double median_of(const StudyRuns& runs, double RunFacts::*figure);

// Makes the table. `published`: the heading of the column of published speeds.
StudyTable table_of(const std::string& heading, const std::string& title, const std::string& published,
                    const std::vector<StudyResult>& results);
std::string to_text(const StudyTable& table);
std::string to_html(const StudyTable& table);

}  // namespace rondo::examples
