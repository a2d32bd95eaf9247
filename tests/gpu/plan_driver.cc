// A libcuda.so.1 for machines without a driver: cuDNN loads the code of some engines when it makes their plans, to ask
// whether it can be loaded. This one says that it can, and runs nothing. For cudnn_plans.sh only, which puts it where
// the loader looks; a program that found it as its driver would see no device.
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
constexpr int kSuccess = 0, kInvalidValue = 1, kNoDevice = 100;
char something = 0;  // what handles point to
}  // namespace

EXPORT int cuInit(unsigned) { return kSuccess; }
EXPORT int cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
EXPORT int cuDeviceGetCount(int* count) { return *count = 0, kNoDevice; }
EXPORT int cuGetErrorString(int, const char** text) { return *text = "there is no device", kSuccess; }
EXPORT int cuGetErrorName(int, const char** text) { return *text = "CUDA_ERROR_NO_DEVICE", kSuccess; }
EXPORT int cuGetExportTable(const void**, const void*) { return kInvalidValue; }
EXPORT int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return *library = &something, kSuccess;
}
EXPORT int cuLibraryGetKernel(void** kernel, void*, const char*) { return *kernel = &something, kSuccess; }
EXPORT int cuLibraryUnload(void*) { return kSuccess; }
EXPORT int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }

// cuDNN asks for these by name, and calls none of them for a plan.
#define NO_DEVICE(name) \
  EXPORT int name() { return kNoDevice; }
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuFuncSetAttribute)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
