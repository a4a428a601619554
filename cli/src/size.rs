//! Arguments with units, read as the config reads them.

/// A size such as `4KiB`, in bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    umbp_config::units::parse_size(text).map_err(|(problem, remedy)| format!("{problem}; {remedy}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_carry_a_unit() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(super::parse(text).ok(), expected, "{text}");
        check("4KiB", Some(4096));
        check("64MiB", Some(64 << 20));
        check("4096B", Some(4096));
        check("4096", None);
        check("4KB", None);
        check("-1KiB", None);
        check("", None);
    }
}
