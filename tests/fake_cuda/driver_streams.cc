// The driver's functions for streams, events, modules and launches. Each refusal names the page of the manual (CUDA
// Driver API) that it follows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "rondo/tests/fake_cuda/driver_call.h"
#include "rondo/tests/fake_cuda/source.h"

using namespace rondo::fake_cuda;

namespace {

// CUDA C++ Programming Guide, "Binary Compatibility": code runs on devices of its major revision and no lower minor
// one. "PTX Compatibility": PTX is compiled for all that are not below it. "Architecture-Specific Features": with an
// "a" both are for that one alone; "Family-Specific Features": with an "f" for later ones of the major revision.
bool runs_here(const std::string& made_for) {
  int version = 0;
  char suffix = ' ';
  const int here = fake().options.capability;
  const bool cubin = std::sscanf(made_for.c_str(), "sm_%d%c", &version, &suffix) >= 1;
  if (!cubin && std::sscanf(made_for.c_str(), "compute_%d%c", &version, &suffix) < 1) return false;
  if (suffix == 'a') return version == here;
  return version <= here && (!(cubin || suffix == 'f') || version / 10 == here / 10);
}

// cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: what is left beside the function's static memory, unless
// cuFuncSetAttribute() was asked for more.
int most_dynamic_shared(const OpaqueFunction& function) {
  return function.dynamic_shared >= 0
             ? function.dynamic_shared
             : std::max(0, kSharedWithoutAsking - static_cast<int>(function.kernel->static_shared));
}

// A kernel that does not say what it touches, and the bytes that collectives use: a pointer into them is an access.
Result check_pointer(const OpaqueStream& stream, const std::string& name, uintptr_t address, bool writes) {
  if (fake().counted.communicators == 0) return Result::kSuccess;
  rondo::fake_cuda::Clock before = stream.clock;
  before.merge(fake().host);
  const std::string user = fake().races.watched(address, writes, before);
  return user.empty()
             ? Result::kSuccess
             : fake().misuse(Result::kInvalidValue, "race: " + name + " has a pointer into bytes that " + user +
                                                        " uses, and no event and no wait orders the two");
}
void note_pointers(const OpaqueStream& stream, const std::string& name, const OpaqueFunction& function,
                   const std::vector<std::vector<uint64_t>>& arguments) {
  if (fake().counted.communicators == 0) return;
  const rondo::fake_cuda::Work work = fake().next_work(stream, name);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (function.kernel->argument_bytes[i] == 8 && fake().memory->contains(arguments[i][0]))
      fake().races.note_pointer(arguments[i][0], function.writes(i), work);
}

}  // namespace

// ---- Streams and events

