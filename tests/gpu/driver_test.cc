// What the fake driver answers, asked of whichever driver is there. Each test names the page of the CUDA Driver API
// manual, or the chapter of the CUDA C++ Programming Guide, that the fake follows. Kernels: kernels_test.cc.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "rondo/dist/groups/nccl_library.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/tests/gpu/conformance.h"

namespace rondo::test {
namespace {

using cuda::DeviceAttribute;

// "library: NVRTC 12.8, /usr/local/cuda/lib64/libnvrtc.so.12"; `function`: one of its functions, which tells the file.
void print_library(const char* name, const std::string& version, const void* function) {
  Dl_info file{};
  std::error_code ignored;
  const bool known = dladdr(function, &file) != 0 && file.dli_fname != nullptr;
  std::printf("library: %s %s, %s\n", name, version.c_str(),
              known ? std::filesystem::canonical(file.dli_fname, ignored).c_str() : "in the program");
}
void print_missing(const char* name, const std::string& why_not) {
  std::printf("library: %s: missing: %s\n", name, why_not.c_str());
}

// For tests/gpu/run.sh: which device it is, or why there is none; which libraries are used, and where they are.
TEST(Device, IsHere) {
  std::optional<FakeCuda> fake;
  if (!on_real_cuda()) fake.emplace();
  std::string why_not;
  const int devices = cuda::open_devices(&why_not);
  if (devices == 0) {
    std::printf("%s\n", why_not.c_str());
    GTEST_SKIP();
  }
  const cuda::DeviceState& device = cuda::device_state(0);
  int version = 0;
  ASSERT_OK(device.driver().driver_version(&version));
  std::printf("device: %s, sm_%d, %zu MiB%s\n", device.name().c_str(), device.capability(), device.total_memory() >> 20,
              devices == 1 ? "" : (", the first of " + std::to_string(devices) + " devices").c_str());
  const auto address = [](auto* function) { return reinterpret_cast<const void*>(function); };
  print_library("driver", std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10),
                address(device.driver().init));
  if (const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not))
    print_library("NVRTC", cuda::version_of(*nvrtc), address(nvrtc->version));
  else print_missing("NVRTC", why_not);
  if (const cuda::CublasLt* lt = cuda::find_cublas_lt(&why_not))
    print_library("cuBLASLt", std::to_string(lt->version()), address(lt->version));
  else print_missing("cuBLASLt", why_not);
  if (const cuda::Cudnn* dnn = cuda::find_cudnn(&why_not))
    print_library("cuDNN", cuda::version_of(*dnn), address(dnn->version));
  else print_missing("cuDNN", why_not);
  if (const dist::NcclLibrary* nccl = dist::find_nccl(&why_not))
    print_library("NCCL", nccl->version_text, address(nccl->version));
  else print_missing("NCCL", why_not);
  cuda::close();
}

// ---- Start, devices, contexts

TEST(ConformanceProcess, NothingWorksBeforeInit) {  // cuInit; cuDriverGetVersion
  in_a_fresh_process([] {
    std::optional<FakeCuda> cuda;  // on a real device its constructor would call cuInit
    if (!on_real_cuda()) cuda.emplace(kAnswering);
    const Driver& cu = find_driver();
    int n = 0;
    EXPECT_EQ(cu.device_count(&n), Result::kNotInitialized);
    EXPECT_EQ(cu.device_get(&n, 0), Result::kNotInitialized);
    EXPECT_OK(cu.driver_version(&n));  // needs no cuInit
    EXPECT_GE(n, 12000);
    EXPECT_EQ(cu.init(1), Result::kInvalidValue);  // the flags are 0
    EXPECT_OK(cu.init(0));
    EXPECT_OK(cu.init(0));
    EXPECT_OK(cu.device_count(&n));
    EXPECT_GE(n, 1);
    DevicePtr address = 0;
    EXPECT_EQ(cu.memory_allocate(&address, 256), Result::kInvalidContext);
  });
}

