//! Link arguments of `libhg.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=hg.map");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("hg.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhg.so.0");
    // The kernel keeps pointers to our restartable sequences: once loaded, the object must stay.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
