// Every refusal of the fake CUDA, and what stands behind it: a conformance test, or the reason why there is none. A
// refusal that is not listed here fails a test, and so does one that is gone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "rondo/tests/paths.h"

namespace rondo::test {
namespace {

enum Kind {
  kTested,     // the driver says so, too: by the conformance test that is named
  kUndefined,  // the manual leaves open what happens: a program must not do it, and no test can
  kRule,       // our own rule: the driver would do it, and Rondo does not want it done
  kOfTheFake,  // about the fake itself
};

struct Assumption {
  const char* refusal;  // its longest words, or the result that it returns
  Kind kind;
  const char* reason;  // the test, or why there is none
};
struct Assumptions {
  const char* file;
  const char* function;  // of the driver, or of the fake's own
  std::vector<Assumption> refusals;
};

// By function, in the order of the files.
const std::vector<Assumptions> kAssumptions = {
    // ---- driver*.cc: the driver
    {"driver.cc",
     "cuCtxEnablePeerAccess",
     {{"kPeerAccessAlreadyEnabled", kTested, "ConformanceDevices.PeersAreEnabledOnce"},
      {"kPeerAccessUnsupported", kTested, "ConformanceDevices.WithoutAccessToEachOther"},
      {"no peer", kTested, "ConformanceDevices.PeersAreEnabledOnce"},
      {"the flags must be 0", kTested, "ConformanceDevices.PeersAreEnabledOnce"}}},
    {"driver.cc",
     "cuCtxPopCurrent_v2",
     {{"no context was pushed", kTested, "Conformance.EachThreadHasItsOwnStackOfContexts"}}},
    {"driver.cc", "cuCtxPushCurrent_v2", {{"no such context", kUndefined, "a handle of nothing"}}},
    {"driver.cc", "cuDeviceGetAttribute", {{"unknown attribute ", kTested, "Conformance.AttributesOfDevices"}}},
    {"driver.cc", "cuDeviceGetPCIBusId", {{"kInvalidValue", kTested, "Conformance.PlacesOfDevices"}}},
    {"driver.cc",
     "cuDevicePrimaryCtxRelease_v2",
     {{"released more often than retained", kTested, "ConformanceProcess.AContextIsReleasedAsOftenAsRetained"}}},
    {"driver_streams.cc",
     "cuEventElapsedTime",
     {{"kNotReady", kTested, "Conformance.TimesOfEvents"},
      {"the event was made without timing", kTested, "Conformance.TimesOfEvents"},
      {"the event was never recorded", kTested, "Conformance.EventsThatWereNeverRecorded"}}},
    {"driver_streams.cc", "cuEventQuery", {{"kNotReady", kTested, "Conformance.TimesOfEvents"}}},
    {"driver_streams.cc",
     "cuEventRecord",
     {{", and the stream of ", kTested, "ConformanceDevices.EventsAndStreamsDoNotMix"}}},
    {"driver_streams.cc", "cuFuncGetAttribute", {{"no function has this handle", kUndefined, "a handle of nothing"}}},
    {"driver_streams.cc",
     "cuFuncSetAttribute",
     {{"kInvalidValue", kTested, "ConformanceKernels.SharedMemory"},
      {"no function has this handle", kUndefined, "a handle of nothing"},
      {"the attribute cannot be set", kTested, "ConformanceKernels.AttributesOfFunctions"}}},
    {"driver.cc", "cuGetErrorName", {{"kInvalidValue", kTested, "Conformance.NamesOfErrors"}}},
    {"driver.cc", "cuGetExportTable", {{"kNotFound", kOfTheFake, "for NVRTC in the same process"}}},
    {"driver.cc",
     "cuInit",
     {{"kNoDevice", kOfTheFake, "CUresult, NO_DEVICE: there is no machine to test it on"},
      {"the flags must be 0", kTested, "ConformanceProcess.NothingWorksBeforeInit"}}},
    {"driver_streams.cc",
     "cuLaunchKernel",
     {{" bytes of shared memory, and the function may have ", kTested,
       "ConformanceKernels.SharedMemoryBesideStaticMemory"},
      {", and the stream is of ", kUndefined, "cuModuleLoad: a function is of one context"},
      {": its module was unloaded", kUndefined, "cuModuleUnload"},
      {": oversized or empty launch: grid [", kTested, "ConformanceKernels.LaunchesThatAreTooLarge"},
      {"extra arguments", kRule, "Rondo gives arguments by their addresses"},
      {"no function has this handle", kUndefined, "a handle of nothing"}}},
    {"driver_memory.cc",
     "cuMemAllocAsync",
     {{"0 bytes", kRule, "the manual does not say; the allocator asks for no such block"},
      {"kOutOfMemory", kTested, "Conformance.AllocationsInStreamOrder"}}},
    {"driver_memory.cc",
     "cuMemAlloc_v2",
     {{"0 bytes", kTested, "Conformance.SizesOfAllocations"},
      {"kOutOfMemory", kTested, "Conformance.SizesOfAllocations"}}},
    {"driver_memory.cc",
     "cuMemFreeAsync",
     {{" may still use it: no event orders the two", kUndefined, "cuMemFreeAsync: must not be accessed"},
      {"no block begins here", kUndefined, "cuMemFreeAsync: a pointer that cuMemAllocAsync gave"},
      {"something wrote behind a block that is freed", kUndefined, "a write out of bounds"},
      {"the block is freed twice", kUndefined, "cuMemFreeAsync: a pointer that cuMemAllocAsync gave"}}},
    {"driver_memory.cc",
     "cuMemFreeHost",
     {{" may still use it", kRule, "cuMemFreeHost may wait, or not"},
      {"no such page-locked memory", kTested, "Conformance.PageLockedMemory"}}},
    {"driver_memory.cc",
     "cuMemFree_v2",
     {{" may still use it: nothing waited for that", kRule, "cuMemFree may wait, or not"},
      {", and the current context of ", kUndefined, "cuMemFree: with unified addresses it is freed all the same"},
      {"no block begins here", kTested, "Conformance.WhatIsNoBlockIsNotFreed"},
      {"something wrote behind the block", kUndefined, "a write out of bounds; compute-sanitizer sees it"},
      {"the block is freed twice", kTested, "Conformance.WhatIsNoBlockIsNotFreed"}}},
    {"driver_memory.cc",
     "cuMemHostAlloc",
     {{"0 bytes", kRule, "the manual does not say; staging asks for no such block"},
      {"kOutOfMemory", kOfTheFake, "to ask for all of a machine's memory would harm it"},
      {"page-locked for one context only", kRule, "staging buffers serve all devices"}}},
    {"driver_memory.cc",
     "cuMemcpyDtoDAsync_v2",
     {{"the two ranges overlap", kUndefined, "cuMemcpy: the areas may not overlap"}}},
    {"driver_memory.cc",
     "cuMemcpyDtoHAsync_v2",
     {{"an asynchronous copy to pageable memory", kRule, "API synchronization behavior: it may wait, or not"}}},
    {"driver_memory.cc",
     "cuMemcpyHtoDAsync_v2",
     {{"an asynchronous copy from pageable memory", kRule, "API synchronization behavior: it may wait, or not"},
      {"page-locked memory was changed before the copy has read it", kUndefined, "a race"}}},
    {"driver_memory.cc", "cuMemcpyPeerAsync", {{"no such context", kUndefined, "a handle of nothing"}}},
    {"driver_streams.cc",
     "check_pointer",
     {{" uses, and no event and no wait orders the two", kUndefined, "a race with a collective"}}},
    {"driver_streams.cc",
     "cuModuleGetFunction",
     {{"kNotFound", kTested, "ConformanceKernels.FunctionsThatAreNotThere"},
      {"no module has this handle, or it was unloaded", kUndefined, "a handle of nothing"}}},
    {"driver_streams.cc",
     "cuModuleLoadData",
     {{"kInvalidImage", kTested, "ConformanceKernels.ImagesThatAreNone"},
      {"kNoBinaryForGpu", kTested, "ConformanceKernels.CodeOfAnotherArchitecture"},
      {"kOutOfMemory", kOfTheFake, "code takes memory; a real device would have to be full"},
      {"no kernel is registered as ", kOfTheFake, "host functions as kernels"}}},
    {"driver_streams.cc",
     "cuModuleUnload",
     {{"no module has this handle, or it was unloaded", kUndefined, "a handle of nothing"}}},
    {"driver_streams.cc",
     "cuStreamCreateWithPriority",
     {{"a stream that waits for the default stream is not expected", kRule, "a host program may use that one"}}},
    {"driver_streams.cc",
     "cuStreamWaitEvent",
     {{"the event was never recorded", kRule, "such an event stands for no work: to wait for it is a mistake"},
      {"the flags must be 0", kRule, "the other flag is for graphs"}}},
    {"driver_call.cc",
     "every call",
     {{"a callback of the host calls the driver", kUndefined, "cuLaunchHostFunc: may be refused, or not"},
      {"cuInit was not called", kTested, "ConformanceProcess.NothingWorksBeforeInit"},
      {"no context is current", kTested, "Conformance.EachThreadHasItsOwnStackOfContexts"},
      {"the current context was released", kUndefined, "cuDevicePrimaryCtxRelease: it must not be used"}}},
    {"driver_call.cc", "require_device", {{"no such device", kTested, "Conformance.DevicesThatAreNotThere"}}},
    {"driver_call.cc",
     "require_event",
     {{"no event has this handle", kUndefined, "a handle of nothing"},
      {"the event was destroyed", kUndefined, "cuEventDestroy"}}},
    {"driver_call.cc",
     "require_stream",
     {{", and the current context of ", kUndefined, "a stream of another context"},
      {"no stream has this handle", kUndefined, "a handle of nothing"},
      {"the default stream, which waits for all others, is not expected", kRule, "Rondo has its own streams"},
      {"the stream was destroyed", kUndefined, "cuStreamDestroy"}}},
    // ---- machine.cc: addresses. A device maps memory in pieces of 2 MiB, so it notices some of these, and not others.
    {"machine.cc",
     "require_device_range",
     {{" goes beyond its block of ", kUndefined, "out of bounds; compute-sanitizer sees it"},
      {" is no device memory (", kUndefined, "an address of nothing"},
      {" is used after it was freed", kUndefined, "freed memory; compute-sanitizer sees it"},
      {" lies in no block of device ", kUndefined, "an address of nothing"},
      {", and the work runs on device ", kUndefined, "memory of a device without access to it"}}},
    // ---- cublaslt.cc: [manual], [header] and [library] as there
    {"cublaslt.cc",
     "cublasLtCreate",
     {{"kAllocFailed", kOfTheFake, "a real device would have to be full"},
      {"kNotInitialized", kTested, "tests/cuda: CublasLtFake.DescriptorsAnswerAsTheRealOnesDo"},
      {"no context is current", kRule, "a handle is made and used with its device's context"}}},
    {"cublaslt.cc",
     "cublasLtMatmul",
     {{" bytes, and it is aligned to ", kUndefined, "[header] *_MIN_ALIGNMENT_*_BYTES: a promise"},
      {", and the handle of ", kUndefined, "[manual] cublasLtCreate: one for each device"},
      {"C and D share memory without being the same matrix", kUndefined, "a race"},
      {"D overlaps A or B", kUndefined, "a race"},
      {"alpha or beta is missing", kRule, "the runtime gives both"},
      {"kExecutionFailed", kUndefined, "the context is dead"},
      {"kInvalidValue", kUndefined, "memory of nothing; the addresses above"},
      {"kNotSupported", kOfTheFake, "[header] on demand: which products a device refuses, no test can say before"},
      {"no algorithm is given", kRule, "[manual] the library would choose one, for other alignments"},
      {"no such stream", kUndefined, "a handle of nothing"},
      {"the algorithm is not one of the heuristic's", kUndefined, "bytes of nothing"},
      {"the algorithm needs a workspace of ", kTested, "ConformanceLtRefusals.AWorkspaceThatIsTooSmall"},
      {"the algorithm was chosen for another device's handle", kUndefined, "[manual] it is for a device"},
      {"the algorithm was chosen for another product", kUndefined, "[manual] it is for these descriptors"},
      {"the bias is aligned worse than the one for which the algorithm was chosen", kUndefined,
       "[header] CUBLASLT_MATMUL_DESC_BIAS_POINTER: a promise"},
      {"the workspace is not aligned to 256 bytes", kUndefined, "[manual] cublasLtMatmul(): must be"}}},
    {"cublaslt.cc",
     "cublasLtMatmulAlgoGetHeuristic",
     {{"an alignment of ", kRule, "alignments are powers of two"},
      {"kNotSupported", kTested, "ConformanceLtRefusals.AnAnswerWithoutAlgorithms"},
      {"the address of the bias, which tells its alignment, is not set", kRule,
       "[header] CUBLASLT_MATMUL_DESC_BIAS_POINTER: no address tells no alignment"}}},
    {"cublaslt.cc",
     "cublasLtMatmulDescSetAttribute",
     {{"unknown attribute ", kTested, "tests/cuda: CublasLtFake.DescriptorsAnswerAsTheRealOnesDo"}}},
    {"cublaslt.cc",
     "cublasLtMatmulPreferenceSetAttribute",
     {{"unknown attribute ", kTested, "tests/cuda: CublasLtFake.DescriptorsAnswerAsTheRealOnesDo"}}},
    {"cublaslt.cc",
     "cublasLtMatrixLayoutSetAttribute",
     {{"unknown attribute ", kTested, "tests/cuda: CublasLtFake.DescriptorsAnswerAsTheRealOnesDo"}}},
    {"cublaslt.cc",
     "require",
     {{" was destroyed", kUndefined, "a handle of nothing"}, {"there is no such ", kUndefined, "a handle of nothing"}}},
    {"cublaslt.cc",
     "require_handle",
     {{", and the current context of ", kRule, "a handle is used with its device's context"},
      {"no context is current", kRule, "a handle is made and used with its device's context"}}},
    {"cublaslt.cc",
     "take",
     {{" bytes is set with ", kTested, "tests/cuda: CublasLtFake.DescriptorsAnswerAsTheRealOnesDo"}}},
    {"cublaslt.cc",
     "validate",
     {{" is a batch of ", kTested, "ConformanceLtRefusals.BatchesThatDoNotFit"},
      {" is empty: ", kRule, "the runtime multiplies nothing by itself"},
      {"C and D have other sizes", kRule, "the runtime gives one layout for both"},
      {"an unknown epilogue: ", kTested, "ConformanceLtRefusals.AnUnknownEpilogue"},
      {"an unknown transposition", kTested, "ConformanceLtRefusals.AnUnknownTransposition"},
      {"kNotSupported", kTested, "ConformanceLtRefusals.TypesThatTheManualDoesNotList"},
      {"op(A) is ", kTested, "ConformanceLtRefusals.SizesThatDoNotFit"},
      {"the leading dimension ", kTested, "ConformanceLtRefusals.ALeadingDimensionThatIsTooSmall"},
      {"the matrices of D overlap: their stride is ", kUndefined, "two writes to one place"}}},
    // ---- nvrtc.cc
    {"nvrtc.cc",
     "nvrtcCompileProgram",
     {{"kBuiltins", kTested, "tests/cuda: CudaLibrariesDeathTest.NvrtcsBuiltinsAreThoseBesideIt"},
      {"kCompilation", kTested, "ConformanceNvrtc.SaysWhatIsWrongWithASource"},
      {"kInvalidOption", kTested, "ConformanceNvrtc.RefusesUnknownOptions"}}},
};

// ---- What the sources refuse

// The longest string literal of a call's arguments; `at` is behind its opening parenthesis.
std::string longest_literal(const std::string& text, size_t at) {
  std::string longest;
  for (int depth = 1; depth > 0 && at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
    if (text[at] != '"') continue;
    std::string literal;
    for (++at; text[at] != '"'; ++at) literal += text[at];
    if (literal.size() > longest.size()) longest = literal;
  }
  return longest;
}
// The function of a definition that begins in this line, or "".
std::string function_of(const std::string& line) {
  if (line.starts_with("Call::Call(")) return "every call";  // what the driver's functions begin with
  if (line.empty() || line[0] == ' ' || line[0] == '/' || line[0] == '#' || line[0] == '}') return "";
  const size_t open = line.find('(');
  const size_t begin = open == line.npos ? open : line.find_last_of(" *:", open);
  return begin == line.npos ? "" : line.substr(begin + 1, open - begin - 1);
}

std::set<std::string> refusals_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  std::set<std::string> found;
  std::string function;
  size_t line_begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at == 0 || text[at - 1] == '\n') {
      line_begin = at;
      const std::string here = function_of(text.substr(at, text.find('\n', at) - at));
      if (!here.empty()) function = here;
    }
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.starts_with("//")) at = text.find('\n', at) - 1;
    const auto word_before = [&](std::string_view word) {
      return at > line_begin + word.size() && std::string_view(text).substr(at - word.size(), word.size()) == word;
    };
    if (rest.starts_with("misuse(") && !word_before("_")) {
      const std::string literal = longest_literal(text, at + 7);
      if (!literal.empty()) found.insert(function + ": " + literal);
    }
    for (const std::string_view prefix : {"Result::k", "LtStatus::k"})
      if (rest.starts_with(prefix) && (word_before("return ") || word_before("refuse(program, Nvrtc"))) {
        size_t end = at + prefix.size();
        while (std::isalnum(static_cast<unsigned char>(text[end])) != 0) ++end;
        const std::string result = text.substr(at + prefix.size() - 1, end - at - prefix.size() + 1);
        if (result != "kSuccess") found.insert(function + ": " + result);
      }
  }
  return found;
}

