#include "rondo/tests/fake_nccl/faults.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace rondo::fake_nccl {
namespace {

[[noreturn]] void refuse(const std::string& part) {
  std::fprintf(stderr, "fake NCCL: RONDO_FAKE_NCCL: %s is nothing that it knows (tests/fake_nccl/faults.h)\n",
               part.c_str());
  std::abort();
}

int64_t number_of(const std::string& text, const std::string& part) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) refuse(part);
  return number;
}

Fault fault_of(const std::string& part) {
  const size_t at = part.find('@');
  const std::string what = part.substr(0, at);
  std::vector<std::string> values;
  std::istringstream rest(part.substr(at + 1));
  for (std::string value; std::getline(rest, value, ',');) values.push_back(value);
  Fault fault;
  size_t wanted = 2;
  if (what == "stall") fault.what = Fault::What::kStall;
  else if (what == "die") fault.what = Fault::What::kDie;
  else if (what == "late") fault.what = Fault::What::kLate, wanted = 3;
  else if (what == "error") fault.what = Fault::What::kError, wanted = 3;
  else refuse(part);
  if (values.size() != wanted) refuse(part);
  fault.rank = static_cast<int>(number_of(values[0], part));
  fault.number = values[1] == "init" ? kInit : number_of(values[1], part);
  if (wanted == 3) fault.value = number_of(values[2], part);
  if (fault.what == Fault::What::kError && (fault.value == 0 || fault.value >= 7)) refuse(part);
  return fault;
}

}  // namespace

const Fault* Behaviour::find(int rank, int64_t number) const {
  for (const Fault& fault : faults)
    if (fault.rank == rank && fault.number == number) return &fault;
  return nullptr;
}

Behaviour Behaviour::parse(const std::string& text) {
  Behaviour behaviour;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ':');) {
    if (part == "mismatch=hang") behaviour.mismatch = Mismatch::kHang;
    else if (part == "mismatch=garbage") behaviour.mismatch = Mismatch::kGarbage;
    else if (part == "peers=error") behaviour.peers_show = true;
    else if (part.starts_with("version=")) behaviour.version = static_cast<int>(number_of(part.substr(8), part));
    else if (part.find('@') != std::string::npos) behaviour.faults.push_back(fault_of(part));
    else refuse(part);
  }
  return behaviour;
}

}  // namespace rondo::fake_nccl
