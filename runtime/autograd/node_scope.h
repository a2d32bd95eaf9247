// Scopes in which this thread works on a node: it runs the gradient rule of the node's op (RuleScope), computes only
// some of the node's gradients (RequestedGradients), or makes the nodes that replace it (ReplacementScope).
#pragma once

#include <vector>

namespace rondo {
class Node;
}  // namespace rondo

namespace rondo::autograd {

// Returns the node whose gradient rule runs on this thread; null: no rule runs.
const Node* node_of_rule();
// While in scope: the gradient rule of `node`'s op runs.
class RuleScope {
 public:
  explicit RuleScope(const Node& node);
  ~RuleScope();
  RuleScope(const RuleScope&) = delete;
  RuleScope& operator=(const RuleScope&) = delete;

 private:
  const Node* previous_;
};

// While in scope, now() tells which gradients of the running node grad() needs.
class RequestedGradients {
 public:
  // `edges`: for each edge, whether its gradient, or a gradient that is computed from it, is requested. `outputs`: the
  // outputs whose own gradient is requested.
  RequestedGradients(std::vector<bool> edges, std::vector<int> outputs);
  // Requests all gradients, as backward() does.
  RequestedGradients();
  ~RequestedGradients();
  RequestedGradients(const RequestedGradients&) = delete;
  RequestedGradients& operator=(const RequestedGradients&) = delete;
  static const RequestedGradients* now();  // null: all are requested

  const std::vector<bool> edges;
  const std::vector<int> outputs;

 private:
  const RequestedGradients* previous_;
};

// While in scope: nodes that this thread makes will replace `node` (Note [Replaced nodes] in node.h). In the order of a
// backward the new nodes take the place of `node`; among themselves they keep the order of creation.
class ReplacementScope {
 public:
  explicit ReplacementScope(const Node& node);
  ~ReplacementScope();
  ReplacementScope(const ReplacementScope&) = delete;
  ReplacementScope& operator=(const ReplacementScope&) = delete;
  static const Node* now() { return now_; }  // null: new nodes replace nothing. Read for every node, so inline

 private:
  static inline constinit thread_local const Node* now_ = nullptr;
  const Node* previous_;
};

}  // namespace rondo::autograd
