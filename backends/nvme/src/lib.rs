//! Storage tier on a local disk through io_uring.
