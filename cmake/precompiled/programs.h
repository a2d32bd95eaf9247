// Headers that many programs include (examples/, tests/bench/), compiled once (cmake/precompiled.cmake).
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include "library.h"
#include "rondo/compile/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"
#if __has_include(<nlohmann/json.hpp>)  // benchmarks alone need it
#include <nlohmann/json.hpp>
#endif
