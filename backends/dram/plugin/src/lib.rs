//! The dram backend as a shared object: the export, and nothing else.
