#include "rondo/compile/codegen/loop_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rondo::compile {

LoopOpInfo info(LoopOp op) {
  switch (op) {
    case LoopOp::kConst: return {"const", 0};
    case LoopOp::kScalar: return {"scalar", 0};
    case LoopOp::kLoad: return {"load", 0};
    case LoopOp::kPick: return {"pick", 1};
    case LoopOp::kIndex: return {"index", 0};
    case LoopOp::kRandomKeep: return {"random_keep", 1};
    case LoopOp::kRandomFirst: return {"random_first", 0};
    case LoopOp::kRandomSecond: return {"random_second", 0};
    case LoopOp::kAdd: return {"add", 2};
    case LoopOp::kSub: return {"sub", 2};
    case LoopOp::kMul: return {"mul", 2};
    case LoopOp::kDiv: return {"div", 2};
    case LoopOp::kFma: return {"fma", 3};
    case LoopOp::kSqrt: return {"sqrt", 1};
    case LoopOp::kAbs: return {"abs", 1};
    case LoopOp::kNeg: return {"neg", 1};
    case LoopOp::kRoundEven: return {"round_even", 1};
    case LoopOp::kFloor: return {"floor", 1};
    case LoopOp::kExp2Int: return {"exp2_int", 1};
    case LoopOp::kExponent: return {"exponent", 1};
    case LoopOp::kMantissa: return {"mantissa", 1};
    case LoopOp::kShiftLeft: return {"shift_left", 2};
    case LoopOp::kShiftRight: return {"shift_right", 2};
    case LoopOp::kLt: return {"lt", 2};
    case LoopOp::kLe: return {"le", 2};
    case LoopOp::kEq: return {"eq", 2};
    case LoopOp::kNe: return {"ne", 2};
    case LoopOp::kAnd: return {"and", 2};
    case LoopOp::kOr: return {"or", 2};
    case LoopOp::kXor: return {"xor", 2};
    case LoopOp::kNot: return {"not", 1};
    case LoopOp::kSelect: return {"select", 3};
    case LoopOp::kCast: return {"cast", 1};
    case LoopOp::kStore: return {"store", 1};
    case LoopOp::kCheckIndex: return {"check_index", 1};
    case LoopOp::kScan: return {"scan", 1};
    case LoopOp::kReduceSum: return {"reduce_sum", 1};
    case LoopOp::kReduceMax: return {"reduce_max", 1};
    case LoopOp::kReduceMin: return {"reduce_min", 1};
    case LoopOp::kColumnSum: return {"column_sum", 1};
    case LoopOp::kColumnMax: return {"column_max", 1};
    case LoopOp::kColumnMin: return {"column_min", 1};
  }
  return {"?", 0};
}

namespace {

constexpr auto kLastOp = LoopOp::kColumnMin;

// Prints extents, in the order of extents(), each with its mark and range.
class ExtentPrinter {
 public:
  explicit ExtentPrinter(const LoopKernel& kernel) : varying_(kernel.varying), ranges_(kernel.ranges) {}
  std::string next(int64_t extent) {
    const size_t at = at_++;
    if (at >= varying_.size() || !varying_[at] || !may_vary(extent)) return absl::StrCat(extent);
    return absl::StrCat(extent, "?", at < ranges_.size() ? text_of(ranges_[at]) : "");
  }

 private:
  static std::string text_of(const ExtentRange& range) {
    std::string text;
    if (range.min > 0) absl::StrAppend(&text, "[>=", range.min, "]");
    if (range.max < INT64_MAX) absl::StrAppend(&text, "[<=", range.max, "]");
    if (range.multiple_of > 1) absl::StrAppend(&text, "[/", range.multiple_of, "]");
    return text;
  }
  const std::vector<bool>& varying_;
  const std::vector<ExtentRange>& ranges_;
  size_t at_ = 0;
};

std::string line_of(const LoopKernel& kernel, const char* list, int32_t id) {
  std::string text = absl::StrCat("    ", list, " %", id);
  if (id < 0 || id >= std::ssize(kernel.instrs)) return text + " ???\n";  // invalid kernels must be printable
  const Instr& i = kernel.instrs[static_cast<size_t>(id)];
  absl::StrAppend(&text, ": ", std::string(name_of(i.type)), " = ", info(i.op).name);
  if (i.op == LoopOp::kConst) absl::StrAppend(&text, " ", exact_text(i.value));
  for (int32_t arg : {i.a, i.b, i.c})
    if (arg >= 0) absl::StrAppend(&text, " %", arg);
  if (i.index >= 0) absl::StrAppend(&text, " @", i.index);
  return text + "\n";
}

}  // namespace

