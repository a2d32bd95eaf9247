// A recipe: options in a file, YAML or JSON (which YAML contains).
//
//   n_layer: 6
//   learning_rate: 3e-4
//   compile:                 # a heading: it only orders the file
//     mode: max-autotune
//     buckets: [64, 128, 256]
//
// is --n_layer=6 --learning_rate=3e-4 --mode=max-autotune --buckets=64,128,256.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rondo::examples {

struct RecipeEntry {
  std::string key, value;
  int line = 0;
};

// Returns the entries of a file, in the file's order. Throws FileError (with the line, if a line is at fault) unless
// the file is a mapping of keys to values, lists of values, or headings with such a mapping below them. A key that
// comes twice is an error, and so are a key without a value, an empty file, a second document, an alias, and more than
// 1 MB.
std::vector<RecipeEntry> read_recipe(const std::string& path);

// Writes options with their values. Throws FileError.
void write_recipe(const std::string& path, const std::map<std::string, std::string>& values);

}  // namespace rondo::examples
