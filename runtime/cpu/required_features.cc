// This file is compiled like kernels, so the compiler's macros show the features that kernels need. It contains no
// code.
#include "rondo/runtime/base/cpu_features.h"

namespace rondo {

constexpr CpuFeatureSet kKernelCpuFeatures = 0
#ifdef __SSE3__
                                             | bit(CpuFeature::kSse3)
#endif
#ifdef __SSSE3__
                                             | bit(CpuFeature::kSsse3)
#endif
#ifdef __SSE4_1__
                                             | bit(CpuFeature::kSse41)
#endif
#ifdef __SSE4_2__
                                             | bit(CpuFeature::kSse42)
#endif
#ifdef __POPCNT__
                                             | bit(CpuFeature::kPopcnt)
#endif
#ifdef __MOVBE__
                                             | bit(CpuFeature::kMovbe)
#endif
#ifdef __AVX__
                                             | bit(CpuFeature::kAvx)
#endif
#ifdef __F16C__
                                             | bit(CpuFeature::kF16c)
#endif
#ifdef __FMA__
                                             | bit(CpuFeature::kFma)
#endif
#ifdef __BMI__
                                             | bit(CpuFeature::kBmi)
#endif
#ifdef __BMI2__
                                             | bit(CpuFeature::kBmi2)
#endif
#ifdef __LZCNT__
                                             | bit(CpuFeature::kLzcnt)
#endif
#ifdef __AVX2__
                                             | bit(CpuFeature::kAvx2)
#endif
#ifdef __AVXVNNI__
                                             | bit(CpuFeature::kAvxVnni)
#endif
#ifdef __AVX512F__
                                             | bit(CpuFeature::kAvx512f)
#endif
#ifdef __AVX512BW__
                                             | bit(CpuFeature::kAvx512bw)
#endif
#ifdef __AVX512CD__
                                             | bit(CpuFeature::kAvx512cd)
#endif
#ifdef __AVX512DQ__
                                             | bit(CpuFeature::kAvx512dq)
#endif
#ifdef __AVX512VL__
                                             | bit(CpuFeature::kAvx512vl)
#endif
#ifdef __AVX512IFMA__
                                             | bit(CpuFeature::kAvx512ifma)
#endif
#ifdef __AVX512VBMI__
                                             | bit(CpuFeature::kAvx512vbmi)
#endif
#ifdef __AVX512VBMI2__
                                             | bit(CpuFeature::kAvx512vbmi2)
#endif
#ifdef __AVX512VNNI__
                                             | bit(CpuFeature::kAvx512vnni)
#endif
#ifdef __AVX512BITALG__
                                             | bit(CpuFeature::kAvx512bitalg)
#endif
#ifdef __AVX512VPOPCNTDQ__
                                             | bit(CpuFeature::kAvx512vpopcntdq)
#endif
#ifdef __AVX512VP2INTERSECT__
                                             | bit(CpuFeature::kAvx512vp2intersect)
#endif
#ifdef __AVX512BF16__
                                             | bit(CpuFeature::kAvx512bf16)
#endif
#ifdef __AVX512FP16__
                                             | bit(CpuFeature::kAvx512fp16)
#endif
#ifdef __GFNI__
                                             | bit(CpuFeature::kGfni)
#endif
#ifdef __ARM_FEATURE_ATOMICS
                                             | bit(CpuFeature::kLse)
#endif
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
                                             | bit(CpuFeature::kFp16)
#endif
#ifdef __ARM_FEATURE_QRDMX
                                             | bit(CpuFeature::kRdm)
#endif
#ifdef __ARM_FEATURE_COMPLEX
                                             | bit(CpuFeature::kComplexNumbers)
#endif
#ifdef __ARM_FEATURE_RCPC
                                             | bit(CpuFeature::kRcpc)
#endif
#ifdef __ARM_FEATURE_SHA3
                                             | bit(CpuFeature::kSha3)
#endif
#ifdef __ARM_FEATURE_DOTPROD
                                             | bit(CpuFeature::kDotProduct)
#endif
#ifdef __ARM_FEATURE_FP16_FML
                                             | bit(CpuFeature::kFp16Fml)
#endif
#ifdef __ARM_FEATURE_SVE
                                             | bit(CpuFeature::kSve)
#endif
#ifdef __ARM_FEATURE_SVE2
                                             | bit(CpuFeature::kSve2)
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
                                             | bit(CpuFeature::kI8mm)
#endif
#ifdef __ARM_FEATURE_BF16
                                             | bit(CpuFeature::kBf16)
#endif
    ;

}  // namespace rondo
