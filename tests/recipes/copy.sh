# What the recipes share: a copy of the sources in which a recipe is followed. Sourced with $1, a folder in which the tests
# are built by Ninja. The copy compiles the files that a recipe changes, as the build compiles them, and links everything
# else from the build.
#   start "an op" runtime tests        copies these folders to $tree; the others are links
#   insert FILE TEXT <<< ADDED         puts standard input in front of the line that begins with TEXT
#   changes FILE...                    fails unless exactly these differ from the sources, or are new
#   compile FILE [LIKE]                as the build compiles it, or the file LIKE
#   objects_of FILE...                 compiles the units with these files, once each; prints their NAMEs
#   link PROGRAM NAME...               PROGRAM with the objects of NAME.cc in front of the archives, which leaves theirs out
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
command -v ninja >/dev/null && [ -f "$build/build.ninja" ] || { echo "skipped: $build was not made for Ninja"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/include/rondo
fail() { echo "recipe of $recipe: $*"; exit 1; }

start() {
  recipe=$1 include=$(sed -n 's/^RONDO_INCLUDE_FOLDER:[A-Z]*=//p' "$build/CMakeCache.txt")
  shift
  folders=$*
  mkdir -p "$tree" "$work/objects"
  for folder; do cp -r "$source/$folder" "$tree"; done
  for entry in "$include"/rondo/*; do
    [ -e "$tree/${entry##*/}" ] || ln -s "$(readlink -f "$entry")" "$tree"
  done
  units=$(sed -n 's/^RONDO_UNITY_FOLDER:[A-Z]*=//p' "$build/CMakeCache.txt")
}
insert() {
  cat >"$work/text"
  awk -v text="$2" -v added="$work/text" 'index($0, text) == 1 && !done { while ((getline line <added) > 0) print line; done = 1 }
    { print } END { exit !done }' "$tree/$1" >"$work/new" || fail "no line of $1 begins with '$2'"
  cp "$work/new" "$tree/$1"
}
changes() {
  local changed
  changed=$(for folder in $folders; do diff -rq "$source/$folder" "$tree/$folder" || true; done |
    sed -E "s|^Files $source/([^ ]*) .*|\1|; s|^Only in $tree/([^:]*): (.*)|\1/\2|" | sort)
  [ "$changed" = "$(printf '%s\n' "$@" | sort)" ] || fail "it takes $#  files ($*), not: $changed"
}
# says README WHERE NAME...: the paragraphs behind the line with WHERE name each of these.
says() {
  local readme=$1 where=$2 text
  shift 2
  text=$(grep -A 6 -F -- "$where" "$source/$readme") || fail "$readme does not say '$where'"
  for name; do grep -qF -- "$name" <<<"$text" || fail "$readme does not name $name"; done
}
compile() {
  local command compiled copied like=${2:-$1} name
  name=$(basename "$1" .cc)
  commands=${commands:-$(ninja -C "$build" -t commands bin/test_runtime bin/test_modules bin/test_compile)} || fail "no test programs in the build"
  # The file, or the unit that it is compiled in (cmake/unity.cmake), with the copy's files.
  compiled=$(grep -lsF "\"rondo/$like\"" "$units"/*.cc | grep -xFf <(grep -oE ' -c [^ ]+' <<<"$commands" | cut -c 5-) || echo "$source/$like")
  copied=$tree/$1
  command=$(grep -F -- " -c $compiled" <<<"$commands") || fail "the build does not compile $like"
  # A unit names its files as "rondo/...": those of the include folder, which is the copy's. Precompiled headers are not.
  [ "$compiled" = "$source/$like" ] || [ "$like" != "$1" ] || copied=$compiled
  sed -E "s| -I$include | -I$work/include |; s| -MD -MT [^ ]+ -MF [^ ]+||; s| -include [^ ]+/precompiled/[^ ]+||
          s| -o [^ ]+| -o $work/objects/$name.o|; s| -c $compiled| -c $copied|" <<<"$command" >"$work/compile_$name"
  (cd "$build" && sh -e "$work/compile_$name") || fail "$1 does not compile"
}
# objects_of FILE...: compiles all units that have these files, once each, and prints the names of their objects.
objects_of() {
  local file unit seen=""
  commands=$(ninja -C "$build" -t commands bin/test_runtime bin/test_modules bin/test_compile)
  for file; do
    unit=$(grep -lsF "\"rondo/$file\"" "$units"/*.cc | grep -xFf <(grep -oE ' -c [^ ]+' <<<"$commands" | cut -c 5-) || echo "$file")
    case $seen in *" $unit "*) continue ;; esac
    seen+=" $unit "
    compile "$file" >&2
    basename "$file" .cc
  done
}
link() {
  local program=$1 objects="" command object
  shift
  for object; do objects+=" $work/objects/$object.o"; done
  command=$(ninja -C "$build" -t commands -s "bin/$program" | tail -n 1 | sed 's/ && /\n/g' | grep -- " -o bin/$program ")
  (cd "$build" && eval "${command/ -o bin\/$program / -o $work/$program $objects }") || fail "$program does not link"
}
