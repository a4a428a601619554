//! The TOML schema of umbpd: raw text in, checked values out.
