#include "rondo/examples/study_table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/html.h"

namespace rondo::examples {
namespace {

using Figure = std::function<double(const RunFacts&)>;

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return RunFacts::kUnknown;
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
double median(const StudyRuns& runs, const Figure& figure) {
  std::vector<double> values;
  for (const RunFacts& run : runs.runs) values.push_back(figure(run));
  return median(values);
}
// Returns the median over the rounds of the ratio of two runs' figures.
double ratio(const StudyRuns& over, const StudyRuns& under, const Figure& figure) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(over.runs.size(), under.runs.size()); ++i)
    ratios.push_back(figure(over.runs[i]) / figure(under.runs[i]));
  return median(ratios);
}

double speed(const RunFacts& run) { return run.steps_per_s; }
double first(const RunFacts& run) { return run.first_s; }
// Returns the time for compiling. Times below a millisecond are noise, so they count as a millisecond.
double compiling(const RunFacts& run) { return std::max(run.compile_s(), 1e-3); }
double memory(const RunFacts& run) { return run.memory_mib(); }
double loss(const RunFacts& run) { return run.loss; }

std::string shown(double value, int digits) {
  return std::isnan(value) ? std::string("-") : formatted("%.*f", digits, value);
}

struct Column {
  const char* name;
  std::function<std::string(const StudyResult&)> cell;
};
// Adds two columns for one figure: ours and the peer's.
void add_pair(std::vector<Column>& columns, const char* ours, const char* theirs, const Figure& figure, int digits) {
  columns.push_back({ours, [=](const StudyResult& r) { return shown(median(r.ours, figure), digits); }});
  columns.push_back({theirs, [=](const StudyResult& r) { return shown(median(r.theirs, figure), digits); }});
}
void add_counts(std::vector<Column>& columns, const char* ours, const char* theirs,
                const std::function<size_t(const RunFacts&)>& count) {
  for (const bool is_ours : {true, false})
    columns.push_back({is_ours ? ours : theirs, [=](const StudyResult& r) {
                         const StudyRuns& runs = is_ours ? r.ours : r.theirs;
                         return runs.runs.empty() ? std::string("-") : absl::StrCat(count(runs.runs.back()));
                       }});
}

std::vector<Column> columns_of(const std::string& published, bool has_peer) {
  std::vector<Column> columns = {{"row", [](const StudyResult& r) { return r.row->title; }},
                                 {"dtype", [](const StudyResult& r) { return r.dtype == "float32" ? "f32" : "bf16"; }},
                                 {published.c_str(), [](const StudyResult& r) {
                                    return r.row->published == 0 ? "-" : formatted("%.2f", r.row->published);
                                  }}};
  add_pair(columns, "steps/s", "peer", speed, 2);
  columns.push_back({"ratio", [](const StudyResult& r) { return shown(ratio(r.ours, r.theirs, speed), 2); }});
  add_pair(columns, "first s", "peer", first, 2);
  add_pair(
      columns, "compile s", "peer", [](const RunFacts& run) { return run.compile_s(); }, 3);
  columns.push_back({"ratio", [](const StudyResult& r) {
                       return r.row->compiles() ? shown(ratio(r.theirs, r.ours, compiling), 0) : "-";
                     }});
  add_counts(columns, "compiled", "peer", [](const RunFacts& run) {
    size_t all = 0;
    for (const auto& [block, count] : run.compiled) all += static_cast<size_t>(count);
    return all;
  });
  add_counts(columns, "again", "peer", [](const RunFacts& run) { return run.recompilations.size(); });
  add_counts(columns, "breaks", "peer", [](const RunFacts& run) { return run.breaks.size(); });
  add_pair(columns, "MiB", "peer", memory, 0);
  add_pair(columns, "loss", "peer", loss, 4);
  if (!has_peer)
    std::erase_if(columns, [](const Column& c) {
      return std::string_view(c.name) == "peer" || std::string_view(c.name) == "ratio";
    });
  return columns;
}

// ---- Requirements on the rows

class Checks {
 public:
  Checks(std::vector<StudyTable::Check>& out, std::string dtype, const std::vector<StudyResult>& all)
      : out_(out), dtype_(std::move(dtype)) {
    for (const StudyResult& r : all)
      if (r.dtype == dtype_) rows_.push_back(&r);
  }

