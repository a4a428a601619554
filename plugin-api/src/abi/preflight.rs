//! The frozen static that is read first, so that a file that is no plugin, a plugin of another major version and one
//! of another layout are told apart before any of their code runs.

/// Name of the preflight static in a plugin.
pub const PREFLIGHT_SYMBOL: &str = "umbp_plugin_preflight_v1";

/// Name of the root module's header in a plugin.
pub const ROOT_SYMBOL: &str = "umbp_plugin_root_v1";

/// First bytes of the preflight static.
pub const MAGIC: [u8; 8] = *b"UMBPPLUG";

/// Flags in these bits must be understood by the host, or it refuses the plugin; the others are hints.
pub const FLAGS_REQUIRED: u32 = 0x0000_ffff;

/// Required flags that this version understands: none exist yet.
pub const FLAGS_KNOWN: u32 = 0;

/// Major version of the plugin API: another one is another ABI. The major version of this crate.
pub const API_MAJOR: u32 =
    number(env!("CARGO_PKG_VERSION_MAJOR")) + if cfg!(feature = "__other_major") { 1 } else { 0 };

/// Minor version of the plugin API: a larger one knows more. The minor version of this crate.
pub const API_MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR")) + if cfg!(feature = "__grown") { 1 } else { 0 };

const fn number(digits: &str) -> u32 {
    let digits = digits.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// The preflight static: 32 bytes, little-endian as the machine is. Frozen; `size` may grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preflight {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`API_MAJOR`] of the plugin.
    pub api_major: u32,
    /// [`API_MINOR`] of the plugin.
    pub api_minor: u32,
    /// Bytes of this struct, as the plugin knows it.
    pub size: u32,
    /// See [`FLAGS_REQUIRED`].
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

const _: () = assert!(size_of::<Preflight>() == 32);

impl Preflight {
    /// What a plugin built against this version exports.
    pub const CURRENT: Self = Self {
        magic: MAGIC,
        api_major: API_MAJOR,
        api_minor: API_MINOR,
        size: size_of::<Self>() as u32,
        flags: FLAGS_KNOWN,
        reserved: [0; 2],
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p01_the_preflight_record_never_changes() {
        let record = Preflight { api_major: 1, api_minor: 2, flags: 3, ..Preflight::CURRENT };
        // SAFETY: integers without padding.
        let bytes: [u8; 32] = unsafe { std::mem::transmute(record) };
        let words: Vec<u32> =
            bytes[8..].chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().expect("4"))).collect();
        assert_eq!((&bytes[..8], &words[..]), (b"UMBPPLUG".as_slice(), [1, 2, 32, 3, 0, 0].as_slice()));
        assert_eq!([PREFLIGHT_SYMBOL, ROOT_SYMBOL], ["umbp_plugin_preflight_v1", "umbp_plugin_root_v1"]);
    }
}
