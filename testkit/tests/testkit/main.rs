//! Claims about the test kit: what it says of servers, faults and networks is so.

mod network;
mod process;
mod proxy;
mod s3;
mod valkey;
