//! The engine side: attach, leases, copies.
