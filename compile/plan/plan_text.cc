// Plans as text:
//
//   plan cpu x86_64
//   input %0: f32[8, 64]                                   # the graph
//   ...
//   return %3
//   kernel k rows=1 cols=512 split_columns                 # each kernel, then its operands and scalars
//   ...
//   operands %0 %3
//   scalars 0:0                                            # float 0 of node 0; item:0 is scalar 0 of an item
//   column_sum @2 %4 f32                                   # a column result: operand, value, compute type
//   launch kernel 0 grain=16384 nodes 0 1 at 0+0 2+0       # addresses: slot + bytes, or none
//   launch call variant=0 nodes 2 in %1 %2 out %3 at 0+0 1+0 2+0
//   launch copy nodes 3 in %4 out %5 at 2+0 1+0
//   launch table 0                                         # its items are an argument of the run
//   launch combine 0 at 3+256 2+0                          # for each column result: partial sums, result
//   place %0 input 0
//   fresh 2048 donor=-1
//   copy 1 bf16
//   results 2+0
//   seam 2 part=0 results 0                                # before launch 2: positions of results
//   arena 4096 kept reuses_inputs
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/plan/bounds.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/compile/plan/seams.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

constexpr const char* kPlacementNames[] = {"none", "input", "copy", "output", "arena", "shared"};

std::string spaced_name(ValueId id) { return id == kNoValue ? " none" : absl::StrCat(" %", id); }

template <class List> void append_values(std::string& text, const List& list) {
  for (ValueId id : list) text += spaced_name(id);
}
void append_nodes(std::string& text, const std::vector<int32_t>& nodes) {
  text += " nodes";
  for (int32_t n : nodes) absl::StrAppend(&text, " ", n);
}
void append_addresses(std::string& text, const std::vector<Address>& addresses) {
  for (const Address& a : addresses) {
    if (a.slot < 0) text += " none";
    else absl::StrAppend(&text, " ", a.slot, "+", a.offset);
  }
  text += "\n";
}

void append_operation(std::string& text, const Launch& launch) {
  append_nodes(text, launch.nodes);
  text += " in";
  append_values(text, launch.inputs);
  text += " out";
  append_values(text, launch.outputs);
}

std::string to_string(const LoweredUnit& unit) {
  std::string text = to_string(unit.kernel) + "operands";
  append_values(text, unit.operands);
  text += "\nscalars";
  for (const Scalar& s : unit.scalars) {
    if (s.kind == Scalar::Kind::kDevice) absl::StrAppend(&text, " item:", s.position);
    else absl::StrAppend(&text, " ", s.node, ":", s.position);
  }
  text += "\n";
  for (const ColumnResult& r : unit.column_results)
    absl::StrAppend(&text, info(r.op).name, " @", r.operand, spaced_name(r.value), " ", std::string(name_of(r.compute)),
                    "\n");
  return text;
}

std::string to_string(const Launch& launch) {
  std::string text = "launch ";
  switch (launch.kind) {
    case Launch::Kind::kKernel:
      absl::StrAppend(&text, "kernel ", launch.kernel, " grain=", launch.grain);
      append_nodes(text, launch.nodes);
      break;
    case Launch::Kind::kLibraryCall:
      absl::StrAppend(&text, "call variant=", launch.variant);
      append_operation(text, launch);
      break;
    case Launch::Kind::kCopy:
      text += "copy";
      append_operation(text, launch);
      break;
    case Launch::Kind::kCombine: absl::StrAppend(&text, "combine ", launch.kernel); break;
    case Launch::Kind::kTable: absl::StrAppend(&text, "table ", launch.kernel, "\n"); return text;
  }
  text += " at";
  append_addresses(text, launch.addresses);
  return text;
}

class PlanParser {
 public:
  explicit PlanParser(std::string_view text) : in_(text) {}

