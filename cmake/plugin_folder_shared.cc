// Where librondo looks for the code generator's plug-in (compile/jit/cpu/toolchain.cc).
extern "C" {
extern const char rondo_plugin_folder[] __attribute__((visibility("hidden")));
}
const char rondo_plugin_folder[] = "$ORIGIN/rondo";
