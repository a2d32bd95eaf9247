#include "rondo/runtime/cuda/attention_call.h"

#include "rondo/runtime/random/random_state.h"

namespace rondo::cuda {

DropoutArgument dropout_of(const AttentionCall& call, const AttentionOperands& operands) {
  const DropoutRule rule(call.dropout);
  return {static_cast<const unsigned long long*>(operands.state), call.increment, rule.threshold, (call.keys + 3) / 4,
          rule.factor};
}

}  // namespace rondo::cuda
