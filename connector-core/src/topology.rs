//! The ranks of an engine.
