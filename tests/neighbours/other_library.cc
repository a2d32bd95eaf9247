// Two libraries under oneDNN's name: one of a version that there is not (VERSION=9), one without its functions.
extern "C" {
struct Version {
  int major, minor, patch;
};
__attribute__((visibility("default"))) const Version* dnnl_version() {
  static const Version version = {VERSION, 0, 0};
  return &version;
}
}
