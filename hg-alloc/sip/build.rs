//! Link arguments of `libhg_sip.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The kernel keeps pointers to our restartable sequences, and the server pointers to our functions: the object must stay.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
