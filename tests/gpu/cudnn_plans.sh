#!/usr/bin/env bash
# Writes runtime/cuda/cudnn_plans.md: the plans that cuDNN makes for the convolutions and the attention of the models,
# without a GPU. Takes minutes. Needs cuDNN 9.11 or newer: a toolkit's, Debian's, or RONDO_CUDA_PATH with a Python prefix
# that has nvidia-cudnn-cu13 and nvidia-cuda-nvrtc.
#
# A driver's libcuda.so.1 is used where there is one. Where there is none, cuDNN makes the plans of convolutions, and none
# of attention: it loads their code when it makes them. plan_driver.cc stands in for the driver then, and says that the
# code could be loaded.
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake --preset release >/dev/null
cmake --build --preset release -j"$(nproc)" --target cudnn_plans
driver="and this machine's driver"
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  driver='and tests/gpu/plan_driver.cc in place of a driver'
  export LD_LIBRARY_PATH=$PWD/build/release/plan_driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
build/release/bin/cudnn_plans "${1:-runtime/cuda/cudnn_plans.md}" "$driver"
