// An OpenMP that is not the one that oneDNN uses, such as a plug-in's from another compiler.
extern "C" {
__attribute__((visibility("default"))) int omp_get_max_threads() { return 1; }
__attribute__((visibility("default"))) void omp_set_num_threads(int) {}
}
