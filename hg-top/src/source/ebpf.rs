//! The eBPF source: probe hits as the kernel counted them.