  void run() {
    speeds();
    compile_times();
    memories();
    compilations();
    beside_others();
    losses();
    peer_losses();
  }

 private:
  void add(std::string what, std::string seen, bool holds) {
    out_.push_back({absl::StrCat(dtype_ == "float32" ? "f32: " : "bf16: ", what), std::move(seen), holds});
  }
  // The row with the least `value`, and that value.
  struct Worst {
    double value = INFINITY;
    std::string row = {};
    void see(double other, const StudyResult& r) {
      if (other < value) value = other, row = r.row->name;
    }
    bool any() const { return value < INFINITY; }
  };
  const StudyResult* named(std::string_view name) const {
    for (const StudyResult* r : rows_)
      if (r->row->name == name) return r;
    return nullptr;
  }

  void speeds() {
    Worst worst;
    double logs = 0, count = 0;
    for (const StudyResult* r : rows_) {
      const double speedup = ratio(r->ours, r->theirs, speed);
      if (r->row->is_compile_time || std::isnan(speedup)) continue;
      worst.see(speedup, *r);
      logs += std::log(speedup), count += 1;
    }
    if (!worst.any()) return;
    add("each row at least as fast as the peer's", formatted("least %.2f times (%s)", worst.value, worst.row),
        worst.value >= 1);
    const double mean = std::exp(logs / count);
    add("1.25 times as fast in the geometric mean", formatted("%.2f over %.0f rows", mean, count), mean >= 1.25);
  }
  void compile_times() {
    for (const StudyResult* r : rows_) {
      const double shorter = ratio(r->theirs, r->ours, compiling);
      if (r->row->compile_ratio == 0 || std::isnan(shorter)) continue;
      add(formatted("%s: compiling takes %.0f times less", r->row->title, r->row->compile_ratio),
          formatted("%.1f times: %.3f s, %.3f s", shorter, median(r->ours, compiling), median(r->theirs, compiling)),
          shorter >= r->row->compile_ratio);
    }
  }
  void memories() {
    Worst worst;
    for (const StudyResult* r : rows_)
      if (const double less = ratio(r->theirs, r->ours, memory); !std::isnan(less)) worst.see(less, *r);
    if (worst.any())
      add("no row takes more memory than the peer's",
          formatted("the peer's least: %.2f times (%s)", worst.value, worst.row), worst.value >= 1);
  }
  void compilations() {
    bool any = false, holds = true;
    std::vector<std::string> more;
    for (const StudyResult* r : rows_) {
      if (r->row->most_compilations == 0 || r->ours.runs.empty()) continue;
      any = true;
      const int64_t most = r->ours.runs.back().most_compilations();
      if (most > r->row->most_compilations)
        holds = false, more.push_back(formatted("%s: %d of %d", r->row->name, most, r->row->most_compilations));
    }
    if (any)
      add("a kind of block is compiled at most as often as its row allows",
          holds ? "in all rows" : absl::StrJoin(more, ", "), holds);
  }
  void beside_others() {
    for (const StudyResult* r : rows_) {
      const StudyResult* const other = named(r->row->beside);
      if (other == nullptr || !r->ours.is_done() || !other->ours.is_done()) continue;
      const double share = ratio(r->ours, other->ours, speed), size = ratio(r->ours, other->ours, memory);
      add(r->row->says, formatted("%.3f of its speed", share), share >= r->row->least_speed);
      if (r->row->most_memory > 0)
        add(absl::StrCat(r->row->title, ": no more memory than ", other->row->title),
            formatted("%.3f of its memory", size), size <= r->row->most_memory);
    }
  }
  void losses() {
    double least = INFINITY, most = -INFINITY;
    int64_t count = 0, missing = 0;
    for (const StudyResult* r : rows_) {
      if (r->row->has_other_batches || r->row->is_compile_time || !r->ours.is_done()) continue;
      const double of_row = median(r->ours, loss);
      if (std::isnan(of_row)) ++missing;
      else least = std::min(least, of_row), most = std::max(most, of_row), ++count;
    }
    if (count + missing < 2) return;
    const double bound = dtype_ == "float32" ? 1e-4 : 1e-2,
                 difference = count > 0 ? (most - least) / std::abs(most) : 0;
    add(formatted("the losses of all rows agree within %g", bound),
        missing > 0 ? formatted("%d of %d rows have no loss that is a number", missing, count + missing)
                    : formatted("%.1e over %d rows", difference, count),
        missing == 0 && difference <= bound);
  }
  // Compares our losses with the peer's: both begin with the same weights and see the same batches.
  void peer_losses() {
    double most = 0;
    std::string row;
    for (const StudyResult* r : rows_)
      for (size_t i = 0; !r->row->has_other_batches && i < std::min(r->ours.runs.size(), r->theirs.runs.size()); ++i) {
        const double ours = loss(r->ours.runs[i]), theirs = loss(r->theirs.runs[i]);
        const double difference = std::abs(ours - theirs) / std::abs(theirs);
        if (row.empty() || !(difference <= most)) most = difference, row = r->row->name;
      }
    if (row.empty()) return;
    const double bound = dtype_ == "float32" ? 1e-3 : 2e-2;
    add(formatted("the peer's losses are ours within %g", bound), formatted("most %.1e (%s)", most, row),
        most <= bound);
  }

