// Our declarations of CUDA's libraries agree with the toolkit's headers: sizes, values and signatures. Where the
// headers are absent there is nothing to compare with.
#include <gtest/gtest.h>

#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>) && __has_include(<cublasLt.h>)
#define RONDO_TOOLKIT 1
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>
#endif

#include "rondo/runtime/cuda/driver.h"
#include "rondo/tests/declared_alike.h"

namespace rondo::cuda {
namespace {

#ifdef RONDO_TOOLKIT

using test::Same;
using Types = test::Types<
    Same<CUresult, Result>, Same<CUcontext, Context>, Same<CUstream, StreamPtr>, Same<CUevent, EventPtr>,
    Same<CUmodule, ModulePtr>, Same<CUfunction, FunctionPtr>, Same<CUmemoryPool, PoolPtr>, Same<CUuuid, Uuid>,
    Same<CUdevice_attribute, DeviceAttribute>, Same<CUfunction_attribute, FunctionAttribute>,
    Same<nvrtcResult, NvrtcResult>, Same<nvrtcProgram, ProgramPtr>, Same<cublasStatus_t, LtStatus>,
    Same<cublasLtHandle_t, LtHandle>, Same<cublasLtMatmulDesc_t, LtDesc>, Same<cublasLtMatrixLayout_t, LtLayout>,
    Same<cublasLtMatmulPreference_t, LtPreference>, Same<cublasLtMatmulAlgo_t, LtAlgo>,
    Same<cublasLtMatmulHeuristicResult_t, LtHeuristic>, Same<cublasLtMatmulDescAttributes_t, LtDescAttribute>,
    Same<cublasLtMatrixLayoutAttribute_t, LtLayoutAttribute>,
    Same<cublasLtMatmulPreferenceAttributes_t, LtPreferenceAttribute>, Same<cublasComputeType_t, LtCompute>,
    Same<cudaDataType_t, LtType>>;
RONDO_CUDA_DRIVER(CHECK_SIGNATURE)
RONDO_CUDA_NVRTC(CHECK_SIGNATURE)
RONDO_CUDA_LT(CHECK_SIGNATURE)

CHECK_VALUE(Result::kSuccess, CUDA_SUCCESS);
CHECK_VALUE(Result::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
CHECK_VALUE(Result::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
CHECK_VALUE(Result::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
CHECK_VALUE(Result::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
CHECK_VALUE(Result::kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
CHECK_VALUE(Result::kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
CHECK_VALUE(Result::kNoDevice, CUDA_ERROR_NO_DEVICE);
CHECK_VALUE(Result::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
CHECK_VALUE(Result::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
CHECK_VALUE(Result::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
CHECK_VALUE(Result::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
CHECK_VALUE(Result::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
CHECK_VALUE(Result::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
CHECK_VALUE(Result::kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
CHECK_VALUE(Result::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
CHECK_VALUE(Result::kNotFound, CUDA_ERROR_NOT_FOUND);
CHECK_VALUE(Result::kNotReady, CUDA_ERROR_NOT_READY);
CHECK_VALUE(Result::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
CHECK_VALUE(Result::kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
CHECK_VALUE(Result::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
CHECK_VALUE(Result::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
CHECK_VALUE(Result::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
CHECK_VALUE(Result::kAssert, CUDA_ERROR_ASSERT);
CHECK_VALUE(Result::kTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS);
CHECK_VALUE(Result::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
CHECK_VALUE(Result::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
CHECK_VALUE(Result::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
CHECK_VALUE(Result::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
CHECK_VALUE(Result::kInvalidPc, CUDA_ERROR_INVALID_PC);
CHECK_VALUE(Result::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
CHECK_VALUE(Result::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
CHECK_VALUE(Result::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
CHECK_VALUE(Result::kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
CHECK_VALUE(Result::kExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE);
CHECK_VALUE(Result::kUnknown, CUDA_ERROR_UNKNOWN);
#if CUDA_VERSION >= 12080
CHECK_VALUE(Result::kContained, CUDA_ERROR_CONTAINED);
CHECK_VALUE(Result::kTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
CHECK_VALUE(DeviceAttribute::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
CHECK_VALUE(DeviceAttribute::kMaxGridX, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
CHECK_VALUE(DeviceAttribute::kMaxGridY, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
CHECK_VALUE(DeviceAttribute::kMaxGridZ, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
CHECK_VALUE(DeviceAttribute::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
CHECK_VALUE(DeviceAttribute::kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
CHECK_VALUE(DeviceAttribute::kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
CHECK_VALUE(DeviceAttribute::kMaxSharedPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
CHECK_VALUE(DeviceAttribute::kMemoryPools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
CHECK_VALUE(FunctionAttribute::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
CHECK_VALUE(FunctionAttribute::kStaticShared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
CHECK_VALUE(FunctionAttribute::kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
CHECK_VALUE(FunctionAttribute::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
CHECK_VALUE(FunctionAttribute::kMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
CHECK_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
CHECK_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
CHECK_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
CHECK_VALUE(NvrtcResult::kSuccess, NVRTC_SUCCESS);
CHECK_VALUE(NvrtcResult::kInvalidOption, NVRTC_ERROR_INVALID_OPTION);
CHECK_VALUE(NvrtcResult::kCompilation, NVRTC_ERROR_COMPILATION);
CHECK_VALUE(LtStatus::kSuccess, CUBLAS_STATUS_SUCCESS);
CHECK_VALUE(LtStatus::kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
CHECK_VALUE(LtStatus::kAllocFailed, CUBLAS_STATUS_ALLOC_FAILED);
CHECK_VALUE(LtStatus::kInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
CHECK_VALUE(LtStatus::kArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH);
CHECK_VALUE(LtStatus::kExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
CHECK_VALUE(LtStatus::kInternalError, CUBLAS_STATUS_INTERNAL_ERROR);
CHECK_VALUE(LtStatus::kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
CHECK_VALUE(LtType::kF32, CUDA_R_32F);
CHECK_VALUE(LtType::kF64, CUDA_R_64F);
CHECK_VALUE(LtType::kF16, CUDA_R_16F);
CHECK_VALUE(LtType::kBF16, CUDA_R_16BF);
CHECK_VALUE(LtType::kI8, CUDA_R_8I);
CHECK_VALUE(LtType::kI32, CUDA_R_32I);
CHECK_VALUE(LtCompute::kF32, CUBLAS_COMPUTE_32F);
CHECK_VALUE(LtCompute::kF32Pedantic, CUBLAS_COMPUTE_32F_PEDANTIC);
CHECK_VALUE(LtCompute::kF64, CUBLAS_COMPUTE_64F);
CHECK_VALUE(LtCompute::kI32, CUBLAS_COMPUTE_32I);
CHECK_VALUE(LtCompute::kTF32, CUBLAS_COMPUTE_32F_FAST_TF32);
CHECK_VALUE(LtTranspose::kNone, CUBLAS_OP_N);
CHECK_VALUE(LtTranspose::kTranspose, CUBLAS_OP_T);
CHECK_VALUE(LtEpilogue::kDefault, CUBLASLT_EPILOGUE_DEFAULT);
CHECK_VALUE(LtEpilogue::kBias, CUBLASLT_EPILOGUE_BIAS);
CHECK_VALUE(LtEpilogue::kGelu, CUBLASLT_EPILOGUE_GELU);
CHECK_VALUE(LtEpilogue::kGeluBias, CUBLASLT_EPILOGUE_GELU_BIAS);
CHECK_VALUE(LtEpilogue::kGeluAuxBias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
CHECK_VALUE(LtDescAttribute::kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
CHECK_VALUE(LtDescAttribute::kTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
CHECK_VALUE(LtDescAttribute::kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
CHECK_VALUE(LtDescAttribute::kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
CHECK_VALUE(LtDescAttribute::kEpilogueAuxPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
CHECK_VALUE(LtDescAttribute::kEpilogueAuxLd, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
CHECK_VALUE(LtDescAttribute::kBiasType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
CHECK_VALUE(LtLayoutAttribute::kOrder, CUBLASLT_MATRIX_LAYOUT_ORDER);
CHECK_VALUE(LtLayoutAttribute::kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
CHECK_VALUE(LtLayoutAttribute::kBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
CHECK_VALUE(LtPreferenceAttribute::kMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
CHECK_VALUE(LtPreferenceAttribute::kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
CHECK_VALUE(kReduceInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
CHECK_VALUE(LtPreferenceAttribute::kMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
CHECK_VALUE(LtPreferenceAttribute::kMinAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
CHECK_VALUE(LtPreferenceAttribute::kMinAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
CHECK_VALUE(LtPreferenceAttribute::kMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == offsetof(LtHeuristic, workspace));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(LtHeuristic, state));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount) == offsetof(LtHeuristic, waves));

TEST(CudaHeaders, AgreeWithTheToolkit) { SUCCEED() << "checked when this file was compiled"; }

#else

TEST(CudaHeaders, AgreeWithTheToolkit) { GTEST_SKIP() << "the toolkit's headers are not here"; }

#endif

}  // namespace
}  // namespace rondo::cuda