  Plan run() {
    if (in_.at_end()) in_.fail("no plan");
    in_.expect("plan");
    while (!in_.at_end_of_line())
      absl::StrAppend(&plan_.target, plan_.target.empty() ? "" : " ", std::string(in_.word()));
    in_.end_line();
    plan_.graph = parse_graph(in_);
    while (in_.next_is("kernel")) kernel();
    while (in_.next_is("launch")) launch();
    plan_.placements.resize(plan_.graph.values.size());
    while (in_.accept("place")) place();
    while (in_.accept("fresh")) {
      Plan::FreshBuffer& buffer = plan_.fresh.emplace_back();
      buffer.bytes = number(0, kMost);
      in_.expect("donor=");
      buffer.donor = static_cast<int32_t>(number(-1, std::ssize(plan_.graph.inputs)));
      in_.end_line();
    }
    while (in_.accept("copy")) {
      Plan::ParameterCopy& copy = plan_.copies.emplace_back();
      copy.input = static_cast<int32_t>(number(0, std::ssize(plan_.graph.inputs)));
      copy.dtype = in_.dtype();
      in_.end_line();
    }
    results_line_ = in_.line();
    in_.expect("results");
    plan_.outputs = addresses();
    in_.end_line();
    while (in_.accept("seam")) seam();
    in_.expect("arena");
    plan_.arena_bytes = number(0, kMost);
    plan_.keeps_arena = in_.accept("kept");
    plan_.reuses_inputs = in_.accept("reuses_inputs");
    in_.end_line();
    if (!in_.at_end()) in_.fail("nothing more was expected");
    check();
    number_floats(plan_);
    note_lifetimes(plan_);
    return std::move(plan_);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 60;
  static constexpr int64_t kMostElements = int64_t{1} << 48;

  // Reads a number in [least, end).
  int64_t number(int64_t least, int64_t end) {
    const int64_t value = in_.integer();
    if (value < least || value >= end) in_.fail(absl::StrCat(value, " is out of range"));
    return value;
  }
  int32_t index(size_t size) { return static_cast<int32_t>(number(0, static_cast<int64_t>(size))); }

  template <class List> void values(List& list) {
    for (;;) {
      if (in_.accept("none")) list.push_back(kNoValue);
      else if (in_.accept("%")) list.push_back(index(plan_.graph.values.size()));
      else return;
    }
  }
  std::vector<int32_t> nodes() {
    std::vector<int32_t> list;
    in_.expect("nodes");
    while (in_.next_is_integer()) list.push_back(index(plan_.graph.nodes.size()));
    if (list.empty()) in_.fail("a launch without nodes");
    return list;
  }
  std::vector<Address> addresses() {
    std::vector<Address> list;
    while (!in_.at_end_of_line()) {
      Address& a = list.emplace_back();
      if (in_.accept("none")) continue;
      a.slot = static_cast<int32_t>(number(0, INT32_MAX));
      in_.expect("+");
      a.offset = number(0, kMost);
    }
    return list;
  }

  void kernel() {
    LoweredUnit unit;
    unit.kernel = parse_loop_kernel(in_);
    LoopKernel named = unit.kernel;
    named.name = "kernel";
    if (const std::string what = compile::verify(named); !what.empty()) in_.fail(what);
    check_extents(unit.kernel);
    in_.expect("operands");
    values(unit.operands);
    in_.end_line();
    in_.expect("scalars");
    while (!in_.at_end_of_line()) {
      Scalar& scalar = unit.scalars.emplace_back();
      if (in_.accept("item")) {
        scalar.kind = Scalar::Kind::kDevice;
        in_.expect(":");
        // Code reads the scalars of an item in order.
        if (!unit.kernel.per_item || number(0, INT32_MAX) != std::ssize(unit.scalars) - 1)
          in_.fail("an item's scalars are those of its kernel, in order");
        scalar.position = static_cast<int32_t>(unit.scalars.size()) - 1;
        continue;
      }
      if (unit.kernel.per_item) in_.fail("the kernel of a table reads its items' scalars");
      scalar.node = index(plan_.graph.nodes.size());
      in_.expect(":");
      scalar.position = index(plan_.graph.node(scalar.node).attrs.floats.size());
    }
    in_.end_line();
    const auto reduction = [&] {
      for (const LoopOp op : {LoopOp::kColumnSum, LoopOp::kColumnMax, LoopOp::kColumnMin})
        if (in_.accept(info(op).name)) return std::optional(op);
      return std::optional<LoopOp>();
    };
    while (const std::optional<LoopOp> op = reduction()) {
      ColumnResult& result = unit.column_results.emplace_back();
      result.op = *op;
      in_.expect("@");
      result.operand = index(unit.operands.size());
      in_.expect("%");
      result.value = index(plan_.graph.values.size());
      result.compute = in_.dtype();
      in_.end_line();
    }
    if (unit.operands.size() != unit.kernel.operands.size() ||
        static_cast<int32_t>(unit.scalars.size()) != unit.kernel.n_scalars)
      in_.fail("a kernel has other operands or scalars than its unit");
    unit.extents = extents(unit.kernel);
    plan_.kernels.push_back(std::move(unit));
  }

  // Limits the extents of a kernel so that their products do not overflow: bounds.cc and the launch functions multiply
  // them.
  void check_extents(const LoopKernel& kernel) {
    for (int64_t extent : extents(kernel))
      if (extent <= -kMostElements || extent >= kMostElements) in_.fail(absl::StrCat(extent, " is out of range"));
    if (kernel.segments >= kMostElements / kernel.cols)
      in_.fail(absl::StrCat(kernel.segments, " segments are out of range"));
    if (kernel.chunk_rows < 0 || kernel.rows >= kMostElements || kernel.rows > kMostElements / kernel.cols)
      in_.fail(absl::StrCat(kernel.rows, " x ", kernel.cols, " elements are out of range"));
  }

  void launch() {
    Launch launch;
    launch_lines_.push_back(in_.line());
    in_.expect("launch");
    if (in_.accept("kernel")) {
      launch.kind = Launch::Kind::kKernel;
      launch.kernel = index(plan_.kernels.size());
      in_.expect("grain=");
      launch.grain = number(1, kMost);
      launch.nodes = nodes();
      if (plan_.kernel_of(launch).kernel.per_item) in_.fail("a kernel that runs on items wants a table");
      launch.checks = checks_of(plan_, launch);
      for (const Launch::Check& check : launch.checks)
        if (check.node < 0) in_.fail(absl::StrCat("nothing checks operand @", check.operand));
    } else if (in_.accept("call")) {
      launch.kind = Launch::Kind::kLibraryCall;
      in_.expect("variant=");
      launch.variant = static_cast<int32_t>(number(0, INT32_MAX));
      operation(launch);
    } else if (in_.accept("copy")) {
      launch.kind = Launch::Kind::kCopy;
      operation(launch);
      check_copy(launch);
    } else if (in_.accept("table")) {
      launch.kind = Launch::Kind::kTable;
      launch.kernel = index(plan_.kernels.size());
      in_.end_line();
      if (!plan_.kernel_of(launch).kernel.per_item) in_.fail("a table wants a kernel that runs on its items");
      plan_.launches.push_back(std::move(launch));
      return;
    } else {
      in_.expect("combine");
      launch.kind = Launch::Kind::kCombine;
      launch.kernel = index(plan_.kernels.size());
    }
    in_.expect("at");
    launch.addresses = addresses();
    const size_t wanted = addresses_of(launch);
    if (launch.addresses.size() != wanted) in_.fail(absl::StrCat(wanted, " addresses were expected"));
    in_.end_line();
    plan_.launches.push_back(std::move(launch));
  }

  void operation(Launch& launch) {
    launch.nodes = nodes();
    in_.expect("in");
    values(launch.inputs);
    in_.expect("out");
    values(launch.outputs);
  }
  void check_copy(const Launch& launch) {
    const auto dense = [&](const ValueIds& ids) -> const Value* {
      if (ids.size() != 1 || ids[0] == kNoValue) return nullptr;
      const Value& value = plan_.graph.value(ids[0]);
      return is_contiguous(value.sizes, value.strides) ? &value : nullptr;
    };
    const Value *from = dense(launch.inputs), *to = dense(launch.outputs);
    if (from == nullptr || to == nullptr || from->dtype != to->dtype || from->sizes.numel() != to->sizes.numel())
      in_.fail("a copy is of one dense value to another of the same bytes");
  }

  size_t addresses_of(const Launch& launch) const {
    if (!launch.runs_kernel()) return launch.inputs.size() + launch.outputs.size();
    const LoweredUnit& unit = plan_.kernel_of(launch);
    return launch.kind == Launch::Kind::kCombine ? 2 * unit.column_results.size() : unit.operands.size();
  }

  void place() {
    in_.expect("%");
    Plan::Placement& placement = plan_.placements[static_cast<size_t>(index(plan_.graph.values.size()))];
    const std::string_view kind = in_.word();
    const auto found = std::find(std::begin(kPlacementNames), std::end(kPlacementNames), kind);
    if (found == std::end(kPlacementNames)) in_.fail(absl::StrCat("no place \"", std::string(kind), "\""));
    placement.kind = static_cast<Plan::Placement::Kind>(found - std::begin(kPlacementNames));
    placement.index = number(0, kMost);
    in_.end_line();
  }

  void seam() {
    Plan::Seam& seam = plan_.seams.emplace_back();
    seam.launch = index(plan_.launches.size() + 1);
    in_.expect("part=");
    seam.part = static_cast<int32_t>(number(0, INT32_MAX));
    in_.expect("results");
    while (!in_.at_end_of_line()) seam.outputs.push_back(index(plan_.graph.outputs.size()));
    in_.end_line();
  }

  // Checks that are only possible when the whole plan is read.
  void check() {
    if (plan_.outputs.size() != plan_.graph.outputs.size())
      in_.fail("as many results as outputs were expected", results_line_);
    const std::optional<OutOfBounds> found = find_out_of_bounds(plan_);
    if (found)
      in_.fail(found->what, found->launch < 0 ? results_line_ : launch_lines_[static_cast<size_t>(found->launch)]);
  }

  Scanner in_;
  Plan plan_;
  std::vector<int> launch_lines_;
  int results_line_ = 0;
};

}  // namespace