TEST_F(Conformance, NamesOfErrors) {  // cuGetErrorName, cuGetErrorString
  const char* text = nullptr;
  EXPECT_OK(cu.error_name(Result::kOutOfMemory, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_OK(cu.error_name(Result::kIllegalAddress, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_OK(cu.error_string(Result::kInvalidValue, &text));
  EXPECT_NE(text, nullptr);
  EXPECT_EQ(cu.error_name(static_cast<Result>(123456), &text), Result::kInvalidValue);
  EXPECT_EQ(text, nullptr);
}

TEST_F(Conformance, DevicesThatAreNotThere) {  // cuDeviceGet, cuDeviceGetAttribute, cuDeviceTotalMem
  int n = 0, value = 0;
  size_t bytes = 0;
  ASSERT_OK(cu.device_count(&n));
  EXPECT_EQ(cu.device_get(&value, n), Result::kInvalidDevice);
  EXPECT_EQ(cu.device_get(&value, -1), Result::kInvalidDevice);
  EXPECT_EQ(cu.device_attribute(&value, DeviceAttribute::kMultiprocessors, n), Result::kInvalidDevice);
  EXPECT_EQ(cu.device_total_memory(&bytes, n), Result::kInvalidDevice);
  cuda::Context context = nullptr;
  EXPECT_EQ(cu.primary_retain(&context, n), Result::kInvalidDevice);
}

TEST_F(Conformance, AttributesOfDevices) {  // cuDeviceGetAttribute; Guide, "Technical Specifications per Capability"
  EXPECT_EQ(gpu.attribute(DeviceAttribute::kMaxThreadsPerBlock), 1024);
  EXPECT_EQ(gpu.attribute(DeviceAttribute::kMaxGridX), 0x7FFFFFFF);
  EXPECT_EQ(gpu.attribute(DeviceAttribute::kMaxGridY), 65535);
  EXPECT_EQ(gpu.attribute(DeviceAttribute::kMaxGridZ), 65535);
  EXPECT_EQ(gpu.attribute(DeviceAttribute::kMemoryPools), 1);
  EXPECT_GE(gpu.attribute(DeviceAttribute::kMultiprocessors), 1);
  EXPECT_GE(gpu.capability(), 80) << "Rondo has code for sm_80 and later";
  EXPECT_GE(gpu.attribute(DeviceAttribute::kMaxSharedPerBlock), 48 << 10);
  int value = 0;
  EXPECT_EQ(cu.device_attribute(&value, static_cast<DeviceAttribute>(99999), 0), Result::kInvalidValue);
  char name[256];
  ASSERT_OK(cu.device_name(name, sizeof name, 0));
  EXPECT_GT(std::strlen(name), 0u);
}

TEST_F(Conformance, PlacesOfDevices) {  // cuDeviceGetUuid, cuDeviceGetPCIBusId: 13 characters with the closing zero
  int n = 0;
  ASSERT_OK(cu.device_count(&n));
  std::set<std::string> units;
  for (int i = 0; i < n; ++i) {
    cuda::Uuid uuid;
    char bus[13] = "";
    ASSERT_OK(cu.device_uuid(&uuid, i));
    EXPECT_TRUE(units.emplace(uuid.bytes, sizeof uuid.bytes).second) << "two devices have one UUID";
    ASSERT_OK(cu.device_bus(bus, sizeof bus, i));
    unsigned domain, number, device, function;
    EXPECT_EQ(std::sscanf(bus, "%4x:%2x:%2x.%1x", &domain, &number, &device, &function), 4) << bus;
  }
  cuda::Uuid uuid;
  char bus[13];
  EXPECT_EQ(cu.device_uuid(&uuid, n), Result::kInvalidDevice);
  EXPECT_EQ(cu.device_bus(bus, sizeof bus, n), Result::kInvalidDevice);
  EXPECT_EQ(cu.device_bus(bus, 5, 0), Result::kInvalidValue);
}

TEST_F(Conformance, EachThreadHasItsOwnStackOfContexts) {  // cuCtxGetCurrent, cuCtxPushCurrent, cuCtxPopCurrent
  std::thread([&] {
    cuda::Context context = gpu.context;
    EXPECT_OK(cu.context_current(&context));
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(cu.context_pop(&context), Result::kInvalidContext);
    DevicePtr address = 0;
    EXPECT_EQ(cu.memory_allocate(&address, 256), Result::kInvalidContext);  // CUresult, INVALID_CONTEXT
    EXPECT_EQ(cu.context_synchronize(), Result::kInvalidContext);
    EXPECT_OK(cu.context_push(gpu.context));
    EXPECT_OK(cu.context_push(gpu.context));
    EXPECT_OK(cu.memory_allocate(&address, 256));
    EXPECT_OK(cu.memory_free(address));
    EXPECT_OK(cu.context_pop(&context));
    EXPECT_EQ(context, gpu.context);
    EXPECT_OK(cu.context_current(&context));
    EXPECT_EQ(context, gpu.context);
    EXPECT_OK(cu.context_pop(&context));
  }).join();
}

TEST(ConformanceProcess, AContextIsReleasedAsOftenAsRetained) {  // cuDevicePrimaryCtxRelease
  in_a_fresh_process([] {
    std::optional<FakeCuda> cuda;  // which retains the contexts of real devices
    if (!on_real_cuda()) cuda.emplace(kAnswering);
    const Driver& cu = find_driver();
    ASSERT_OK(cu.init(0));
    cuda::Context first = nullptr, second = nullptr;
    EXPECT_OK(cu.primary_retain(&first, 0));
    EXPECT_OK(cu.primary_retain(&second, 0));
    EXPECT_EQ(first, second);
    EXPECT_OK(cu.primary_release(0));
    EXPECT_OK(cu.primary_release(0));
    EXPECT_EQ(cu.primary_release(0), Result::kInvalidContext);
  });
}

TEST(ConformanceDevices, PeersAreEnabledOnce) {  // cuCtxEnablePeerAccess
  fake_cuda::Options options = kAnswering;
  options.devices = 2;
  const FakeCuda cuda(options);
  const Gpu there(1), here(0);
  const Driver& cu = here.cu;
  int can = 0;
  ASSERT_OK(cu.device_can_access_peer(&can, 0, 1));
  EXPECT_EQ(cu.context_enable_peer(there.context, 1), Result::kInvalidValue);
  EXPECT_EQ(cu.context_enable_peer(here.context, 0), Result::kInvalidContext);
  if (can == 0) {
    EXPECT_EQ(cu.context_enable_peer(there.context, 0), Result::kPeerAccessUnsupported);
    return;
  }
  EXPECT_OK(cu.context_enable_peer(there.context, 0));
  EXPECT_EQ(cu.context_enable_peer(there.context, 0), Result::kPeerAccessAlreadyEnabled);
}

TEST(ConformanceDevices, WithoutAccessToEachOther) {  // cuCtxEnablePeerAccess, PEER_ACCESS_UNSUPPORTED
  fake_cuda::Options options = kAnswering;
  options.devices = 2;
  if (!on_real_cuda()) options.peers = false;
  const FakeCuda cuda(options);
  const Gpu there(1), here(0);
  int can = 0;
  ASSERT_OK(here.cu.device_can_access_peer(&can, 0, 1));
  if (can != 0) GTEST_SKIP() << "these devices can access each other";
  EXPECT_EQ(here.cu.context_enable_peer(there.context, 0), Result::kPeerAccessUnsupported);
}

TEST(ConformanceDevices, EventsAndStreamsDoNotMix) {  // cuEventRecord: INVALID_HANDLE
  fake_cuda::Options options = kAnswering;
  options.devices = 2;
  const FakeCuda cuda(options);
  Gpu there(1), here(0);
  const EventPtr event = here.event();
  cuda::Context popped = nullptr;
  ASSERT_OK(here.cu.context_push(there.context));
  EXPECT_EQ(here.cu.event_record(event, there.stream), Result::kInvalidHandle);
  EXPECT_OK(here.cu.context_pop(&popped));
  // To wait for an event of another device is allowed (cuStreamWaitEvent), and how devices are joined.
  ASSERT_OK(here.cu.event_record(event, here.stream));
  ASSERT_OK(here.cu.context_push(there.context));
  EXPECT_OK(here.cu.stream_wait_event(there.stream, event, 0));
  EXPECT_OK(here.cu.context_pop(&popped));
}

// ---- Memory

TEST_F(Conformance, SizesOfAllocations) {  // cuMemAlloc
  DevicePtr address = 0;
  EXPECT_EQ(cu.memory_allocate(&address, 0), Result::kInvalidValue);
  size_t free = 0, total = 0, all = 0;
  ASSERT_OK(cu.memory_info(&free, &total));
  ASSERT_OK(cu.device_total_memory(&all, 0));
  EXPECT_LE(free, total);
  EXPECT_EQ(cu.memory_allocate(&address, total + (size_t{1} << 30)), Result::kOutOfMemory);
  // An allocation that fails leaves the context as it was.
  EXPECT_OK(cu.memory_allocate(&address, size_t{64} << 20));
  size_t less = 0;
  ASSERT_OK(cu.memory_info(&less, &total));
  EXPECT_LT(less, free);
  EXPECT_OK(cu.memory_free(address));
}

TEST_F(Conformance, BlocksAreAlignedTo256Bytes) {  // Guide, "Device Memory Accesses"
  for (const size_t bytes : {1, 3, 100, 4097}) EXPECT_EQ(gpu.block(bytes) % 256, 0u) << bytes;
}

TEST_F(Conformance, WhatIsNoBlockIsNotFreed) {  // cuMemFree
  DevicePtr address = 0;
  ASSERT_OK(cu.memory_allocate(&address, 4096));
  EXPECT_EQ(cu.memory_free(address + 256), Result::kInvalidValue);
  EXPECT_OK(cu.memory_free(address));
  EXPECT_EQ(cu.memory_free(address), Result::kInvalidValue);
}

TEST_F(Conformance, AllocationsInStreamOrder) {  // cuMemAllocAsync, cuMemFreeAsync
  DevicePtr address = 0;
  for (unsigned char byte = 1; byte < 20; ++byte) {
    ASSERT_OK(cu.memory_allocate_async(&address, 1 << 20, gpu.stream));
    EXPECT_EQ(address % 256, 0u);
    ASSERT_OK(cu.fill_bytes(address, byte, 1 << 20, gpu.stream));
    EXPECT_EQ(gpu.download<unsigned char>(address + (1 << 20) - 1, 1).front(), byte);
    ASSERT_OK(cu.memory_free_async(address, gpu.stream));
  }
  EXPECT_EQ(cu.memory_allocate_async(&address, size_t{1} << 45, gpu.stream), Result::kOutOfMemory);
  cuda::PoolPtr pool = nullptr;
  ASSERT_OK(cu.default_pool(&pool, 0));
  EXPECT_OK(cu.pool_trim(pool, 0));
}

TEST_F(Conformance, AnAllocationOfOneStreamIsUsedByAnotherBehindAnEvent) {  // cuMemAllocAsync, note
  DevicePtr address = 0;
  const EventPtr made = gpu.event(cuda::kEventDisableTiming), used = gpu.event(cuda::kEventDisableTiming);
  ASSERT_OK(cu.memory_allocate_async(&address, 4096, gpu.other));
  ASSERT_OK(cu.event_record(made, gpu.other));
  ASSERT_OK(cu.stream_wait_event(gpu.stream, made, 0));
  ASSERT_OK(cu.fill_bytes(address, 7, 4096, gpu.stream));
  ASSERT_OK(cu.event_record(used, gpu.stream));
  EXPECT_EQ(gpu.download<unsigned char>(address, 4096).back(), 7);
  ASSERT_OK(cu.stream_wait_event(gpu.other, used, 0));
  EXPECT_OK(cu.memory_free_async(address, gpu.other));
}

TEST_F(Conformance, PageLockedMemory) {  // cuMemHostAlloc, cuMemFreeHost
  void* data = nullptr;
  ASSERT_OK(cu.host_allocate(&data, 100, cuda::kHostAllocPortable));
  std::memset(data, 1, 100);
  EXPECT_OK(cu.host_free(data));
  std::vector<char> pageable(100);
  EXPECT_EQ(cu.host_free(pageable.data()), Result::kInvalidValue);
}

TEST_F(Conformance, CopiesAndFills) {  // cuMemcpyHtoDAsync, cuMemcpyDtoDAsync, cuMemcpyPeerAsync, cuMemsetD8Async
  std::vector<int> values(100000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * 2654435761u);
  const size_t bytes = values.size() * 4;
  const DevicePtr a = gpu.upload(values), b = gpu.block(bytes), c = gpu.block(bytes);
  ASSERT_OK(cu.copy_on_device(b, a, bytes, gpu.stream));
  EXPECT_EQ(gpu.download<int>(b, values.size()), values);
  // Copies on one device, too; from and to addresses inside of blocks.
  ASSERT_OK(cu.fill_bytes(c, 0xA5, bytes, gpu.stream));
  ASSERT_OK(cu.copy_peer(c + 4, gpu.context, b + 8, gpu.context, bytes - 12, gpu.stream));
  const std::vector<int> moved = gpu.download<int>(c, values.size());
  EXPECT_EQ(moved.front(), static_cast<int>(0xA5A5A5A5));
  EXPECT_EQ(moved.back(), static_cast<int>(0xA5A5A5A5));
  for (size_t i = 1; i + 2 < values.size(); ++i) ASSERT_EQ(moved[i], values[i + 1]) << i;
}

// ---- Streams, events, callbacks

// The stream waits until it returns.
void doze(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

TEST_F(Conformance, EventsThatWereNeverRecorded) {  // cuEventRecord, cuEventQuery, cuEventElapsedTime
  const EventPtr never = gpu.event(), recorded = gpu.event();
  EXPECT_OK(cu.event_query(never));
  EXPECT_OK(cu.event_synchronize(never));
  ASSERT_OK(cu.event_record(recorded, gpu.stream));
  ASSERT_OK(cu.event_synchronize(recorded));
  float ms = 0;
  EXPECT_EQ(cu.event_elapsed(&ms, never, recorded), Result::kInvalidHandle);
}

TEST_F(Conformance, TimesOfEvents) {  // cuEventElapsedTime
  const EventPtr from = gpu.event(), to = gpu.event(), untimed = gpu.event(cuda::kEventDisableTiming);
  ASSERT_OK(cu.event_record(from, gpu.stream));
  ASSERT_OK(cu.launch_host(gpu.stream, &doze, nullptr));
  ASSERT_OK(cu.event_record(to, gpu.stream));
  ASSERT_OK(cu.event_record(untimed, gpu.stream));
  float ms = 0;
  EXPECT_EQ(cu.event_elapsed(&ms, from, to), Result::kNotReady);
  EXPECT_EQ(cu.event_query(to), Result::kNotReady);
  ASSERT_OK(cu.stream_synchronize(gpu.stream));
  EXPECT_OK(cu.event_query(to));
  EXPECT_OK(cu.event_elapsed(&ms, from, to));
  EXPECT_GT(ms, 50);
  EXPECT_LT(ms, 5000);
  EXPECT_EQ(cu.event_elapsed(&ms, from, untimed), Result::kInvalidHandle);
}

TEST_F(Conformance, AnEventStandsForItsLastRecord) {  // cuEventRecord
  const EventPtr event = gpu.event();
  ASSERT_OK(cu.event_record(event, gpu.stream));
  ASSERT_OK(cu.stream_synchronize(gpu.stream));
  EXPECT_OK(cu.event_query(event));
  ASSERT_OK(cu.launch_host(gpu.other, &doze, nullptr));
  ASSERT_OK(cu.event_record(event, gpu.other));
  EXPECT_EQ(cu.event_query(event), Result::kNotReady);
  EXPECT_OK(cu.event_synchronize(event));
  EXPECT_OK(cu.event_query(event));
}

TEST_F(Conformance, AWaitIsForTheRecordThatWasMadeBefore) {  // cuStreamWaitEvent
  const EventPtr event = gpu.event();
  std::atomic<bool> late = false;
  ASSERT_OK(cu.event_record(event, gpu.stream));
  ASSERT_OK(cu.stream_wait_event(gpu.other, event, 0));
  ASSERT_OK(cu.launch_host(
      gpu.stream, [](void* flag) { doze(nullptr), *static_cast<std::atomic<bool>*>(flag) = true; }, &late));
  ASSERT_OK(cu.event_record(event, gpu.stream));  // nothing to those who wait already
  ASSERT_OK(cu.stream_synchronize(gpu.other));
  EXPECT_FALSE(late && streams_run_together());
  ASSERT_OK(cu.stream_synchronize(gpu.stream));
  EXPECT_TRUE(late);
}

TEST_F(Conformance, CallbacksRunInStreamOrder) {  // cuLaunchHostFunc
  std::vector<int> values(1000, 3);
  const DevicePtr block = gpu.upload(values);
  struct Seen {
    int* data;
    int sum = 0;
  } seen{gpu.pinned<int>(values.size())};
  std::memset(seen.data, 0, values.size() * 4);
  ASSERT_OK(cu.copy_to_host(seen.data, block, values.size() * 4, gpu.stream));
  ASSERT_OK(cu.launch_host(
      gpu.stream,
      [](void* data) {
        Seen& seen = *static_cast<Seen*>(data);
        for (int i = 0; i < 1000; ++i) seen.sum += seen.data[i];
      },
      &seen));
  ASSERT_OK(cu.stream_synchronize(gpu.stream));
  EXPECT_EQ(seen.sum, 3000);
}

TEST_F(Conformance, AStreamMayBeDestroyedBeforeItsWorkIsDone) {  // cuStreamDestroy
  StreamPtr made = nullptr;
  const DevicePtr block = gpu.block(4096);
  const EventPtr done = gpu.event();
  ASSERT_OK(cu.stream_create(&made, cuda::kStreamNonBlocking, 0));
  ASSERT_OK(cu.launch_host(made, &doze, nullptr));
  ASSERT_OK(cu.fill_bytes(block, 9, 4096, made));
  ASSERT_OK(cu.event_record(done, made));
  EXPECT_OK(cu.stream_destroy(made));
  EXPECT_OK(cu.event_synchronize(done));
  EXPECT_EQ(gpu.download<unsigned char>(block, 4096).back(), 9);
}

TEST_F(Conformance, StreamsDoNotWaitForEachOther) {  // cuStreamCreate, NON_BLOCKING
  const EventPtr done = gpu.event();
  ASSERT_OK(cu.launch_host(gpu.stream, &doze, nullptr));
  ASSERT_OK(cu.event_record(done, gpu.stream));
  ASSERT_OK(cu.stream_synchronize(gpu.other));
  EXPECT_TRUE(!streams_run_together() || cu.event_query(done) == Result::kNotReady);
  EXPECT_OK(cu.context_synchronize());
  EXPECT_OK(cu.event_query(done));
}

}  // namespace
}  // namespace rondo::test
