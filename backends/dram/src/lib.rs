//! Storage tier in host memory: sealed memfd segments.
