//! The remote backend as a shared object: the export, and nothing else.
