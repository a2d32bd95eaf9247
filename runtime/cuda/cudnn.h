// cuDNN as a table of functions, found and opened as the other libraries of CUDA are: Note [Finding CUDA] in driver.h.
// Only its backend (graph) API is used: six functions for descriptors of every kind. The declarations are those of
// cuDNN 9; tests/cuda/headers_test.cc compares them with its headers.
//
// Note [Which cuDNN]. Plans are made from a description of a device. cuDNN accepts such a description from version 9.8
// on, and reads it back from text from 9.11 on. An older cuDNN is treated as missing.
//
// Thread safety: all functions here may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "rondo/runtime/cuda/driver.h"

namespace rondo::cuda {

// The thousands of a status are its category; the rest gives details.
enum class DnnStatus : int {
  kSuccess = 0,
  kNotInitialized = 1001,
  kSerializationMismatch = 1003,
  kBadParam = 2000,
  kNotSupported = 3000,
  kInternalError = 4000,
  kExecutionFailed = 5000,
};
inline DnnStatus category_of(DnnStatus status) {
  const int code = static_cast<int>(status);
  return static_cast<DnnStatus>(code < 2000 ? code : code / 1000 * 1000);
}

enum class DnnKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDevice = 38,
};

enum class DnnAttribute : int {
  kPointwiseMode = 0,
  kPointwiseType = 1,
  kPointwiseAxis = 9,
  kConvolutionType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionAfter = 104,
  kConvolutionBefore = 105,
  kConvolutionDimensions = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
  kEngineOfConfig = 300,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanText = 405,
  kPlanDevice = 407,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kDataAlpha = 706,
  kDataBeta = 707,
  kDataConvolution = 708,
  kDataW = 709,
  kDataDx = 710,
  kDataDy = 711,
  kFilterAlpha = 712,
  kFilterBeta = 713,
  kFilterConvolution = 714,
  kFilterDw = 715,
  kFilterX = 716,
  kFilterDy = 717,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kEngineBehaviorNotes = 1305,
  kMatmulType = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kReductionOperator = 1600,
  kReductionType = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceIndex = 2700,
  kDeviceText = 2702,
};

// The type of an attribute's values.
enum class DnnValue : int {
  kData = 1,
  kBool = 2,
  kInt64 = 3,
  kFloat = 4,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kBehaviorNote = 19,
  kInt32 = 23,
  kChar = 24,
};

enum class DnnData : int { kF32 = 0, kF64 = 1, kF16 = 2, kI32 = 4, kBF16 = 9, kI64 = 10, kBool = 11 };

enum class DnnPointwise : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kRelu = 100,
  kGreaterEqual = 303,
  kIndex = 501,
  kSelect = 601,  // x where t, else b
};
enum class DnnReduction : int { kAdd = 0, kMax = 3 };
enum class DnnHeuristic : int { kFallback = 2, kBest = 3 };

enum class DnnNumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
};
inline constexpr int kDnnNumericalNotes = 32, kDnnBehaviorNotes = 32;  // room for the notes of later versions
enum class DnnBehaviorNote : int { kRuntimeCompilation = 0, kSupportsGraphs = 3, kUsesCublasLt = 4 };

using DnnHandle = struct OpaqueDnn*;
using DnnDescriptor = void*;

#define RONDO_CUDA_DNN(F)                                                                                      \
  F(version, cudnnGetVersion, size_t())                                                                        \
  F(status_string, cudnnGetErrorString, const char*(DnnStatus))                                                \
  F(last_error, cudnnGetLastErrorString, void(char*, size_t))                                                  \
  F(create, cudnnCreate, DnnStatus(DnnHandle*))                                                                \
  F(destroy, cudnnDestroy, DnnStatus(DnnHandle))                                                               \
  F(set_stream, cudnnSetStream, DnnStatus(DnnHandle, StreamPtr))                                               \
  F(make, cudnnBackendCreateDescriptor, DnnStatus(DnnKind, DnnDescriptor*))                                    \
  F(release, cudnnBackendDestroyDescriptor, DnnStatus(DnnDescriptor))                                          \
  F(finalize, cudnnBackendFinalize, DnnStatus(DnnDescriptor))                                                  \
  F(set, cudnnBackendSetAttribute, DnnStatus(DnnDescriptor, DnnAttribute, DnnValue, int64_t, const void*))     \
  F(get, cudnnBackendGetAttribute, DnnStatus(DnnDescriptor, DnnAttribute, DnnValue, int64_t, int64_t*, void*)) \
  F(execute, cudnnBackendExecute, DnnStatus(DnnHandle, DnnDescriptor, DnnDescriptor))

#define RONDO_CUDA_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
struct Cudnn {
  RONDO_CUDA_DNN(RONDO_CUDA_MEMBER)
};
#undef RONDO_CUDA_MEMBER

// Returns null if there is no cuDNN or it is too old; `*why_not` then gives the reason and what to install. The answer
// is kept.
const Cudnn* find_cudnn(std::string* why_not);
// Like find_cudnn(), but throws DeviceError with the reason instead of returning null.
const Cudnn& require_cudnn();
// Returns, for example, "9.19.0".
std::string version_of(const Cudnn& library);

}  // namespace rondo::cuda
