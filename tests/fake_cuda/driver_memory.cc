// The driver's functions for memory, copies and fills. Each refusal names the page of the manual (CUDA Driver API) that
// it follows.
#include <sys/mman.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "rondo/tests/fake_cuda/driver_call.h"

using namespace rondo::fake_cuda;

namespace {

uint64_t checksum(const void* data, size_t bytes) {
  uint64_t sum = 1469598103934665603u;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    sum = (sum ^ word) * 1099511628211u, sum ^= sum >> 29;
  }
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 1099511628211u;
  return sum;
}

const void* pointer(DevicePtr address) { return reinterpret_cast<const void*>(address); }
void* writable(DevicePtr address) { return reinterpret_cast<void*>(address); }

}  // namespace

// ---- Memory

FAKE_EXPORT Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  FAKE_CALL(kContext);
  *total = fake().memory->bytes();
  *free = *total - fake().memory->used(call.context().device);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemAlloc_v2(DevicePtr* address, size_t bytes) {
  FAKE_CALL(kContext);
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");  // cuMemAlloc
  Block* block = fake().fails_now(rondo::fake_cuda::kDeviceMemory)
                     ? nullptr
                     : fake().memory->allocate(call.context().device, bytes, false);
  if (block == nullptr) return Result::kOutOfMemory;
  fake().races.forget(block->address, bytes);
  *address = block->address;
  return Result::kSuccess;
}
// cuMemFree: the call may wait for the device, so no program may rely on it: it frees at once.
FAKE_EXPORT Result cuMemFree_v2(DevicePtr address) {
  FAKE_CALL(kContext);
  Block* block = fake().memory->find(address);
  if (block == nullptr || block->address != address)
    return fake().misuse(Result::kInvalidValue, "no block begins here");
  if (!block->live || block->freed_by_call) return fake().misuse(Result::kInvalidValue, "the block is freed twice");
  if (block->device != call.context().device)
    return fake().misuse(Result::kInvalidValue, "the block is of device " + number(block->device) +
                                                    ", and the current context of " + fake().name_of(call.context()));
  std::string user = fake().races.unordered(block->address, block->bytes, fake().host);
  for (size_t stream = 0; stream < block->uses.size(); ++stream)
    if (fake().host[stream] < block->uses[stream]) user = block->last_user;
  if (!user.empty())
    return fake().misuse(Result::kInvalidValue, "freed while " + user + " may still use it: nothing waited for that");
  if (!fake().memory->release(*block)) return fake().misuse(Result::kInvalidValue, "something wrote behind the block");
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemAllocAsync(DevicePtr* address, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");
  // What the stream frees before it comes here is there again.
  if (!fake().fails_now(rondo::fake_cuda::kDeviceMemory)) {
    Block* block = fake().memory->allocate(stream->context->device, bytes, true);
    if (block == nullptr) {
      fake().wait_until([&] { return fake().idle(*stream); });
      block = fake().memory->allocate(stream->context->device, bytes, true);
    }
    if (block != nullptr) {
      fake().races.forget(block->address, bytes);
      *address = block->address;
      return fake().push(*stream, "cuMemAllocAsync", {{pointer(block->address), bytes, true}},
                         [block] { fake().memory->make_live(*block); });
    }
  }
  return Result::kOutOfMemory;
}
// cuMemFreeAsync: the memory must not be used by work that is submitted after this call.
FAKE_EXPORT Result cuMemFreeAsync(DevicePtr address, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  Block* block = fake().memory->find(address);
  if (block == nullptr || block->address != address)
    return fake().misuse(Result::kInvalidValue, "no block begins here");
  if (!block->live || block->freed_by_call) return fake().misuse(Result::kInvalidValue, "the block is freed twice");
  rondo::fake_cuda::Clock before = stream->clock;
  before.merge(fake().host);
  for (size_t other = 0; other < block->uses.size(); ++other)
    if (before[other] < block->uses[other])
      return fake().misuse(Result::kInvalidValue, std::string("freed while ") + block->last_user +
                                                      " may still use it: no event orders the two");
  block->freed_by_call = true;
  return fake().push(*stream, "cuMemFreeAsync", {{pointer(address), block->bytes, true}}, [block] {
    if (!fake().memory->release(*block))
      static_cast<void>(fake().misuse(Result::kInvalidValue, "something wrote behind a block that is freed"));
  });
}
FAKE_EXPORT Result cuMemPoolTrimTo(PoolPtr, size_t) {
  FAKE_CALL(kInit);
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemHostAlloc(void** data, size_t bytes, unsigned flags) {
  FAKE_CALL(kContext);
  if (bytes == 0) return fake().misuse(Result::kInvalidValue, "0 bytes");
  if ((flags & rondo::cuda::kHostAllocPortable) == 0)  // cuMemHostAlloc, PORTABLE
    return fake().misuse(Result::kInvalidValue, "page-locked for one context only");
  if (fake().fails_now(rondo::fake_cuda::kPinnedMemory)) return Result::kOutOfMemory;
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return Result::kOutOfMemory;
  std::memset(block, 0xFF, bytes);
  fake().pinned[reinterpret_cast<uintptr_t>(block)] = bytes;
  *data = block;
  return Result::kSuccess;
}
FAKE_EXPORT Result cuMemFreeHost(void* data) {
  FAKE_CALL(kContext);
  const auto found = fake().pinned.find(reinterpret_cast<uintptr_t>(data));
  if (found == fake().pinned.end()) return fake().misuse(Result::kInvalidValue, "no such page-locked memory");
  const std::string user = fake().races.unordered(found->first, found->second, fake().host);
  if (!user.empty()) return fake().misuse(Result::kInvalidValue, "freed while " + user + " may still use it");
  fake().races.forget(found->first, found->second);
  munmap(data, found->second);
  fake().pinned.erase(found);
  return Result::kSuccess;
}

// ---- Copies and fills. Ranges that overlap: cuMemcpyDtoD.

FAKE_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  // "API synchronization behavior": such a copy may wait or not, so it is no asynchronous copy.
  if (!fake().is_pinned(reinterpret_cast<uintptr_t>(from), bytes))
    return fake().misuse(Result::kInvalidValue, "an asynchronous copy from pageable memory");
  ++fake().counted.copies;
  // Unless earlier work of a device will write the bytes, they must stay as they are.
  const bool written_later = !fake().races.unordered(reinterpret_cast<uintptr_t>(from), bytes, fake().host).empty();
  const uint64_t sum = written_later ? 0 : checksum(from, bytes);
  auto work = fake().noted({Enqueued::Kind::kCopy, "host to device", static_cast<int64_t>(bytes)}, [=] {
    if (!written_later && checksum(from, bytes) != sum) {
      fake().call = "cuMemcpyHtoDAsync";
      static_cast<void>(
          fake().misuse(Result::kInvalidValue, "page-locked memory was changed before the copy has read it"));
    }
    std::memcpy(writable(to), from, bytes);
  });
  return fake().push(*stream, "cuMemcpyHtoDAsync", {{from, bytes, false}, {pointer(to), bytes, true}}, std::move(work));
}
FAKE_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, from, bytes, "the source"));
  if (!fake().is_pinned(reinterpret_cast<uintptr_t>(to), bytes))
    return fake().misuse(Result::kInvalidValue, "an asynchronous copy to pageable memory");
  ++fake().counted.copies;
  fake().noted({Enqueued::Kind::kCopy, "device to host", static_cast<int64_t>(bytes)}, {});
  return fake().push(*stream, "cuMemcpyDtoHAsync", {{pointer(from), bytes, false}, {to, bytes, true}}, [=] {
    if (fake().options.executes) std::memcpy(to, pointer(from), bytes);
    else std::memset(to, 0, bytes);
  });
}
FAKE_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  FAKE_CHECK(fake().require_device_range(*stream->context, from, bytes, "the source"));
  if (to < from + bytes && from < to + bytes) return fake().misuse(Result::kInvalidValue, "the two ranges overlap");
  ++fake().counted.copies;
  return fake().push(*stream, "cuMemcpyDtoDAsync", {{pointer(from), bytes, false}, {pointer(to), bytes, true}},
                     fake().noted({Enqueued::Kind::kCopy, "device to device", static_cast<int64_t>(bytes)},
                                  [=] { std::memcpy(writable(to), pointer(from), bytes); }));
}
FAKE_EXPORT Result cuMemcpyPeerAsync(DevicePtr to, Context to_context, DevicePtr from, Context from_context,
                                     size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  for (const Context context : {to_context, from_context})
    if (context == nullptr || context->retained == 0) return fake().misuse(Result::kInvalidContext, "no such context");
  FAKE_CHECK(fake().require_device_range(*to_context, to, bytes, "the target"));
  FAKE_CHECK(fake().require_device_range(*from_context, from, bytes, "the source"));
  ++fake().counted.copies;
  auto work = fake().noted({Enqueued::Kind::kCopy, "between devices", static_cast<int64_t>(bytes)}, [=] {
    fake().memory->open(1u << to_context->device | 1u << from_context->device);
    std::memcpy(writable(to), pointer(from), bytes);
  });
  return fake().push(*stream, "cuMemcpyPeerAsync", {{pointer(from), bytes, false}, {pointer(to), bytes, true}},
                     std::move(work));
}
FAKE_EXPORT Result cuMemsetD8Async(DevicePtr to, unsigned char byte, size_t bytes, StreamPtr stream) {
  FAKE_CALL(kContext);
  FAKE_CHECK(require_stream(call, stream));
  FAKE_CHECK(fake().require_device_range(*stream->context, to, bytes, "the target"));
  return fake().push(*stream, "cuMemsetD8Async", {{pointer(to), bytes, true}},
                     fake().noted({Enqueued::Kind::kFill, "fill", static_cast<int64_t>(bytes)},
                                  [=] { std::memset(writable(to), byte, bytes); }));
}
