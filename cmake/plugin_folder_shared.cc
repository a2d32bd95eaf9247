// Where librondo looks for the code generator's plug-in (compile/jit/toolchain.cc).
extern "C" __attribute__((visibility("hidden"))) extern const char rondo_plugin_folder[];
const char rondo_plugin_folder[] = "$ORIGIN/rondo";
