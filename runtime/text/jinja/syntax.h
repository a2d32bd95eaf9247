// A parsed template: plain fields. Lines count from 1.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/text/jinja/value.h"

namespace rondo::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
using Expressions = std::vector<ExpressionPtr>;

// name(positional, ..., key=value, *star)
struct Arguments {
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;  // null: none
};

struct Expression {
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
  int depth = 1;  // of the tree below it
  std::string name{};
  Value constant{};
  Expressions parts{};
  std::vector<Operator> operators{};
  Arguments arguments{};
};

// Where a for or a set stores.
struct Target {
  std::string name{};           // a variable, or the namespace of `field`
  std::string field{};          // namespace.field
  std::vector<Target> parts{};  // a tuple
  bool is_tuple = false;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  Expressions defaults;  // of the last parameters
  Body body;
  int line = 0;
};

struct Statement {
  enum Type {
    kText,         // text
    kOutput,       // expression
    kFor,          // for target in expression if condition: body, else otherwise
    kIf,           // branches; body of the first whose condition is null or true
    kSet,          // target = expression
    kSetBlock,     // target = what body renders, through filter expressions if there is one
    kFilterBlock,  // body through expression
    kWith,         // targets = expressions: body
    kMacro,        // macro
    kGeneration,   // body is what the model says
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
  std::vector<std::pair<Target, ExpressionPtr>> assignments{};  // kWith
  std::vector<Branch> branches{};
  Body body{}, otherwise{};
  std::unique_ptr<Macro> macro{};
};

}  // namespace rondo::text::jinja
