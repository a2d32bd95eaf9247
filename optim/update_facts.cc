#include "rondo/optim/update_facts.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo {

// Returns a hash of the numbers. The names are not hashed: they follow from the optimizer's class and groups, and
// hashes of these are among the numbers.
uint64_t UpdateFacts::hash() const {
  io::Checksum sum;
  sum.update(numbers.data(), numbers.size() * sizeof(double));
  return sum.digest();
}

std::string UpdateFacts::text() const {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i)
    absl::StrAppend(&text, names->at(i), " is ", formatted("%.17g", numbers[i]), "\n");
  return text;
}

}  // namespace rondo
