//! Where the programs are, and what a test does without them.
//!
//! `cargo xtask test-remote` fetches both and names them; a test that is run by itself takes the same variables.

use std::path::PathBuf;

/// Names a `valkey-server` (or `redis-server`) program.
pub const VALKEY: &str = "UMBP_TEST_VALKEY";
/// Names a `weed` program (SeaweedFS).
pub const WEED: &str = "UMBP_TEST_WEED";
/// Where this is set (to anything but "0"), a skipped test is a failure.
pub const REQUIRE: &str = "UMBP_REQUIRE_REMOTE_TESTS";

/// The programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// The program of [`VALKEY`].
    pub valkey: PathBuf,
    /// The program of [`WEED`].
    pub weed: PathBuf,
}

/// The programs, or `None` where one is not named: then the test says why it ends and ends. With [`REQUIRE`] set it
/// panics instead.
pub fn servers() -> Option<Servers> {
    or_skip(find(|name| std::env::var_os(name).map(PathBuf::from)), std::env::var_os(REQUIRE).is_some_and(|v| v != "0"))
}

/// Both programs, as the variables name them.
fn find(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Servers, String> {
    let program = |name: &str| {
        let path = variable(name).filter(|path| !path.as_os_str().is_empty());
        let path = path.ok_or_else(|| format!("{name} names no program; `cargo xtask test-remote` sets it"))?;
        if path.is_file() { Ok(path) } else { Err(format!("{name} is {}, which is no file", path.display())) }
    };
    Ok(Servers { valkey: program(VALKEY)?, weed: program(WEED)? })
}

/// What was made; without it, one line that says why, or a panic where a skip is a failure.
pub(crate) fn or_skip<T>(made: Result<T, String>, required: bool) -> Option<T> {
    if let Err(reason) = &made {
        assert!(!required, "a skip is a failure here, and {reason}");
        println!("skipped: {reason}");
    }
    made.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_named_or_not_there_is_told_by_its_variable() {
        let here = std::env::current_exe().unwrap();
        let both = |name: &str| [VALKEY, WEED].contains(&name).then(|| here.clone());
        assert_eq!(find(both), Ok(Servers { valkey: here.clone(), weed: here.clone() }));
        let unnamed = find(|name: &str| (name == VALKEY).then(|| here.clone())).unwrap_err();
        assert!(unnamed.starts_with("UMBP_TEST_WEED names no program"), "{unnamed}");
        let empty = find(|name: &str| Some(if name == VALKEY { PathBuf::new() } else { here.clone() })).unwrap_err();
        assert!(empty.starts_with("UMBP_TEST_VALKEY names no program"), "{empty}");
        let gone = find(|_: &str| Some(PathBuf::from("/nowhere/valkey-server"))).unwrap_err();
        assert_eq!(gone, "UMBP_TEST_VALKEY is /nowhere/valkey-server, which is no file");
    }

    #[test]
    fn a_skip_is_a_word_or_a_failure() {
        assert_eq!(or_skip::<()>(Err("it is not there".to_owned()), false), None);
        assert_eq!(or_skip(Ok(1), true), Some(1));
        let failed = std::panic::catch_unwind(|| or_skip::<()>(Err("it is not there".to_owned()), true));
        let text = *failed.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(text, "a skip is a failure here, and it is not there");
    }
}
