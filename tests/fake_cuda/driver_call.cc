#include "rondo/tests/fake_cuda/driver_call.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

namespace rondo::fake_cuda {
namespace {

// For whole programs: RONDO_FAKE_CUDA=seed:devices:megabytes, and behind it, each after a ':',
//   answers         misuse is answered with an error
//   driver=12080    the version that the driver says it has
//   faulty=NAME     launches of the kernel NAME kill their context
// CUDA_VISIBLE_DEVICES=2,0 shows such a program two of the devices, in this order.
std::vector<int> visible;  // the hardware of each device; empty: all, in their order

// CUDA Programming Guide, CUDA_VISIBLE_DEVICES: "Only the devices whose index is present in the sequence are visible";
// "if one of the indices is invalid, only the devices whose index precedes the invalid index are visible".
void hide_devices(rondo::fake_cuda::Options& options) {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    char* end = nullptr;
    const long device = std::strtol(part.c_str(), &end, 10);
    if (end == part.c_str() || *end != '\0' || device < 0 || device >= options.devices) break;
    visible.push_back(static_cast<int>(device));
  }
  options.devices = static_cast<int>(visible.size());
}

rondo::fake_cuda::Options options_of_environment() {
  rondo::fake_cuda::Options options;
  const char* const text = std::getenv("RONDO_FAKE_CUDA");
  if (text == nullptr) return options;
  std::istringstream parts(text);
  std::string part;
  for (int i = 0; std::getline(parts, part, ':'); ++i) {
    if (i == 0) options.seed = std::strtoull(part.c_str(), nullptr, 10);
    else if (i == 1) options.devices = std::atoi(part.c_str());
    else if (i == 2) options.bytes = static_cast<size_t>(std::strtoull(part.c_str(), nullptr, 10)) << 20;
    else if (part == "answers") options.aborts = false, options.early = 0;
    else if (part.starts_with("driver=")) options.driver_version = std::atoi(part.c_str() + 7);
    else if (part.starts_with("faulty=")) options.faulty = part.substr(7);
    else {
      std::fprintf(stderr, "fake CUDA: RONDO_FAKE_CUDA is seed:devices:megabytes[:answers]..., not %s\n", text);
      std::abort();
    }
  }
  hide_devices(options);
  return options;
}

}  // namespace

int hardware_of(int device) {
  return static_cast<size_t>(device) < visible.size() ? visible[static_cast<size_t>(device)] : device;
}

Call::Call(const char* name, Needs needs) : lock_(mutex_for(name)), outer_(std::exchange(fake().call, name)) {
  if (fake().memory == nullptr) fake().reset(options_of_environment());  // a program without a test around it
  if (fake().gone) {
    result_ = Result::kDeinitialized;  // CUresult, DEINITIALIZED
    return;
  }
  // cuLaunchHostFunc: "the host function must not make any CUDA API calls".
  if (in_callback()) result_ = fake().misuse(Result::kNotPermitted, "a callback of the host calls the driver");
  else if (needs != Needs::kNothing && !fake().initialized)
    result_ = fake().misuse(Result::kNotInitialized, "cuInit was not called");  // cuInit
  if (result_ != Result::kSuccess || needs != Needs::kContext) return;
  if (context_stack().empty() || context_stack().back() == nullptr)
    result_ = fake().misuse(Result::kInvalidContext, "no context is current");  // CUresult: INVALID_CONTEXT
  else if (context().retained == 0)
    result_ = fake().misuse(Result::kInvalidContext, "the current context was released");
  else if (context().dead != Result::kSuccess)
    result_ = context().dead;  // CUresult, ILLEGAL_ADDRESS: every later call returns the same error
}

MachineMutex& Call::mutex_for([[maybe_unused]] const char* name) {
#if defined(__SANITIZE_THREAD__)  // a callback has a thread of its own then (tsan.h), which would wait for ever
  if (in_callback()) {
    std::fprintf(stderr, "fake CUDA: %s: a callback of the host calls the driver\n", name);
    std::abort();
  }
#endif
  return fake().mutex;
}

Result require_stream(const Call& call, StreamPtr stream) {
  if (stream == nullptr)
    return fake().misuse(Result::kInvalidHandle, "the default stream, which waits for all others, is not expected");
  if (!fake().handles.contains(stream)) return fake().misuse(Result::kInvalidHandle, "no stream has this handle");
  if (!stream->alive) return fake().misuse(Result::kInvalidHandle, "the stream was destroyed");
  if (stream->context != &call.context())
    return fake().misuse(Result::kInvalidHandle, "the stream is of " + fake().name_of(*stream->context) +
                                                     ", and the current context of " + fake().name_of(call.context()));
  return Result::kSuccess;
}
Result require_event(EventPtr event) {
  if (event == nullptr || !fake().handles.contains(event))
    return fake().misuse(Result::kInvalidHandle, "no event has this handle");
  if (!event->alive) return fake().misuse(Result::kInvalidHandle, "the event was destroyed");
  return Result::kSuccess;
}
Result require_device(int device) {
  return device >= 0 && device < fake().options.devices ? Result::kSuccess
                                                        : fake().misuse(Result::kInvalidDevice, "no such device");
}

void host_waited(const rondo::fake_cuda::Clock& clock) {
  fake().host.merge(clock);
  rondo::fake_cuda::acquire_order(&fake().callbacks_done);
}

int most_shared() {
  switch (fake().options.capability) {
    case 80:
    case 87: return 163 << 10;
    case 86:
    case 89:
    case 120:
    case 121: return 99 << 10;
    default: return 227 << 10;
  }
}

}  // namespace rondo::fake_cuda
