// A parsed template: plain fields. Lines count from 1.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "rondo/runtime/chat/jinja/value.h"

namespace rondo::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
using Expressions = List<ExpressionPtr>;

// name(positional, ..., key=value, *star)
struct Arguments {
  Expressions positional;
  List<std::pair<Value, ExpressionPtr>> named;  // keys are strings
  ExpressionPtr star;                           // null: none
};

struct Expression : ChargedNode {
  enum Type {
    kConstant,   // constant
    kName,       // name
    kTuple,      // parts
    kList,       // parts
    kDict,       // parts: key, value, key, value
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; null: left out
    kCall,       // parts[0](arguments)
    kFilter,     // parts[0]|name(arguments); parts[0] is null in a filter block
    kTest,       // parts[0] is name(arguments)
    kNot,        // parts[0]
    kNegative,
    kPositive,
    kAnd,  // parts[0], parts[1]
    kOr,
    kConditional,  // parts[1] if parts[0] else parts[2], which may be null
    kConcat,       // parts
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kArithmetic,   // parts[0] operators[0] parts[1]
  };
  enum Operator { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn, kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };

  Type type = kConstant;
  int line = 0;
  int depth = 1;  // the number of levels of the tree below and including this node
  std::string name{};
  Value constant{};
  Expressions parts{};
  List<Operator> operators{};
  Arguments arguments{};
};

// The target of an assignment by `for`, `set` or `with`.
struct Target {
  Value name{};          // a text: a variable, or the namespace of `field`
  Value field{};         // namespace.field; undefined: none
  List<Target> parts{};  // a tuple
  bool is_tuple = false;
};

struct Statement;
using Body = List<std::unique_ptr<Statement>>;

struct Macro : ChargedNode {
  Value name;            // a text
  Values parameters;     // strings, all different
  Expressions defaults;  // the defaults of the last parameters
  Body body;
  Values unset;  // as Statement::unset
  int line = 0;
};

struct Statement : ChargedNode {
  enum Type {
    kText,         // text
    kOutput,       // expression
    kFor,          // for target in expression if condition: body, else otherwise
    kIf,           // branches: runs the body of the first branch with a true or null condition (null: else)
    kSet,          // target = expression
    kSetBlock,     // target = the text that body renders; if expression is set, its filters are applied first
    kFilterBlock,  // writes the text that body renders, after the filters of expression
    kWith,         // targets = expressions: body
    kMacro,        // macro
    kGeneration,   // body renders the assistant's text
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };
  Type type = kText;
  int line = 0;
  std::string text{};
  ExpressionPtr expression{}, condition{};
  Target target{};
  List<std::pair<Target, ExpressionPtr>> assignments{};  // kWith
  List<Branch> branches{};
  Body body{}, otherwise{};
  // Names that `body` (for otherwise_unset: `otherwise`) sets before it reads them, and that an inner body reads. These
  // names are undefined until they are set, even if the caller gave variables of these names. See unset_names.cc.
  Values unset{}, otherwise_unset{};
  std::unique_ptr<Macro> macro{};
};

// A whole template.
struct Parsed {
  Body body;
  bool has_generation = false;
  std::string literals;  // Template::literal_text()
  Values unset;          // as Statement::unset, of the whole template
};

}  // namespace rondo::text::jinja
