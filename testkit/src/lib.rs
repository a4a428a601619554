//! Real servers for tests, and what goes wrong between them and a client. A dependency of tests alone.
//!
//! Whatever cannot be set up panics with the reason: a test has nothing better to do. Servers are processes of a
//! folder of their own, on loopback, and end with what started them, however that ends. Nothing here knows a client
//! library: set-up, and looks at what is stored, go by a few lines of each protocol.
//!
//! Modules in reading order: [`wait`] (asking until something is so), [`ports`] (which no other test takes),
//! [`process`] (a child that dies with this process), [`servers`] (where the programs are, and what to do without),
//! [`resp`] and [`http`] (enough of both), [`valkey`] (one server, a replica, a sentinel), [`cluster`], [`s3`]
//! (SeaweedFS), [`proxy`] (faults on the way), [`network`] (two hosts and a cable).
//!
//! ```no_run
//! use umbp_testkit::{proxy::Proxy, servers::servers, valkey::Valkey};
//!
//! let Some(servers) = servers() else { return };
//! let valkey = Valkey::single(&servers, &["maxmemory 64mb"]);
//! let proxy = Proxy::to(&valkey.address());
//! // A client connects to `proxy.address()` ...
//! proxy.cut_after(umbp_testkit::proxy::Way::Back, 1000);
//! assert_eq!(valkey.ask(&["DBSIZE"]).integer(), 0);
//! ```

pub mod cluster;
pub mod http;
pub mod network;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod resp;
pub mod s3;
pub mod servers;
pub mod valkey;
pub mod wait;
