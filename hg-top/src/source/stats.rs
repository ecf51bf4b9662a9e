//! Reads the stats pages of a process.
