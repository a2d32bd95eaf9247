// Libraries under oneDNN's name: of a version that Rondo does not know (MAJOR, MINOR), or without its functions.
extern "C" {
struct Version {
  int major, minor, patch;
};
__attribute__((visibility("default"))) const Version* dnnl_version() {
  static const Version version = {MAJOR, MINOR, 0};
  return &version;
}
}
