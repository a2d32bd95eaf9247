#!/usr/bin/env bash
# The rules of the house that a compiler does not check.   tests/structure_test.sh
set -u
cd "$(dirname "$0")/.."
failures=0
# report "rule" "offending lines"
report() {
  [ -n "$2" ] || return 0
  printf '%s:\n%s\n' "$1" "$2" | sed '2,$s/^/  /'
  failures=$((failures + 1))
}
sources() { find "$@" -name build -prune -o \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print 2>/dev/null; }

# ---- Includes: each folder sees itself and what stands to its left.
order="runtime modules compile optim dist"
allowed=""
for folder in $order; do
  allowed="$allowed${allowed:+|}$folder"
  report "$folder/ may include rondo/{$allowed}/ only" \
    "$(sources $folder | xargs -r grep -nE '^#include "rondo/' | grep -vE "#include \"rondo/($allowed)/" |
       grep -vE '^optim/c_api/[a-z_.]+:[0-9]+:#include "rondo/rondo_c.h"$')"
  report "$folder/ includes a file of the project by another name than \"rondo/...\"" \
    "$(sources $folder | xargs -r grep -nE '#include "' | grep -vE '#include "(rondo|absl|oneapi|llvm|nlohmann)/')"
done
report "only optim/ and what is to its right may include runtime/data/" \
  "$(sources modules compile | xargs -r grep -nE "#include \"rondo/runtime/data/")"
files=$(sources runtime/text runtime/chat) reached=""
while [ "$files" != "$reached" ]; do
  reached=$files
  files=$(echo "$reached" "$(grep -hoE '^#include "rondo/[^"]+"' $reached | sed 's|.*"rondo/||; s|"||')" | tr ' ' '\n' | sort -u)
done
report "runtime/text/, runtime/chat/ and what they include hold no tensor" "$(grep -E '^runtime/(tensor|op|autograd|device)/' <<< "$reached")"
report "examples/ may not include tests/" "$(sources examples | xargs -r grep -nE '#include "rondo/tests/')"
report "only codegen/cpu/emit_llvm* and jit/cpu/toolchain_llvm.cc may include LLVM" \
  "$(sources $order examples | grep -vE 'compile/(codegen/cpu/emit_llvm[a-z_]*|jit/cpu/toolchain_llvm)\.(cc|h)' | xargs -r grep -nE '#include [<"]llvm')"
# One header stands for oneDNN. It is no public one.
for header in Eigen oneapi nlohmann pcre2 png jpeglib; do
  report "a header may not pull in $header" \
    "$(sources $order | grep '\.h$' | grep -vxE 'runtime/onednn/onednn_library\.h' | xargs -r grep -nE "#include [<\"]$header")"
done

# ---- A folder has rooms: folders, or files at its root (a,b: together). A file includes those of its own room and of the
# rooms before it. There are no exceptions: split what two rooms need from what needs one of them.
# rooms_of FOLDER "first second third,fourth"
rooms_of() {
  local folder=$1 rooms=$2
  report "$folder/ has rooms in one order: a file may include those of its own room and of the rooms before it ($rooms)" \
    "$(sources $folder | xargs -r grep -nE "#include \"rondo/$folder/" | awk -v folder="$folder" -v rooms="$rooms" '
         function room(path) { sub("^" folder "/", "", path); sub(/[\/.].*/, "", path); return path }
         BEGIN {
           n = split(rooms, list, " ")
           for (i = 1; i <= n; ++i) { m = split(list[i], names, ","); for (j = 1; j <= m; ++j) rank[names[j]] = i }
         }
         {
           split($0, part, ":")
           header = $0; sub(/.*"rondo\//, "", header); sub(/".*/, "", header)
           from = room(part[1]); to = room(header)
           if (!(from in rank)) print part[1] ": the order does not name its room"
           else if (!(to in rank)) print part[1] ":" part[2] ": the order does not name the room of " header
           else if (rank[to] > rank[from]) print part[1] ":" part[2] ": " header
         }')"
}
rooms_of runtime "base io device tensor op random autograd ops dispatch onednn cpu cuda devices checkpoint text chat image data"
rooms_of modules "module,state_dict,mode_scope,seam_plan,eager_scope layers generation transformers lora vision pretrained"
rooms_of compile "options,region_report,cache,log stages ir capture transform codegen target jit plan exec region compile,controls,warm_up,compile_for,explain,explain_text,explain_html"
rooms_of dist "transport kernels groups ddp launcher rondo,rondorun"
report "files include each other in a circle, where NAME.h and NAME.cc are one: part what both need from them" \
  "$(sources $order | xargs -r grep -E '^#include "rondo/' | sed -E 's;\.(cc|h):#include "rondo/; ;; s;\.h".*;;' |
       awk '$1 != $2' | tsort 2>&1 >/dev/null)"
