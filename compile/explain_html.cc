// An explanation as one HTML page: styles and drawings inline, no scripts, loads nothing.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/explain.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/html.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::compile {
namespace {

constexpr const char* kStyle = R"(
:root { --ink: #1c2430; --soft: #5b6676; --line: #d9dee6; --paper: #ffffff; --tint: #f4f6f9; --accent: #2f6fb0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #9aa6b6; --line: #38424f; --paper: #171c23; --tint: #1f262f; --accent: #7fb3e6; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; margin-top: 1.75rem; }
p, li { color: var(--soft); } b { color: var(--ink); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } td.n, th.n { text-align: right; white-space: nowrap; }
tr:target { background: var(--tint); } a { color: var(--accent); text-decoration: none; }
pre { font: 12.5px/1.45 ui-monospace, monospace; background: var(--tint); padding: .75rem; overflow-x: auto; margin: .4rem 0; }
summary { cursor: pointer; color: var(--accent); } ul.s { margin: 0; padding-left: 1rem; }
svg { width: 100%; height: auto; background: var(--tint); } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.c0 { fill: #8aa4c0; background: #8aa4c0; } .c1 { fill: #5e9a78; background: #5e9a78; } .c2 { fill: #d9a441; background: #d9a441; } .c3 { fill: #c2604f; background: #c2604f; }
)";

struct Series {
  const char* name;
  int64_t (*of)(const MemoryPoint&);
};
constexpr Series kSeries[] = {
    {"inputs", [](const MemoryPoint& p) { return p.inputs; }},
    {"kept for backward", [](const MemoryPoint& p) { return p.kept; }},
    {"outputs", [](const MemoryPoint& p) { return p.outputs; }},
    {"transients", [](const MemoryPoint& p) { return p.transients; }},
};

// Draws the memory in use as stacked bars, one for each launch, in the order in which the launches run.
void append_memory(std::string& out, const std::vector<MemoryPoint>& memory) {
  if (memory.empty()) return;
  int64_t peak = 1;
  for (const MemoryPoint& p : memory) peak = std::max(peak, p.total());
  constexpr double kWidth = 960, kHeight = 240, kLeft = 70, kTop = 14, kBottom = 22;
  const double step = (kWidth - kLeft - 10) / static_cast<double>(memory.size()),
               scale = (kHeight - kTop - kBottom) / static_cast<double>(peak);
  out += "<h3>Memory over time</h3>\n<p class=\"key\">In use while each launch runs:";
  for (size_t s = 0; s < std::size(kSeries); ++s)
    absl::StrAppend(&out, "<span class=\"c", s, "\"></span>", kSeries[s].name);
  absl::StrAppend(&out, "</p>\n<svg viewBox=\"0 0 ", kWidth, " ", kHeight,
                  "\" role=\"img\" aria-label=\"memory over time\">\n");
  for (int i = 0; i <= 2; ++i) {
    const double y = kHeight - kBottom - scale * static_cast<double>(peak) * i / 2;
    append_formatted(&out, "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"currentColor\" opacity=\".2\"/>",
                     kLeft, kWidth, y, y);
    append_formatted(&out, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", kLeft - 6, y + 4,
                     format_bytes(peak * i / 2));
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    const double x = kLeft + step * static_cast<double>(i);
    append_formatted(&out, "<g><title>%s: %s (inputs %s, kept %s, outputs %s, transients %s)</title>",
                     html_escaped(memory[i].launch), format_bytes(memory[i].total()), format_bytes(memory[i].inputs),
                     format_bytes(memory[i].kept), format_bytes(memory[i].outputs), format_bytes(memory[i].transients));
    double y = kHeight - kBottom;
    for (size_t s = 0; s < std::size(kSeries); ++s) {
      const double height = scale * static_cast<double>(kSeries[s].of(memory[i]));
      y -= height;
      if (height > 0)
        append_formatted(&out, "<rect class=\"c%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>", s, x, y,
                         std::max(step - 1, step * 0.8), height);
    }
    out += "</g>\n";
    // Draws a mark where a program begins.
    const std::string program = memory[i].launch.substr(0, memory[i].launch.find(':'));
    if (i == 0 || !memory[i - 1].launch.starts_with(program + ":"))
      append_formatted(&out,
                       "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%g\" y2=\"%g\" stroke=\"currentColor\" opacity=\".5\"/>"
                       "<text x=\"%.2f\" y=\"%g\">%s</text>\n",
                       x, x, kTop, kHeight - 4, x + 4, kHeight - 6, html_escaped(program));
  }
  out += "</svg>\n";
}

void append_launches(std::string& out, const ProgramExplanation& program, const std::string& id) {
  out +=
      "<table>\n<tr><th>launch</th><th>from</th><th class=\"n\">ops</th><th class=\"n\">read</th><th "
      "class=\"n\">written</th>"
      "<th class=\"n\">saved by fusion</th></tr>\n";
  int64_t read = 0, written = 0, saved = 0;
  size_t seam = 0;
  for (size_t i = 0; i <= program.launches.size(); ++i) {
    for (; seam < program.seams.size() && program.seams[seam].launch <= static_cast<int>(i); ++seam)
      absl::StrAppend(&out, "<tr><td colspan=\"6\"><b>", html_escaped(to_string(program.seams[seam])),
                      "</b></td></tr>\n");
    if (i == program.launches.size()) break;
    const LaunchExplanation& launch = program.launches[i];
    absl::StrAppend(&out, "<tr id=\"", id, "-l", i, "\"><td>", launch.generated ? "" : "<i>", html_escaped(launch.name),
                    launch.generated ? "" : "</i>",
                    launch.algorithm > 0 ? absl::StrCat(", tuned to algorithm ", launch.algorithm) : std::string(),
                    "</td><td><ul class=\"s\">");
    for (const std::string& source : launch.sources) absl::StrAppend(&out, "<li>", html_escaped(source), "</li>");
    out += "</ul>";
    if (launch.generated)
      absl::StrAppend(&out, "<details><summary>loop IR</summary><pre>", html_escaped(launch.code), "</pre></details>");
    absl::StrAppend(&out, "</td><td class=\"n\">", launch.nodes.size(), "</td><td class=\"n\">",
                    format_bytes(launch.bytes_read), "</td><td class=\"n\">", format_bytes(launch.bytes_written),
                    "</td><td class=\"n\">", launch.bytes_saved > 0 ? format_bytes(launch.bytes_saved) : "",
                    "</td></tr>\n");
    read += launch.bytes_read;
    written += launch.bytes_written;
    saved += launch.bytes_saved;
  }
  absl::StrAppend(&out, "<tr><th>all</th><th></th><th class=\"n\">", program.nodes.size(), "</th><th class=\"n\">",
                  format_bytes(read), "</th><th class=\"n\">", format_bytes(written), "</th><th class=\"n\">",
                  format_bytes(saved), "</th></tr>\n</table>\n");
}

void append_program(std::string& out, const ProgramExplanation& program, const std::string& id) {
  absl::StrAppend(&out, "<h3>", html_escaped(program.name), "</h3>\n");
  append_formatted(&out,
                   "<p><b>%d</b> kernels, %d of them compiled for this recording, <b>%d</b> library calls, an arena of "
                   "<b>%s</b>, %.1f ms to compile.</p>\n",
                   program.kernels, program.compiled, program.library_calls, format_bytes(program.arena_bytes),
                   program.compile_ms);
  if (const int conversions = program.layout_copies + program.layouts_in_convolutions; conversions > 0)
    append_formatted(&out, "<p>%s change%s layout, %d inside of convolutions.</p>\n", counted(conversions, "image"),
                     conversions == 1 ? "s its" : " their", program.layouts_in_convolutions);
  append_launches(out, program, id);
  out += "<details><summary>graph</summary><pre>";
  for (const std::string& input : program.inputs) absl::StrAppend(&out, "input ", html_escaped(input), "\n");
  for (const NodeExplanation& node : program.nodes) {
    absl::StrAppend(&out, html_escaped(node.text), "  # ");
    if (node.launch >= 0)
      absl::StrAppend(&out, "<a href=\"#", id, "-l", node.launch, "\">",
                      html_escaped(program.launches[static_cast<size_t>(node.launch)].name), "</a>; ");
    absl::StrAppend(&out, html_escaped(node.origin), "\n");
  }
  for (const std::string& output : program.outputs) absl::StrAppend(&out, "output ", html_escaped(output), "\n");
  out += "</pre></details>\n";
}

}  // namespace

std::string to_html(const Explanation& explanation) try {
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Compiled regions</title>\n<style>",
      kStyle, "</style>\n</head>\n<body>\n<h1>Compiled regions</h1>\n");
  if (!explanation.products.empty()) out += "<ul>\n";
  for (const std::string& text : explanation.products) absl::StrAppend(&out, "<li>", html_escaped(text), "</li>\n");
  if (!explanation.products.empty()) out += "</ul>\n";
  for (size_t r = 0; r < explanation.regions.size(); ++r) {
    const RegionExplanation& region = explanation.regions[r];
    const RegionReport& report = region.report;
    absl::StrAppend(&out, "<h2>", html_escaped(report.name), "</h2>\n");
    append_formatted(&out, "<p><b>%s</b>, <b>%s</b>, <b>%s</b>, <b>%s</b> in <b>%.1f ms</b>, <b>%s</b>.</p>\n",
                     counted(report.layers, "layer"), counted(report.calls, "call"),
                     counted(report.entries, "recording"), counted(report.compilations, "compilation"),
                     report.compile_ms, counted(report.graph_breaks, "graph break"));
    if (!report.last_recompile.empty())
      absl::StrAppend(&out, "<p>Last recorded anew because: <b>", html_escaped(report.last_recompile), "</b></p>\n");
    if (!region.hints.empty()) out += "<ul>\n";
    for (const std::string& hint : region.hints) absl::StrAppend(&out, "<li>", html_escaped(hint), "</li>\n");
    if (!region.hints.empty()) out += "</ul>\n";
    for (size_t e = 0; e < region.entries.size(); ++e) {
      const EntryExplanation& entry = region.entries[e];
      // The most recently used recording is open.
      absl::StrAppend(&out, "<details", e + 1 == region.entries.size() ? " open" : "", "><summary>recording ", e,
                      ", keeps ", format_bytes(entry.kept_bytes), " for backward</summary>\n");
      append_memory(out, entry.memory);
      for (size_t p = 0; p < entry.programs.size(); ++p)
        append_program(out, entry.programs[p], absl::StrCat("r", r, "e", e, "p", p));
      out += "</details>\n";
    }
  }
  return out + "</body>\n</html>\n";
} catch (const std::bad_alloc&) {
  throw_out_of_memory("explain: to_html");
}

}  // namespace rondo::compile