std::string to_string(const Plan& plan) {
  std::string text = absl::StrCat("plan ", plan.target, "\n", to_string(plan.graph));
  for (const LoweredUnit& unit : plan.kernels) text += to_string(unit);
  for (const Launch& launch : plan.launches) text += to_string(launch);
  for (size_t v = 0; v < plan.placements.size(); ++v)
    if (plan.placements[v].kind != Plan::Placement::kNone)
      absl::StrAppend(&text, "place %", v, " ", kPlacementNames[plan.placements[v].kind], " ", plan.placements[v].index,
                      "\n");
  for (const Plan::FreshBuffer& buffer : plan.fresh)
    absl::StrAppend(&text, "fresh ", buffer.bytes, " donor=", buffer.donor, "\n");
  for (const Plan::ParameterCopy& copy : plan.copies)
    absl::StrAppend(&text, "copy ", copy.input, " ", std::string(name_of(copy.dtype)), "\n");
  text += "results";
  append_addresses(text, plan.outputs);
  for (const Plan::Seam& seam : plan.seams) {
    absl::StrAppend(&text, "seam ", seam.launch, " part=", seam.part, " results");
    for (int32_t output : seam.outputs) absl::StrAppend(&text, " ", output);
    text += "\n";
  }
  absl::StrAppend(&text, "arena ", plan.arena_bytes, plan.keeps_arena ? " kept" : "",
                  plan.reuses_inputs ? " reuses_inputs" : "", "\n");
  return text;
}

Plan parse_plan(std::string_view text) { return PlanParser(text).run(); }

}  // namespace rondo::compile
