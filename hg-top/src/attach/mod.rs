//! From a process to the probe sites it carries, and from there to attached programs.
