// Headers that most test files include, compiled once (cmake/precompiled.cmake).
#include <gtest/gtest.h>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include "library.h"
