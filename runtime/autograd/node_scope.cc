#include "rondo/runtime/autograd/node_scope.h"

#include <utility>

namespace rondo::autograd {
namespace {
thread_local const Node* in_rule = nullptr;
thread_local const RequestedGradients* requested = nullptr;
}  // namespace

const Node* node_of_rule() { return in_rule; }
RuleScope::RuleScope(const Node& node) : previous_(std::exchange(in_rule, &node)) {}
RuleScope::~RuleScope() { in_rule = previous_; }

RequestedGradients::RequestedGradients(std::vector<bool> edges, std::vector<int> outputs)
    : edges(std::move(edges)), outputs(std::move(outputs)), previous_(std::exchange(requested, this)) {}
RequestedGradients::RequestedGradients() : previous_(std::exchange(requested, nullptr)) {}
RequestedGradients::~RequestedGradients() { requested = previous_; }
const RequestedGradients* RequestedGradients::now() { return requested; }

ReplacementScope::ReplacementScope(const Node& node) : previous_(std::exchange(now_, &node)) {}
ReplacementScope::~ReplacementScope() { now_ = previous_; }

}  // namespace rondo::autograd
