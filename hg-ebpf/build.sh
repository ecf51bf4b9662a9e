#!/bin/sh
# Builds the eBPF object: `hg-ebpf/build.sh [OUT]`, to hg-ebpf/hg.bpf.o unless OUT is given. HG_BPF_FEATURES=bpf-log
# builds one that logs every hit.
#
# Wants Debian's rustc-web and rust-web-src (core has to be built for BPF, by exactly the compiler it belongs to), a cargo,
# and bpf-linker; the last is taken from HG_BPF_LINKER or PATH, else built once into a cache folder (1 to 3 minutes) and linked to the
# libLLVM that rustc-web itself uses. Nothing else of hg needs any of this: the object is checked in.
#
# The same source gives the same bytes in every folder: paths are remapped, there is no debug information, and the lock
# file pins the crates.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/hg.bpf.o}
BPF_LINKER_VERSION=0.13.0

die() { echo "build.sh: $*" >&2; exit 2; }

rustc=${HG_BPF_RUSTC:-$(dpkg -L rustc-web 2>/dev/null | grep 'bin/rustc$' | head -n 1 || true)}
[ -x "$rustc" ] || die "no rustc-web; run: apt-get install --no-install-recommends rustc-web rust-web-src"
sources=$("$rustc" --print sysroot)/lib/rustlib/src/rust
[ -e "$sources/library/core/Cargo.toml" ] || die "no source of core; run: apt-get install --no-install-recommends rust-web-src"
command -v cargo >/dev/null || die "no cargo in PATH"

linker=${HG_BPF_LINKER:-$(command -v bpf-linker || true)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hg-bpf
if [ -z "$linker" ]; then
    linker=$cache/bin/bpf-linker
    if [ ! -x "$linker" ]; then
        llvm=$(dpkg -L libllvm22 2>/dev/null | grep 'libLLVM.so.22.1$' || true)
        [ -n "$llvm" ] || die "no libllvm22, which rustc-web brings; nothing to link bpf-linker to"
        mkdir -p "$cache/llvm/lib"
        ln -sf "$llvm" "$cache/llvm/lib/libLLVM.so"
        LLVM_PREFIX=$cache/llvm cargo install bpf-linker --version "$BPF_LINKER_VERSION" --locked --no-default-features \
            --features llvm-22 --root "$cache" >&2
    fi
fi

target=${HG_BPF_TARGET_DIR:-$here/target}
flags="-Clinker=$linker
--cfg=bpf_target_arch=\"x86_64\"
-Ctarget-cpu=v3
-Cdebuginfo=0
--remap-path-prefix=$here=/hg-ebpf
--remap-path-prefix=$(dirname "$here")/probes=/probes
--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/crates
--remap-path-prefix=$sources=/rust
--remap-path-prefix=$(readlink -f "$sources")=/rust"
CARGO_ENCODED_RUSTFLAGS=$(printf '%s' "$flags" | tr '\n' '\037')
export CARGO_ENCODED_RUSTFLAGS RUSTC="$rustc" RUSTC_BOOTSTRAP=1
unset RUSTFLAGS CARGO_TARGET_DIR RUSTC_WRAPPER || true

cd "$here"
cargo build --release --locked --target bpfel-unknown-none -Z build-std=core --target-dir "$target" \
    ${HG_BPF_FEATURES:+--features "$HG_BPF_FEATURES"} >&2
cp "$target/bpfel-unknown-none/release/hg" "$out"
if [ "$out" = "$here/hg.bpf.o" ]; then
    "$rustc" -vV >"$here/compiler.txt"
fi
