// Headers that most test files include, compiled once (cmake/precompiled.cmake). Those of the project are the ones that
// nearly all tests depend on: after an edit of one all tests are compiled again in any case.
#include <gtest/gtest.h>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include "library.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"