  std::vector<StudyTable::Check>& out_;
  const std::string dtype_;
  std::vector<const StudyResult*> rows_;
};

void add_notes(std::vector<std::string>& notes, const StudyResult& r) {
  constexpr size_t kMost = 8;
  const std::string name = absl::StrCat(r.row->name, r.dtype == "float32" ? "" : ", bf16");
  for (const auto& [side, runs] : {std::pair("ours", &r.ours), {"the peer", &r.theirs}}) {
    if (!runs->failure.empty()) notes.push_back(absl::StrCat(name, ": ", side, " failed: ", runs->failure));
    if (runs->runs.empty() || (runs == &r.ours && !r.row->same_as.empty())) continue;
    const RunFacts& run = runs->runs.back();
    for (const auto& [what, texts] : {std::pair("compiled again", &run.recompilations), {"graph break", &run.breaks}}) {
      for (size_t i = 0; i < std::min(kMost, texts->size()); ++i)
        notes.push_back(absl::StrCat(name, ": ", side, ", ", what, ": ", (*texts)[i]));
      if (texts->size() > kMost)
        notes.push_back(absl::StrCat(name, ": ", side, ", ", what, ": ", texts->size() - kMost, " more"));
    }
  }
  if (r.row->published_first_s > 0 && r.dtype != "float32") return;
  if (r.row->published_first_s > 0)
    notes.push_back(formatted("%s: the study's first steps took %.0f s", r.row->name, r.row->published_first_s));
}

constexpr const char* kLegend =
    "first s: seconds of the untimed steps, with all that they "
    "compile; compile s: these less the same batches later. compiled: times that code was generated, again: for "
    "recordings behind the first. MiB: the process's peak above what it held before the model, or the device's peak. "
    "loss: mean of the last untimed steps. Medians over the rounds. ratio: how many times ours "
    "is as fast as the peer, or as short, within a round: more is better.";

