//! The config as its users meet it: files, variables and flags in; values or reports out.

mod common;
mod errors;
mod memory;
mod robust;
mod values;
