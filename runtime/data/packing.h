// Packing: sequences of different lengths into rows of one length.
#pragma once

#include <cstdint>
#include <vector>

namespace rondo::data {

// The lengths that stand in each row, none of which has more than `columns` in sum. Best fit decreasing: the longest
// sequence first, each into the row that it fills most (Johnson et al., "Worst-case performance bounds for simple
// one-dimensional packing algorithms", 1974: at most 11/9 of the fewest rows). REQUIRES: 1 <= length <= columns.
std::vector<std::vector<int64_t>> pack_best_fit(std::vector<int64_t> lengths, int64_t columns);

}  // namespace rondo::data
