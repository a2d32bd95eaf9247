// Code that the readers of read_examples.h share: it converts lines to examples on all threads.
#pragma once

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/data/read_examples.h"
#include "rondo/runtime/data/text_encoder.h"
#include "rondo/runtime/io/json.h"

namespace rondo::data {

// Reads the JSON object of a line. `field` reads the value of a key that it knows, and returns false for other keys,
// which are skipped. All errors, also those of `field`, are DataErrors that name the line.
void read_json_line(const std::string& path, int64_t line, std::string_view text,
                    absl::FunctionRef<bool(io::JsonReader& json, const std::string& key)> field);
// Reads a value that must be a string.
std::string read_string_field(io::JsonReader& json, const std::string& key);
// Returns the message 'field "text" is missing'.
std::string missing_field(const std::string& name);

// Throws DataError if an id is outside the model's vocabulary, unless options.vocab_size is 0.
void check_vocabulary(const Ids& ids, const ReadOptions& options, const TextEncoder& encoder, const std::string& path,
                      int64_t line);

// Adds an example for each line that is not blank, in order. Calls make() on all threads. Throws FileError if `out` is
// then still empty.
void add_lines(const std::string& path, const ReadOptions& options, const TextEncoder& encoder,
               absl::FunctionRef<Example(std::string_view text, int64_t line)> make, ExampleSet& out);

// Throws FileError if `set` is empty.
void require_examples(const ExampleSet& set, const std::string& path);
// Returns the ids that begin each text or prompt: ReadOptions::begin_token, or the tokenizer's own.
Ids opening_of(const ReadOptions& options, const TextEncoder& encoder);
bool is_json_lines(std::string_view path);
void check_options(const ReadOptions& options, bool may_split);

}  // namespace rondo::data
