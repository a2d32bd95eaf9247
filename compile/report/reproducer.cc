#include "rondo/compile/report/reproducer.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/report/check_units.h"
#include "rondo/compile/report/planted.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::compile {
namespace {

// FNV-1a: the same on every machine.
uint64_t hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001B3u;
  return h;
}

std::vector<int32_t> set_positions(const std::vector<bool>& flags) {
  std::vector<int32_t> positions;
  for (size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) positions.push_back(static_cast<int32_t>(i));
  return positions;
}

void append_list(std::string& text, const std::vector<int32_t>& list) {
  for (int32_t i : list) absl::StrAppend(&text, " ", i);
  text += "\n";
}

std::vector<int32_t> parse_list(Scanner& in, size_t below) {
  std::vector<int32_t> list;
  while (!in.at_end_of_line()) {
    const int64_t i = in.integer();
    if (i < 0 || static_cast<size_t>(i) >= below) in.fail(absl::StrCat(i, " is out of range"));
    list.push_back(static_cast<int32_t>(i));
  }
  in.end_line();
  return list;
}

}  // namespace

std::string to_string(const StageInput& input, std::string_view error) {
  std::string text = "# A stage of the compiler failed. rondo_replay FILE runs it again.\n# ";
  absl::StrAppend(&text, absl::StrReplaceAll(std::string(error), {{"\n", "\n# "}}), "\nstage ",
                  std::string(input.stage), "\n");
  if (input.graph != nullptr) text += to_string(*input.graph);
  if (input.unit != nullptr) {
    absl::StrAppend(&text, "unit ", input.unit->fused ? "fused " : "", "rows=", input.unit->rows,
                    " cols=", input.unit->cols, " nodes");
    append_list(text, input.unit->nodes);
  }
  if (input.needed != nullptr) {
    text += "needed";
    append_list(text, set_positions(*input.needed));
  }
  if (input.kernel != nullptr) text += to_string(*input.kernel);
  return text;
}

Reproducer parse_reproducer(std::string_view text, std::span<const OpDef* const> own) {
  Scanner in(text);
  Reproducer r;
  if (in.at_end()) in.fail("nothing to replay");
  if (in.accept("stage")) {
    r.stage = std::string(in.word());
    in.end_line();
  } else {
    r.stage = in.next_is("kernel") ? "emit" : "compile";
  }
  if (in.next_is("kernel")) {
    r.kernel = parse_loop_kernel(in);
  } else {
    r.graph = parse_graph(in, own);
    if (in.accept("unit")) {
      Unit& unit = r.unit.emplace();
      unit.fused = in.accept("fused");
      in.expect("rows=");
      unit.rows = in.integer();
      in.expect("cols=");
      unit.cols = in.integer();
      in.expect("nodes");
      unit.nodes = parse_list(in, r.graph->nodes.size());
    }
    r.needed.resize(r.graph->values.size());
    if (in.accept("needed"))
      for (int32_t id : parse_list(in, r.needed.size())) r.needed[static_cast<size_t>(id)] = true;
  }
  if (!in.at_end()) in.fail("nothing more was expected");
  return r;
}

std::string replay(const Reproducer& r) {
  auto graph = [&]() -> const Graph& {
    if (!r.graph) throw Error(absl::StrCat("the stage \"", r.stage, "\" needs a graph"));
    return *r.graph;
  };
  if (r.stage == "emit") {
    if (!r.kernel) throw Error("the stage \"emit\" needs a loop kernel");
    compile_kernels({&*r.kernel, 1});
    return to_string(*r.kernel);
  }
  if (r.stage == "lower") {
    verify(graph());
    if (!r.unit) throw Error("the stage \"lower\" needs a unit");
    return to_string(lower(graph(), *r.unit, r.needed).kernel);
  }
  if (r.stage == "fuse") {
    verify(graph());
    return to_string(graph(), fuse(graph()));
  }
  if (r.stage == "numbers") {
    verify(graph());
    if (const std::string what = check_graph(graph()); !what.empty())
      throw InternalError("compiled code computes other numbers than eager execution: " + what);
    return to_string(graph());
  }
  if (r.stage == "compile") {
    std::string text;
    const std::shared_ptr<const Program> program = Program::compile(graph());
    for (const LoweredUnit& kernel : program->plan().kernels) text += to_string(kernel.kernel);
    return text;
  }
  return to_string(run_pass(r.stage, graph()));
}

std::string save_reproducer(const StageInput& input, std::string_view error) {
  const char* chosen = std::getenv("RONDO_REPRODUCERS");
  if (chosen != nullptr && std::string_view(chosen) == "off") return "";
  try {
    const std::string text = to_string(input, error);
    const std::filesystem::path folder = chosen != nullptr && *chosen != '\0' ? chosen
                                                                              : std::filesystem::temp_directory_path();
    std::filesystem::create_directories(folder);
    const std::string path =
        (folder / absl::StrFormat("rondo-%s-%016x.txt", std::string(input.stage), hash(text))).string();
    io::write_file_atomic(path, text);
    return absl::StrCat(" (to reproduce: rondo_replay ", path, ")");
  } catch (const std::exception& e) {  // the first failure is the one to report
    return absl::StrCat(" (no reproducer: ", e.what(), ")");
  }
}

void run_reproducible(const StageInput& input, absl::FunctionRef<void()> body) {
  try {
    enter_stage(input.stage);
    body();
  } catch (const Error& e) {
    throw Error(absl::StrCat(e.what(), save_reproducer(input, e.what())));
  } catch (const InternalError& e) {
    throw InternalError(absl::StrCat(e.what(), save_reproducer(input, e.what())));
  }
}

}  // namespace rondo::compile