std::string to_string(const LoopKernel& kernel) {
  ExtentPrinter extent(kernel);
  std::string text = absl::StrCat("kernel ", kernel.name, kernel.name.empty() ? "" : " ", "rows=", kernel.rows,
                                  " cols=", extent.next(kernel.cols));
  const std::string chunk_rows = extent.next(kernel.chunk_rows);
  if (kernel.split_columns) absl::StrAppend(&text, " split_columns");
  if (kernel.chunk_rows > 0) absl::StrAppend(&text, " chunk_rows=", chunk_rows);
  if (kernel.starts >= 0) absl::StrAppend(&text, " segments=", kernel.segments, " starts=@", kernel.starts);
  if (kernel.n_scalars > 0) absl::StrAppend(&text, " scalars=", kernel.n_scalars);
  if (kernel.per_item) text += " per_item";
  if (kernel.streams) text += " streams";
  text += "\n";
  for (size_t n = 0; n < kernel.operands.size(); ++n) {
    const Operand& operand = kernel.operands[n];
    const std::string col_stride = extent.next(operand.col_stride);
    absl::StrAppend(&text, "  @", n, ": ", std::string(name_of(operand.dtype)));
    for (const OperandAxis& axis : operand.axes) {
      absl::StrAppend(&text, " {/", extent.next(axis.divisor));
      absl::StrAppend(&text, " %", extent.next(axis.size));
      absl::StrAppend(&text, " *", extent.next(axis.stride), "}");
    }
    absl::StrAppend(&text, " col*", col_stride, operand.is_output ? " output" : "",
                    operand.is_partial ? " partial" : "");
    if (operand.onto >= 0) absl::StrAppend(&text, " onto=@", operand.onto);
    if (operand.is_random) absl::StrAppend(&text, " random+", operand.increment);
    if (operand.is_index) text += " index";
    if (operand.is_check) text += " check";
    text += "\n";
  }
  if (kernel.inner > 1) absl::StrAppend(&text, "  inner=", extent.next(kernel.inner), "\n");
  for (const Stage& stage : kernel.stages) {
    absl::StrAppend(&text, "  stage\n");
    for (int32_t id : stage.row) text += line_of(kernel, "row", id);
    for (int32_t id : stage.column) text += line_of(kernel, "col", id);
    for (int32_t id : stage.reductions) text += line_of(kernel, "red", id);
  }
  return text;
}

std::string code_text(const LoopKernel& kernel) {
  LoopKernel same = kernel;
  same.name.clear();
  same.rows = 1;
  same.segments = std::min<int64_t>(same.segments, 1);
  size_t next = 0;
  const auto forget = [&](int64_t& extent) {  // call it in the order of extents()
    const size_t at = next++;
    if (at < kernel.varying.size() && kernel.varying[at] && may_vary(extent)) extent = 2;
  };
  forget(same.cols);
  forget(same.chunk_rows);
  std::string wrapping;  // code depends on the number of rows only through these facts
  for (size_t n = 0; n < same.operands.size(); ++n) {
    forget(same.operands[n].col_stride);
    for (size_t a = 0; a < same.operands[n].axes.size(); ++a) {
      const OperandAxis& own = kernel.operands[n].axes[a];
      if (wraps(kernel, own)) absl::StrAppend(&wrapping, " @", n, ".", a);
      if (kernel.inner > 1) absl::StrAppend(&wrapping, ":", static_cast<int>(along_inner(own, kernel.inner)));
      OperandAxis& axis = same.operands[n].axes[a];
      for (int64_t* extent : {&axis.divisor, &axis.size, &axis.stride}) forget(*extent);
    }
  }
  if (same.inner > 1) forget(same.inner);
  return absl::StrCat(to_string(same), "  wraps", wrapping, "\n");
}

namespace {

class KernelParser {
 public:
  explicit KernelParser(Scanner& in) : in_(in) {}

  LoopKernel run() {
    in_.expect("kernel");
    if (!in_.next_is("rows=")) kernel_.name = std::string(in_.word());  // the name may be empty
    in_.expect("rows=");
    kernel_.rows = in_.integer();
    in_.expect("cols=");
    kernel_.cols = extent(0);
    marks_.resize(2);
    kernel_.split_columns = in_.accept("split_columns");
    if (in_.accept("chunk_rows=")) kernel_.chunk_rows = extent(1);
    if (in_.accept("segments=")) {
      kernel_.segments = in_.integer();
      in_.expect("starts=");
      in_.expect("@");
      kernel_.starts = id();
    }
    if (in_.accept("scalars=")) kernel_.n_scalars = static_cast<int32_t>(in_.integer());
    kernel_.per_item = in_.accept("per_item");
    kernel_.streams = in_.accept("streams");
    in_.end_line();
    while (in_.accept("@")) operand();
    if (in_.accept("inner=")) {
      kernel_.inner = extent(marks_.size());
      if (kernel_.inner < 2) in_.fail("inner below 2");
      in_.end_line();
    }
    while (in_.accept("stage")) stage();
    for (bool mark : marks_)
      if (mark) kernel_.varying = marks_;
    ranges_.resize(marks_.size());
    for (const ExtentRange& range : ranges_)
      if (!(range == ExtentRange{})) kernel_.ranges = ranges_;
    for (const bool defined : defined_)
      if (!defined) in_.fail(absl::StrCat("kernel ", kernel_.name, ": an instruction is missing"));
    return std::move(kernel_);
  }