// Returns the HTML of a bar for `value`. The bar of `longest` is as wide as the column.
std::string bar(double value, double longest) {
  return std::isnan(value) || longest <= 0
             ? std::string()
             : formatted("<i style=\"width:%.0f%%\"></i>", std::min(100.0, 100 * value / longest));
}

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #1d2126; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { max-width: 60rem; color: #555; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d9dde2; text-align: right; white-space: nowrap; }
th { color: #555; font-weight: 600; } .t { text-align: left; white-space: normal; } .yes { color: #2c7a4b; } .no { color: #b23b2e; }
td.b { min-width: 8rem; } i { display: block; height: .7em; background: #5e86b8; border-radius: 2px; }
@media (prefers-color-scheme: dark) { body { color: #e4e6e9; background: #16191d; } p, th { color: #a3a9b1; } th, td { border-color: #333a42; } }
)";

}  // namespace

double median_of(const StudyRuns& runs, double RunFacts::*figure) {
  return median(runs, [figure](const RunFacts& run) { return run.*figure; });
}

StudyTable table_of(const std::string& heading, const std::string& title, const std::string& published,
                    const std::vector<StudyResult>& results) {
  const bool has_peer = std::ranges::any_of(
      results, [](const StudyResult& r) { return !r.theirs.runs.empty() || !r.theirs.failure.empty(); });
  StudyTable table;
  table.heading = heading;
  table.title = title;
  table.legend = absl::StrCat(published, ": the study's steps/s, at its own size. ", kLegend);
  const std::vector<Column> columns = columns_of(published, has_peer);
  for (const Column& column : columns) table.columns.emplace_back(column.name);
  std::vector<std::string> dtypes;
  for (const StudyResult& r : results) {
    std::vector<std::string>& cells = table.cells.emplace_back();
    for (const Column& column : columns) cells.push_back(column.cell(r));
    table.ratios.push_back(ratio(r.ours, r.theirs, speed));
    add_notes(table.notes, r);
    if (!std::ranges::count(dtypes, r.dtype)) dtypes.push_back(r.dtype);
    if (!r.row->note.empty() && r.dtype == dtypes[0])
      table.notes.push_back(absl::StrCat(r.row->name, ": ", r.row->note));
  }
  for (const std::string& dtype : dtypes) Checks(table.checks, dtype, results).run();
  return table;
}

std::string to_text(const StudyTable& table) {
  std::vector<size_t> widths;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    size_t width = table.columns[c].size();
    for (const auto& cells : table.cells) width = std::max(width, cells[c].size());
    widths.push_back(width);
  }
  std::string out = absl::StrCat(table.title, "\n\n");
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string space(widths[c] - cells[c].size(), ' ');
      absl::StrAppend(&out, c < 2 ? cells[c] + space : space + cells[c], c + 1 < cells.size() ? "  " : "\n");
    }
  };
  add_line(table.columns);
  for (const auto& cells : table.cells) add_line(cells);
  absl::StrAppend(&out, "\n", table.legend, "\n");
  if (!table.checks.empty()) out += "\n";
  for (const StudyTable::Check& check : table.checks)
    absl::StrAppend(&out, check.holds ? "holds       " : "falls short ", check.what, ": ", check.seen, "\n");
  if (!table.notes.empty()) out += "\n";
  for (const std::string& note : table.notes) absl::StrAppend(&out, note, "\n");
  return out;
}

std::string to_html(const StudyTable& table) {
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
      html_escaped(table.heading), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<h1>",
      html_escaped(table.heading), "</h1>\n<p>", html_escaped(table.title), "</p>\n<div class=\"wide\"><table>\n<tr>");
  const auto class_of = [](size_t column) { return column < 2 ? " class=\"t\"" : ""; };
  for (size_t c = 0; c < table.columns.size(); ++c)
    absl::StrAppend(&out, "<th", class_of(c), ">", html_escaped(table.columns[c]), "</th>");
  const bool has_ratios = std::ranges::any_of(table.ratios, [](double r) { return !std::isnan(r); });
  const double longest = has_ratios ? std::ranges::max(table.ratios, {}, [](double r) { return std::isnan(r) ? 0 : r; })
                                    : 0;
  out += has_ratios ? "<th class=\"t\">speed over the peer's</th></tr>\n" : "</tr>\n";
  for (size_t row = 0; row < table.cells.size(); ++row) {
    out += "<tr>";
    for (size_t c = 0; c < table.cells[row].size(); ++c)
      absl::StrAppend(&out, "<td", class_of(c), ">", html_escaped(table.cells[row][c]), "</td>");
    if (has_ratios) absl::StrAppend(&out, "<td class=\"b\">", bar(table.ratios[row], longest), "</td>");
    out += "</tr>\n";
  }
  absl::StrAppend(&out, "</table></div>\n<p>", html_escaped(table.legend), "</p>\n");
  if (!table.checks.empty()) out += "<h2>What is asked</h2>\n<table>\n";
  for (const StudyTable::Check& check : table.checks)
    absl::StrAppend(&out, "<tr><td class=\"", check.holds ? "yes\">holds" : "no\">falls short", "</td><td class=\"t\">",
                    html_escaped(check.what), "</td><td class=\"t\">", html_escaped(check.seen), "</td></tr>\n");
  if (!table.checks.empty()) out += "</table>\n";
  if (!table.notes.empty()) out += "<h2>Notes</h2>\n<ul>\n";
  for (const std::string& note : table.notes) absl::StrAppend(&out, "<li>", html_escaped(note), "</li>\n");
  if (!table.notes.empty()) out += "</ul>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace rondo::examples
