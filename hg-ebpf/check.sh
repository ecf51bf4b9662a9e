#!/bin/sh
# Rebuilds the eBPF object and compares it with the one that is checked in: `hg-ebpf/check.sh [OUT]`.
#
# exit 0  the same bytes, by the recorded compiler
# exit 1  other bytes by the recorded compiler: run build.sh and check the object in
# exit 2  it cannot be built here (build.sh says what is missing)
# exit 3  built by another compiler, so bytes prove nothing: OUT holds the new object; run the tests of hg-top on it with
#         HG_BPF_OBJECT=OUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/target/hg.bpf.o}
mkdir -p "$(dirname "$out")"

"$here/build.sh" "$out" || exit 2
rustc=${HG_BPF_RUSTC:-$(dpkg -L rustc-web 2>/dev/null | grep 'bin/rustc$' | head -n 1)}
if [ "$("$rustc" -vV)" != "$(cat "$here/compiler.txt")" ]; then
    echo "check.sh: another compiler than the recorded one; test $out with HG_BPF_OBJECT=$out" >&2
    echo "recorded:" >&2
    sed 's/^/    /' "$here/compiler.txt" >&2
    echo "here:" >&2
    "$rustc" -vV | sed 's/^/    /' >&2
    exit 3
fi
if ! cmp "$out" "$here/hg.bpf.o"; then
    echo "check.sh: hg.bpf.o is not what its source gives; run hg-ebpf/build.sh and check the result in" >&2
    exit 1
fi
echo "check.sh: hg.bpf.o is what its source gives"
