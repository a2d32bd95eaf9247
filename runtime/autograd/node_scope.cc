#include "rondo/runtime/autograd/node_scope.h"

#include <utility>

namespace rondo::autograd {
namespace {
thread_local const Node* in_rule = nullptr;
thread_local const Asked* asked = nullptr;
}  // namespace

const Node* node_of_rule() { return in_rule; }
RuleScope::RuleScope(const Node& node) : previous_(std::exchange(in_rule, &node)) {}
RuleScope::~RuleScope() { in_rule = previous_; }

Asked::Asked(std::vector<bool> edges, std::vector<int> outputs)
    : edges(std::move(edges)), outputs(std::move(outputs)), previous_(std::exchange(asked, this)) {}
Asked::Asked() : previous_(std::exchange(asked, nullptr)) {}
Asked::~Asked() { asked = previous_; }
const Asked* Asked::now() { return asked; }

InPlaceOf::InPlaceOf(const Node& node) : previous_(std::exchange(now_, &node)) {}
InPlaceOf::~InPlaceOf() { now_ = previous_; }

}  // namespace rondo::autograd
