//! Claims about the engine, on small deployments with hand-made completions.

mod admission;
mod ask;
mod chain;
mod clear;
mod deletes;
mod faults;
mod leases;
mod lies;
mod limits;
mod orphans;
mod others;
mod policies;
mod pressure;
mod rig;
mod shared;
mod strays;
mod tenants;
mod tiers;
mod writes;