report "absl's hash tables break when memory runs short as they grow: use HashMap and HashSet (runtime/base/hash_map.h)" \
  "$(sources $order examples | grep -v '^runtime/base/hash_map\.h$' | xargs -r grep -nE '(flat|node)_hash_(map|set)')"
report "std::filesystem's iterators end the process when memory runs short: use io::list_folder() (runtime/io/atomic_file.h)" \
  "$(sources $order examples | xargs -r grep -n 'directory_iterator')"
report "absl::StrFormat() ends the process when memory runs short: use formatted() (runtime/base/format.h)" \
  "$(sources $order examples | xargs -r grep -nE 'absl::Str(Append)?Format')"

# ---- Devices: what depends on one stands in its backend.
report "only the tables of devices may name a backend; use the device of an operand (or kCPU for host memory)" \
  "$(sources $order examples | grep -vE '^(runtime|compile/jit)/(cpu|cuda)/' | xargs -r grep -nE 'Backend::k(CPU|CUDA|Fake)' | grep -vE '^runtime/(device/(device\.h|host_backend\.cc)|devices\.cc):')"
report "runtime/ops/ holds definitions: it may not include a backend" \
  "$(sources runtime/ops | xargs -r grep -nE '#include "rondo/runtime/(cpu|cuda)/')"
report "runtime/ops/ names no device but the CPU: the kernels of another are rows of its own table (runtime/cuda/kernels.cc)" \
  "$(sources runtime/ops | xargs -r grep -nE '\bcuda::')"
report "kernels are called by runtime/dispatch/dispatch.cc, compile/exec/ and a target's launch functions (compile/jit/*/launch.cc); elsewhere use run_kernel(), an Executor or a TableLaunch" \
  "$(sources $order examples | grep -vE '^runtime/dispatch/dispatch\.cc$|^compile/exec/|^compile/jit/[a-z]+/launch\.cc$' |
     xargs -r grep -nE '[>.]host\.kernel|(entry_of|own_kernels)\([^;]*\)\.kernel|\bentry(_|\([a-z0-9_]*\))?\((operands|moved|call|args|[a-z_]+\.data\(\))|\brun\(addresses')"

report "an optimizer step is launches: host code on a stream is enqueued by optim/host_code.h only, which refuses it where kernels are generated" \
  "$(sources optim | grep -vE '^optim/host_code\.h$' | xargs -r grep -nE '(^|[^_a-z])enqueue\(|[.>]enqueue\(')"

