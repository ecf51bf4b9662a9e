#!/bin/sh
# Installs the C library below a prefix: install.sh PREFIX [BUILD]. BUILD is the folder that cargo built it in, target/release
# unless said otherwise. DESTDIR is put before the prefix, as packagers want it.
set -eu
[ "$#" = 1 ] || [ "$#" = 2 ] || { echo "usage: install.sh PREFIX [BUILD]" >&2; exit 2; }
here=$(dirname "$(realpath "$0")")
prefix=$1
build=${2:-$here/../../target/release}
to=${DESTDIR:-}$prefix
version=$(sed -n 's/^#define HG_VERSION "\(.*\)"$/\1/p' "$here/include/hg.h")
for library in libhg.so libhg.a; do
    [ -e "$build/$library" ] || { echo "install.sh: $build/$library is not there: cargo build --release -p hg-capi" >&2; exit 1; }
done
mkdir -p "$to/lib/pkgconfig" "$to/include"
install -m 755 "$build/libhg.so" "$to/lib/libhg.so.$version"
ln -sf "libhg.so.$version" "$to/lib/libhg.so.0"
ln -sf libhg.so.0 "$to/lib/libhg.so"
# What a program links in has no versions: shared objects of others would have to declare them.
nm --defined-only "$build/libhg.a" 2>/dev/null | sed -n 's/^[0-9a-f]* T \(hg_[a-z_]*\)@@.*$/\1@@HG_0 \1/p' >"$to/lib/libhg.names"
objcopy --redefine-syms="$to/lib/libhg.names" "$build/libhg.a" "$to/lib/libhg.a"
chmod 644 "$to/lib/libhg.a"
rm "$to/lib/libhg.names"
install -m 644 "$here/include/hg.h" "$to/include/hg.h"
sed -e "s|@PREFIX@|$prefix|" -e 's|@LIBDIR@|${prefix}/lib|' -e 's|@INCLUDEDIR@|${prefix}/include|' -e "s|@VERSION@|$version|" \
    "$here/hg.pc.in" >"$to/lib/pkgconfig/hg.pc"
