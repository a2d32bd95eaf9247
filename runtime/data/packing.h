// Packs sequences of different lengths into rows of one length.
#pragma once

#include <cstdint>
#include <vector>

namespace rondo::data {

// Returns the lengths in each row; the sum of a row is at most `columns`. Best fit decreasing: takes the longest
// sequence first and puts it into the fullest row in which it fits (Johnson et al., "Worst-case performance bounds for
// simple one-dimensional packing algorithms", 1974: about 11/9 of the optimal number of rows at most).
// REQUIRES: 1 <= length <= columns.
std::vector<std::vector<int64_t>> pack_best_fit(std::vector<int64_t> lengths, int64_t columns);

}  // namespace rondo::data