 private:
  // Reads the extent at this position of extents().
  int64_t extent(size_t at) {
    const int64_t value = in_.integer();
    if (marks_.size() <= at) marks_.resize(at + 1);
    marks_[at] = in_.accept("?");
    if (marks_[at]) range(at);
    return value;
  }

  void range(size_t at) {
    ExtentRange range;
    while (in_.accept("[")) {
      int64_t& bound = in_.accept(">=") ? range.min : in_.accept("<=") ? range.max : range.multiple_of;
      if (&bound == &range.multiple_of) in_.expect("/");
      bound = in_.integer();
      in_.expect("]");
    }
    if (range.multiple_of < 1) in_.fail("a multiple of less than 1");
    if (ranges_.size() <= at) ranges_.resize(at + 1);
    ranges_[at] = range;
  }

  void operand() {
    if (in_.integer() != std::ssize(kernel_.operands)) in_.fail("operands must come in order");
    in_.expect(":");
    Operand operand;
    operand.dtype = in_.dtype();
    const size_t first = marks_.size();
    size_t next = first + 1;
    while (in_.accept("{")) {
      OperandAxis axis{};
      in_.expect("/");
      axis.divisor = extent(next++);
      in_.expect("%");
      axis.size = extent(next++);
      in_.expect("*");
      axis.stride = extent(next++);
      in_.expect("}");
      operand.axes.push_back(axis);
    }
    in_.expect("col*");
    operand.col_stride = extent(first);
    operand.is_output = in_.accept("output");
    operand.is_partial = in_.accept("partial");
    if (in_.accept("onto=")) {
      in_.expect("@");
      operand.onto = id();
    }
    operand.is_random = in_.accept("random+");
    if (operand.is_random) operand.increment = in_.integer();
    operand.is_index = in_.accept("index");
    operand.is_check = in_.accept("check");
    in_.end_line();
    kernel_.operands.push_back(std::move(operand));
  }

  void stage() {
    in_.end_line();
    Stage& stage = kernel_.stages.emplace_back();
    for (;;) {
      if (in_.accept("row")) stage.row.push_back(instruction());
      else if (in_.accept("col")) stage.column.push_back(instruction());
      else if (in_.accept("red")) stage.reductions.push_back(instruction());
      else return;
    }
  }

  int32_t id() {
    const int64_t id = in_.integer();
    if (id < 0 || id > 1 << 20) in_.fail("an instruction's number is out of range");
    return static_cast<int32_t>(id);
  }

  int32_t instruction() {
    in_.expect("%");
    const int32_t at = id();
    if (at >= std::ssize(kernel_.instrs)) {
      kernel_.instrs.resize(static_cast<size_t>(at) + 1);
      defined_.resize(static_cast<size_t>(at) + 1);
    }
    defined_[static_cast<size_t>(at)] = true;
    Instr instr{};
    in_.expect(":");
    instr.type = in_.dtype();
    in_.expect("=");
    instr.op = op();
    if (instr.op == LoopOp::kConst) instr.value = in_.real();
    for (int32_t* arg : {&instr.a, &instr.b, &instr.c})
      if (in_.accept("%")) *arg = id();
    if (in_.accept("@")) instr.index = id();
    in_.end_line();
    kernel_.instrs[static_cast<size_t>(at)] = instr;
    return at;
  }

  LoopOp op() {
    const std::string_view name = in_.word();
    for (int i = 0; i <= static_cast<int>(kLastOp); ++i)
      if (name == info(static_cast<LoopOp>(i)).name) return static_cast<LoopOp>(i);
    in_.fail(absl::StrCat("no loop operation \"", std::string(name), "\""));
  }

  Scanner& in_;
  LoopKernel kernel_;
  std::vector<bool> marks_, defined_;
  std::vector<ExtentRange> ranges_;
};

}  // namespace

LoopKernel parse_loop_kernel(Scanner& in) { return KernelParser(in).run(); }

LoopKernel parse_loop_kernel(std::string_view text) {
  Scanner in(text);
  if (in.at_end()) in.fail("no kernel");
  LoopKernel kernel = parse_loop_kernel(in);
  if (!in.at_end()) in.fail("nothing more was expected");
  return kernel;
}

}  // namespace rondo::compile