# A device's kernels are found in the file of the same name in the other device's folder. What only one of them needs is
# listed in its README behind "Only here:".
for folders in "cpu cuda" "cuda cpu"; do
  read -r folder other <<< "$folders"
  only=$(sed -n 's/.*Only here: //p' runtime/$folder/README.md)
  for name in $(ls runtime/$folder/*.cc runtime/$folder/*.h | sed 's|.*/||; s|\..*||' | sort -u); do
    listed=no twin=no
    [[ $only == *"\`$name\`"* ]] && listed=yes
    compgen -G "runtime/$other/$name.*" > /dev/null && twin=yes
    [ $listed != $twin ] || report "runtime/$folder/ and runtime/$other/ have the same file names, but for those that their READMEs list (\"Only here:\")" \
      "runtime/$folder/$name: twin in runtime/$other/: $twin; listed in runtime/$folder/README.md: $listed"
  done
  for name in $(grep -o '`[a-z_]*`' <<< "$only" | tr -d '`'); do
    compgen -G "runtime/$folder/$name.*" > /dev/null || report "runtime/$folder/README.md lists a file that is not there" "$name"
  done
done
report "a kernel is declared in the list of its device only: runtime/ops/kernels.h for the CPU, kernels.h of another's folder" \
  "$(sources runtime | grep '\.h$' | grep -vE '^runtime/(ops|cuda)/kernels\.h$' | xargs -r grep -nE '[a-z]_kernel\(const KernelContext& [a-z]+\);' | grep -v ' run_kernel(')"
report "runtime/cuda/kernels.cc has no row for a kernel of kernels.h" \
  "$(comm -23 <(grep -oE '\b[a-z0-9_]+_kernel\(const' runtime/cuda/kernels.h | sed 's/(const//' | sort) \
       <(grep -oE '&[a-z0-9_]+_kernel\b' runtime/cuda/kernels.cc | tr -d '&' | sort))"

# Two definitions of a type under one name: the linker keeps one destructor for both, and it reads beyond the smaller one.
report "a type has the name of another type in its namespace" \
  "$(sources $order | xargs -r awk '
       FNR == 1 { space = ""; local = 0 }
       /^namespace [a-z]/ { space = $2 }
       /^namespace \{/ { local = 1 }
       /^}  \/\/ namespace$/ { local = 0 }
       !local { sub(/^template <[^{]*> /, "") }
       !local && /^(struct|class|union|enum class) [A-Za-z0-9_]+( final)?( :.*)? ?\{/ {
         name = space "::" ($1 == "enum" ? $3 : $2)
         if (name in first) print FILENAME ":" FNR ": " name ", also in " first[name]
         first[name] = FILENAME
       }')"

# ---- Passes and regions know kinds and specs, never the names of ops and modules.
ops=$(sed -nE 's/^ *\.name = "([a-z0-9_]+)".*/\1/p; s/^ *"([a-z0-9_]+)", \{.*/\1/p; s/.*comparison<.*>\("([a-z_]+)"\).*/\1/p' \
  runtime/ops/*.cc | sort -u | paste -sd'|')
constants=$(sed -nE 's/^constexpr OpDef (k[A-Z][A-Za-z0-9]*) .*/\1/p' runtime/ops/*.cc | sort -u | paste -sd'|')
modules=$(grep -hoE '\b(struct|class) [A-Z][A-Za-z0-9]* : (public )?(nn::)?Module(<|Base)' modules/*.h | awk '{print $2}' | sort -u | paste -sd'|')
[ -n "$ops" ] && [ -n "$constants" ] && [ -n "$modules" ] || report "structure_test.sh" "cannot find the names of ops or modules"
generic=$(ls compile/transform/*.cc compile/transform/*.h compile/region/region.*)
report "a pass or region names an op" \
  "$(grep -nP "\"($ops)\"|(?<!OpKind::)\b($constants)\b|find_op|op(_id)?\(\*?.*\) *==|->name *==|\.name *==|strcmp" $generic)"
report "a pass or region names a module" "$(grep -nE "\b(nn::)?($modules)\b" $generic)"

# Ops that are never recorded have no entry: nothing looks for them, and the sweeps cannot call them.
report "an op is missing from the list at the end of its file" \
  "$(for file in runtime/ops/*.cc; do
       comm -23 <(sed -nE 's/^constexpr OpDef (k[A-Z][A-Za-z0-9]*) .*/\1/p' $file | sort) \
                <(sed -n '/^constexpr OpList/,/;/p' $file | grep -oE '&k[A-Za-z0-9]+' | tr -d '&' | sort) | sed "s|^|$file: |"
     done | grep -vE ': k(Arange|Draw|ToDevice)$')"

# Folders whose tests are in two programs (rondo_test.cmake).
divided=$(sed -nE 's/^\| ([a-z_]+) \| `[^`]*\.cc.*/\1/p' tests/TIERS.md | sort -u | paste -sd'|')
report "use rondo_test_sources() and rondo_needs(), which know both programs of a folder's tests" \
  "$(grep -nE "(target_sources|add_dependencies)\(test_($divided) " tests/CMakeLists.txt)"

# ---- Sizes and guides
# Longer for a reason: a script that must be one file on a bare machine, and a table that is made.
report "files of more than 600 lines" \
  "$(find . \( -name build -o -name .git \) -prune -o -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.py' \
     -o -name '*.sh' -o -name '*.cmake' -o -name '*.txt' -o -name '*.md' \) -print | grep -vxE '\./tests/(gpu/(run\.sh|STATIC\.md)|reference/.*\.txt)' |
     xargs wc -l | awk '$1 > 600 && $2 != "total"')"
for folder in $order examples tests; do
  [ -f $folder/README.md ] || report "no README" "$folder/README.md"
done
# A page, in lines that one likes to read. Code may be longer, and the list that is read by this script.
report "a README of more than 100 lines, or with a line of more than 120 columns that is no table" \
  "$(find $order examples tests/README.md tests/mutants -name '*.md' ! -name SURVIVORS.md ! -name cudnn_plans.md | xargs awk '
       length > 120 && !/^\||^    |Only here:/ { print FILENAME ":" FNR ": " length " columns" }
       FNR == 101 { print FILENAME ": more than 100 lines" }')"
# "train.cc" is a user's program, the others are headers of other projects.
named() { sources $order examples | xargs -r grep -hoE '//.*' | grep -v '#include' | grep -oP '(?<![\w./-])([a-z_0-9]+/)*[a-z_0-9]+\.(h|cc)\b(?![./\w])' | sort -u; }
report "a comment names a file that is not there" \
  "$(comm -23 <(named | grep -vxE 'train\.cc|(cuda|nccl|jpeglib)\.h|tensorflow/.*') \
       <(sources . | sed 's|^\./||' | awk -F/ '{ path = $NF; print path; for (i = NF - 1; i > 0; --i) { path = $i "/" path; print path } }' | sort -u))"
report "a script that names its interpreter is executable" \
  "$(find . \( -name build -o -name .git \) -prune -o -type f \( -name '*.py' -o -name '*.sh' \) ! -perm -u+x -exec grep -lm1 '^#!' {} +)"
report "no static constructors that register ops" "$(sources runtime | xargs -r grep -nE 'REGISTER_|static .*[Rr]egistrar')"
report "the library may not print" \
  "$(sources $order | xargs -r grep -nE 'std::(cout|cerr)|[^n]printf\(' | grep -v snprintf)"
# A library inside somebody's program. Three places are allowed: warnings of the compiler go to stderr unless the program has
# set a sink (compile/log.h), oneDNN is told to use one thread, as before afterwards, and a thread's signals wait for some of its
# kernels (both in runtime/onednn/onednn.h). dist/ has a launcher, which is a program.
report "a library folder may not print, end its process, or change signals and settings of its process" \
  "$(sources runtime modules compile optim |
     xargs -r grep -nE '\b(exit|_exit|_Exit|quick_exit|abort|terminate|set_terminate|atexit|raise|kill|signal|sigaction|sigprocmask|pthread_sigmask|setlocale|chdir|umask|setenv|putenv|fesetround|setrlimit|omp_set_num_threads)\(|\b(puts|fputs|putchar|fputc|fwrite|perror)\(|\bstd(out|err)\b|std::clog|<(csignal|signal\.h|iostream)>' |
     grep -vE '^[^:]*:[0-9]+: *(//|/?\*)' | grep -vE '^compile/log\.cc:.*stderr|^runtime/onednn/onednn\.(cc|h):.*(omp_set_num_threads|pthread_sigmask|<csignal>)|b_\.Create')"
# Exceptions of our own types only: these throw others.
report "use std::error_code, std::from_chars or absl::SimpleAto*: this throws an exception that is not ours" \
  "$(sources runtime modules compile optim |
     xargs -r grep -nE 'directory_iterator\([^,()]*\)|\bstd::sto(i|l|ll|ul|ull|f|d|ld)\(|std::regex\b')"
# Where the cache lies is the user's choice, by the XDG base directory specification. Torchrun's variables are read where a
# program asks for them (dist/transport/environment.h), and set by the launcher. OMP_NUM_THREADS is what programs limit all libraries by.
report "only RONDO_* may be read from the environment" \
  "$(sources $order | xargs -r grep -nE '\bgetenv\(|environ\b' | grep -vE 'getenv\("RONDO_|runtime/io/disk_cache.cc:.*getenv\("(XDG_CACHE_HOME|HOME)"' |
     grep -vE '^dist/(transport/environment|launcher/guard|launcher/launcher)\.cc:|^runtime/base/parallel\.cc:.*getenv\("OMP_NUM_THREADS"')"

if [ $failures -gt 0 ]; then
  echo "$failures rules are broken"
  exit 1
fi
echo "structure: all rules hold"