FAKE_EXPORT Result cuStreamCreateWithPriority(StreamPtr* stream, unsigned flags, int) {
  FAKE_CALL(kContext);
  if (flags != rondo::cuda::kStreamNonBlocking)
    return fake().misuse(Result::kInvalidValue, "a stream that waits for the default stream is not expected");
  auto made = std::make_unique<OpaqueStream>();
  made->context = &call.context();
  made->number = fake().streams.size();
  *stream = made.get();
  fake().handles.insert(made.get());
  fake().streams.push_back(std::move(made));
  ++fake().counted.streams;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuStreamDestroy_v2(StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  stream->alive = false;  // cuStreamDestroy: what is queued still runs
  --fake().counted.streams;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuStreamSynchronize(StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  ++fake().counted.host_waits;
  fake().wait_until([&] { return fake().idle(*stream); });
  fake().note_time(TimedWork::Kind::kHostWait, *stream, 0);
  host_waited(stream->clock);
  return stream->context->dead;
}
FAKE_EXPORT Result cuStreamWaitEvent(StreamPtr stream, EventPtr event, unsigned flags) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(require_event(event));
  if (flags != 0) return fake().misuse(Result::kInvalidValue, "the flags must be 0");
  // cuEventRecord: an event that was never recorded stands for no work. To wait for one is a mistake.
  if (event->last == nullptr) return fake().misuse(Result::kInvalidValue, "the event was never recorded");
  stream->clock.merge(event->last->clock);
  fake().note_time(TimedWork::Kind::kWait, *stream, event->last->number);
  if (!event->last->passed) {
    stream->items.push_back({"cuStreamWaitEvent", nullptr, nullptr, event->last, false});
    return fake().note_queued();
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuLaunchHostFunc(StreamPtr stream, HostFunction function, void* data) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  const auto enqueued = std::make_shared<char>();
  rondo::fake_cuda::release_order(enqueued.get());
  return fake().push(
      *stream, "a callback of the host", {},
      [=] { rondo::fake_cuda::run_as_driver(function, data, enqueued.get(), &fake().callbacks_done); },
      /*touches_memory=*/false);
}
FAKE_EXPORT Result cuEventCreate(EventPtr* event, unsigned flags) {
  FAKE_CALL(kContext);
  auto made = std::make_unique<OpaqueEvent>();
  made->context = &call.context();
  made->timing = (flags & rondo::cuda::kEventDisableTiming) == 0;
  *event = made.get();
  fake().handles.insert(made.get());
  fake().events.push_back(std::move(made));
  ++fake().counted.events;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuEventDestroy_v2(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  event->alive = false;
  --fake().counted.events;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuEventRecord(EventPtr event, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(require_event(event));
  if (event->context != stream->context)  // cuEventRecord
    return fake().misuse(Result::kInvalidHandle, "the event is of " + fake().name_of(*event->context) +
                                                     ", and the stream of " + fake().name_of(*stream->context));
  auto record = std::make_shared<OpaqueStream::Record>();
  stream->clock.merge(fake().host);
  record->clock = stream->clock;
  event->last = record;
  record->stream = stream;
  record->number = fake().next_record();
  fake().note_time(TimedWork::Kind::kRecord, *stream, record->number);
  stream->items.push_back({"cuEventRecord", nullptr, record, nullptr, false});
  return fake().note_queued();
}
FAKE_EXPORT Result cuEventQuery(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  if (event->last == nullptr) return Result::kSuccess;  // cuEventRecord: before the first record
  if (event->last->passed) {
    host_waited(event->last->clock);
    return event->context->dead;
  }
  fake().run_some();  // time passes
  return Result::kNotReady;
}
FAKE_EXPORT Result cuEventSynchronize(EventPtr event) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_event(event));
  if (event->last == nullptr) return Result::kSuccess;
  ++fake().counted.host_waits;
  const auto last = event->last;
  fake().wait_until([&] { return last->passed; });
  fake().note_time(TimedWork::Kind::kHostWait, *last->stream, last->number);
  host_waited(last->clock);
  return event->context->dead;
}
FAKE_EXPORT Result cuEventElapsedTime(float* milliseconds, EventPtr from, EventPtr to) {
  FAKE_CALL(kContext);
  // All: cuEventElapsedTime.
  for (const EventPtr event : {from, to}) {
    FAKE_CHECK(require_event(event));
    if (event->last == nullptr) return fake().misuse(Result::kInvalidHandle, "the event was never recorded");
    if (!event->timing) return fake().misuse(Result::kInvalidHandle, "the event was made without timing");
    if (!event->last->passed) return Result::kNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(to->last->time - from->last->time).count();
  return Result::kSuccess;
}

// ---- Modules and launches

FAKE_EXPORT Result cuModuleLoadData(ModulePtr* module, const void* image) {
  FAKE_CALL(kContext);
  if (fake().fails_now(rondo::fake_cuda::kCodeMemory))
    return Result::kOutOfMemory;  // cuModuleLoadData: code takes memory, too
  const std::string text(static_cast<const char*>(image));
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  auto made = std::make_unique<OpaqueModule>();
  made->context = &call.context();
  if (line == "fake CUDA image") {
    while (std::getline(lines, line)) {
      const auto found = fake().kernels.find(line);
      if (found == fake().kernels.end())
        return fake().misuse(Result::kInvalidImage, "no kernel is registered as " + line);
      made->functions[line] = {made.get(), line, std::make_shared<const Kernel>(found->second), -1, {}};
    }
  } else if (fake().loader) {
    for (auto& [name, kernel] : fake().loader(text))
      made->functions[name] = {made.get(), name, std::make_shared<const Kernel>(std::move(kernel)), -1, {}};
  } else {
    size_t begin = 0;
    if (line.starts_with(rondo::fake_cuda::kMadeFor)) {
      if (!runs_here(line.substr(rondo::fake_cuda::kMadeFor.size()))) return Result::kNoBinaryForGpu;
      begin = line.size() + 1;
    }
    const std::string source = fake().edit ? fake().edit(text.substr(begin)) : text.substr(begin);
    for (auto& [name, kernel] : fake().options.executes
                                    ? rondo::fake_cuda::kernels_of_source(source, fake().options.seed)
                                    : rondo::fake_cuda::names_in_source(source))
      made->functions[name] = {made.get(), name, std::make_shared<const Kernel>(std::move(kernel)), -1,
                               rondo::fake_cuda::constant_arguments(source, name)};
  }
  if (made->functions.empty()) return Result::kInvalidImage;  // CUresult, INVALID_IMAGE
  for (const auto& entry : made->functions) fake().handles.insert(&entry.second);
  fake().handles.insert(made.get());
  *module = made.get();
  fake().modules.push_back(std::move(made));
  ++fake().counted.modules;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuModuleUnload(ModulePtr module) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(module) || !module->alive)
    return fake().misuse(Result::kInvalidHandle, "no module has this handle, or it was unloaded");
  // cuda.h does not say whether the call waits for the device. A caller must be right if it does, so here it does: with
  // the kernels it waits for the callbacks among them, and must hold nothing that a callback takes.
  for (const auto& stream : fake().streams)
    if (stream->context == module->context) {
      fake().wait_until([&] { return fake().idle(*stream); });
      host_waited(stream->clock);
    }
  module->alive = false;
  --fake().counted.modules;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuModuleGetFunction(FunctionPtr* function, ModulePtr module, const char* name) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(module) || !module->alive)
    return fake().misuse(Result::kInvalidHandle, "no module has this handle, or it was unloaded");
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return Result::kNotFound;  // cuModuleGetFunction
  *function = &found->second;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuFuncGetAttribute(int* value, FunctionAttribute attribute, FunctionPtr function) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  switch (attribute) {
    case FunctionAttribute::kMaxThreadsPerBlock: *value = function->kernel->most_threads; break;
    case FunctionAttribute::kStaticShared: *value = static_cast<int>(function->kernel->static_shared); break;
    case FunctionAttribute::kLocalBytes: *value = 0; break;
    case FunctionAttribute::kRegisters: *value = 32; break;
    case FunctionAttribute::kMaxDynamicShared: *value = most_dynamic_shared(*function); break;
  }
  return Result::kSuccess;
}
FAKE_EXPORT Result cuFuncSetAttribute(FunctionPtr function, FunctionAttribute attribute, int value) {
  FAKE_CALL(kContext);
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  // Both: cuFuncSetAttribute.
  if (attribute != FunctionAttribute::kMaxDynamicShared)
    return fake().misuse(Result::kInvalidValue, "the attribute cannot be set");
  if (value < 0 || value + static_cast<int>(function->kernel->static_shared) > most_shared())
    return Result::kInvalidValue;
  function->dynamic_shared = value;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuLaunchKernel(FunctionPtr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                  unsigned bz, unsigned shared, StreamPtr stream, void** args, void** extra) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  if (!fake().handles.contains(function)) return fake().misuse(Result::kInvalidHandle, "no function has this handle");
  const Kernel& kernel = *function->kernel;
  const std::string name = "kernel " + function->name;
  if (!function->module->alive) return fake().misuse(Result::kInvalidHandle, name + ": its module was unloaded");
  if (function->module->context != stream->context)
    return fake().misuse(Result::kInvalidHandle, name + " was loaded on " + fake().name_of(*function->module->context) +
                                                     ", and the stream is of " + fake().name_of(*stream->context));
  if (extra != nullptr) return fake().misuse(Result::kInvalidValue, "extra arguments");
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
  const uint64_t threads = uint64_t{bx} * by * bz;
  if (gx == 0 || gy == 0 || gz == 0 || threads == 0 || gx > 0x7FFFFFFF || gy > 65535 || gz > 65535 || bz > 64 ||
      threads > static_cast<uint64_t>(kernel.most_threads))
    return fake().misuse(Result::kInvalidValue, name + ": oversized or empty launch: grid [" + number(gx) + ", " +
                                                    number(gy) + ", " + number(gz) + "], block [" + number(bx) + ", " +
                                                    number(by) + ", " + number(bz) + "]");
  // cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: "the launch will fail".
  if (shared > static_cast<unsigned>(most_dynamic_shared(*function)))
    return fake().misuse(Result::kInvalidValue, name + ": " + number(shared) +
                                                    " bytes of shared memory, and the function may have " +
                                                    number(most_dynamic_shared(*function)) + " beside its static " +
                                                    number(kernel.static_shared));
  // The arguments are copied by the call: cuLaunchKernel.
  struct Arguments {
    std::vector<std::vector<uint64_t>> words;
    std::vector<void*> pointers;
  };
  const auto copies = std::make_shared<Arguments>();
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    copies->words.emplace_back((kernel.argument_bytes[i] + 7) / 8);
    std::memcpy(copies->words.back().data(), args[i], kernel.argument_bytes[i]);
  }
  for (auto& words : copies->words) copies->pointers.push_back(words.data());
  const Launch launch{function->name.c_str(), {gx, gy, gz}, {bx, by, bz}, shared, copies->pointers.data()};
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    const uintptr_t address = copies->words[i].empty() ? 0 : copies->words[i][0];
    if (kernel.argument_bytes[i] != 8 || !fake().memory->contains(address)) continue;
    FAKE_CHECK(
        fake().require_device_range(*stream->context, address, 0, name + ": argument " + number(static_cast<int>(i))));
    Block& block = *fake().memory->find(address);
    if (block.uses.size() <= stream->number) block.uses.resize(stream->number + 1);
    block.uses[stream->number] = stream->clock[stream->number] + 1;  // the number that this launch gets
    block.last_user = function->name.c_str();
    if (!kernel.accesses) FAKE_CHECK(check_pointer(*stream, name, address, function->writes(i)));
  }
  std::vector<Access> accesses;
  if (kernel.accesses) accesses = kernel.accesses(launch);
  for (const Access& access : accesses)
    FAKE_CHECK(fake().require_device_range(*stream->context, reinterpret_cast<uintptr_t>(access.address), access.bytes,
                                           name + ": what it touches"));
  ++fake().counted.launches;
  if (!kernel.accesses) note_pointers(*stream, name, *function, copies->words);
  return fake().push(*stream, name, accesses,
                     fake().noted({.kind = Enqueued::Kind::kKernel,
                                   .name = function->name,
                                   .threads = static_cast<int64_t>(threads) * gx * gy * gz},
                                  [copies, launch, kernel = function->kernel] { kernel->run(launch); }));
}
