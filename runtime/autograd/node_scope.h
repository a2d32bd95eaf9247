// What this thread does with a node: it runs the gradient rule of the node's op (RuleScope), asks for only some of the
// node's gradients (Asked), or makes nodes that replace it (InPlaceOf).
#pragma once

#include <vector>

namespace rondo {
class Node;
}  // namespace rondo

namespace rondo::autograd {

// The node whose op's gradient rule runs on this thread; null: none does.
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

// While in scope: what grad() asks of the running node.
class Asked {
 public:
  // `edges`: by edge, whether its gradient, or one that is computed from it, is asked for. `outputs`: the outputs whose
  // own gradient is asked for.
  Asked(std::vector<bool> edges, std::vector<int> outputs);
  // backward() asks for everything.
  Asked();
  ~Asked();
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  static const Asked* now();  // null: everything is asked for

  const std::vector<bool> edges;
  const std::vector<int> outputs;

 private:
  const Asked* previous_;
};

// While in scope: nodes that this thread makes have the place of `node` in the order of a backward; among themselves
// they keep the order of creation. For nodes that are going to replace `node`: Note [Replaced nodes] in node.h.
class InPlaceOf {
 public:
  explicit InPlaceOf(const Node& node);
  ~InPlaceOf();
  InPlaceOf(const InPlaceOf&) = delete;
  InPlaceOf& operator=(const InPlaceOf&) = delete;
  static const Node* now() { return now_; }  // null: new nodes replace nothing. Read for every node, so inline

 private:
  static inline constinit thread_local const Node* now_ = nullptr;
  const Node* previous_;
};

}  // namespace rondo::autograd
