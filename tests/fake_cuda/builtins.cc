// Stands for libnvrtc-builtins.so: the fake NVRTC opens it by its name and asks it for nothing.
extern "C" __attribute__((visibility("default"))) int fake_nvrtc_builtins() { return 1; }