TEST(ConformanceList, NamesEveryRefusalOfTheFake) {
  const std::filesystem::path folder = std::filesystem::path(tests::kSourceDir) / "tests" / "fake_cuda";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the sources are not here";
  std::set<std::string> found, listed;
  for (const char* file : {"driver.cc", "driver_call.cc", "driver_memory.cc", "driver_streams.cc", "machine.cc",
                           "cublaslt.cc", "nvrtc.cc"})
    for (const std::string& refusal : refusals_of(folder / file)) found.insert(std::string(file) + ": " + refusal);
  EXPECT_GT(found.size(), 80u) << "the search of the sources finds too little";
  for (const auto& [file, function, refusals] : kAssumptions)
    for (const Assumption& a : refusals) listed.insert(std::string(file) + ": " + function + ": " + a.refusal);
  for (const std::string& refusal : found)
    EXPECT_TRUE(listed.contains(refusal))
        << refusal << "\n  Name the conformance test of this new refusal, or say why it "
        << "needs none, in tests/gpu/assumptions_test.cc";
  for (const std::string& refusal : listed) EXPECT_TRUE(found.contains(refusal)) << refusal << "\n  is gone";
}

TEST(ConformanceList, NamesTestsThatExist) {
  std::set<std::string> tests;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i)
    for (int j = 0; j < all.GetTestSuite(i)->total_test_count(); ++j)
      tests.insert(std::string(all.GetTestSuite(i)->name()) + "." + all.GetTestSuite(i)->GetTestInfo(j)->name());
  std::map<Kind, int> counts;
  for (const auto& [file, function, refusals] : kAssumptions)
    for (const Assumption& a : refusals) {
      ++counts[a.kind];
      if (a.kind == kTested && !std::string_view(a.reason).starts_with("tests/cuda: ")) {
        EXPECT_TRUE(tests.contains(a.reason)) << function << ": " << a.refusal << ": there is no test " << a.reason;
      }
    }
  std::printf("refusals of the fake: %d tested, %d undefined by the manual, %d rules of our own, %d about the fake\n",
              counts[kTested], counts[kUndefined], counts[kRule], counts[kOfTheFake]);
}

}  // namespace
}  // namespace rondo::test
