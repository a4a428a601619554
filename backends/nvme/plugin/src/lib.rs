//! The nvme backend as a shared object: the export, and nothing else.
