// What this thread does with a node: it runs its op's rule, asks for some of its gradients only, or replaces it.
#pragma once

#include <vector>

namespace rondo {
class Node;
}  // namespace rondo

namespace rondo::autograd {

// The node whose op's rule runs on this thread; null: none does.
const Node* node_of_rule();
// While in scope: the rule of `node` runs.
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
  // `edges`: by edge, whether its gradient is asked for, or one below it. `outputs`: those whose own gradient is.
  Asked(std::vector<bool> edges, std::vector<int> outputs);
  // backward() asks for everything.
  Asked();
  ~Asked();
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  static const Asked* now();  // null: for everything

  const std::vector<bool> edges;
  const std::vector<int> outputs;

 private:
  const Asked* previous_;
};

// While in scope: nodes that this thread makes take the place of `node` in the order of a backward, among themselves in
// the order of creation. They are going to replace it: Note [Replaced nodes] in node.h.
class InPlaceOf {
 public:
  explicit InPlaceOf(const Node& node);
  ~InPlaceOf();
  InPlaceOf(const InPlaceOf&) = delete;
  InPlaceOf& operator=(const InPlaceOf&) = delete;
  static const Node* now();  // null: what is made replaces nothing

 private:
  const Node* previous_;
};

}  // namespace rondo::autograd
