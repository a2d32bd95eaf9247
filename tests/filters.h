// The patterns of --gtest_filter name tests that exist. A pattern that matches none is a typing error or the name of a
// test that was renamed: it would silently run less than was meant.
#pragma once

namespace rondo::test {

// Prints each pattern of Google Test's filter, positive or negative, that matches no test of this program.
// Returns whether all match. Call it after testing::InitGoogleTest().
bool every_filter_matches();

}  // namespace rondo::test
