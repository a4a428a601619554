//! The S3 engine against a real server, and against doubles where no server can be made to answer so.

mod answers;
mod double;
mod hangs;
mod objects;
mod tls;
mod weed;
