//! Files that are no plugin, or not one of this host: each is refused in one sentence with its path, and none of its
//! code runs.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use common::{backend_path, fixture};
use umbp_plugin_api::Role;
use umbp_plugin_api::abi::{API_MAJOR, API_MINOR};
use umbp_plugin_api::built::built;
use umbp_plugin_api::host::{LoadError, Plugin};

/// Loading fails, and the sentence holds the path and each of `words`.
fn refused(path: &Path, words: &[&str]) -> LoadError {
    let error = Plugin::load(path).expect_err("refused");
    let text = error.to_string();
    assert!(text.contains(&format!("{path:?}")), "no path in: {text}");
    assert!(!text.contains('\n') && text.len() < 600, "not one sentence: {text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    error
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder of our own")
}

fn copy_of_backend(folder: &Path) -> PathBuf {
    let path = folder.join("libcopy.so");
    fs::copy(backend_path(), &path).expect("copies");
    path
}

#[test]
fn a_plugin_tells_what_it_is_without_open() {
    let plugin = Plugin::load(&backend_path()).expect("loads");
    let info = plugin.info();
    assert_eq!((info.name.as_str(), info.version.as_str(), info.role), ("fixture", "0.0.0", Role::Storage));
    assert!(!info.mappable && info.persistent && !info.shared);
    assert_eq!(info.api, (API_MAJOR, API_MINOR));
    assert!(info.path.is_absolute());
}

#[test]
fn two_copies_of_a_plugin_are_two_libraries() {
    // abi_stable's own loaders would answer the first for both.
    let folder = folder();
    let paths = ["a.so", "b.so"].map(|name| folder.path().join(name));
    let plugins = paths.each_ref().map(|path| {
        fs::copy(backend_path(), path).expect("copies");
        Plugin::load(path).expect("loads")
    });
    assert_eq!(plugins.each_ref().map(|p| p.info().path.clone()), paths);
    let maps = fs::read_to_string("/proc/self/maps").expect("reads");
    assert!(paths.iter().all(|path| maps.contains(&*path.to_string_lossy())));
}

#[test]
fn files_that_are_no_shared_object_are_refused() {
    let folder = folder();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("writes");
        path
    };
    let whole = fs::read(backend_path()).expect("reads");
    let mut other_machine = whole.clone();
    other_machine[18] = 0x16;
    let cases: [(PathBuf, &[&str]); 7] = [
        (folder.path().join("nope.so"), &["not found", "plugin_dirs"]),
        (folder.path().to_owned(), &["not a regular file"]),
        (write("empty.so", b""), &["not a loadable shared object", "too short"]),
        (write("text.so", &b"just some words, and no program at all".repeat(9)), &["not an ELF file"]),
        (write("cut.so", &whole[..whole.len() / 2]), &["not a loadable shared object", "too short"]),
        (write("machine.so", &other_machine), &["another machine", "22"]),
        (std::env::current_exe().expect("our own program"), &["not a umbp backend plugin"]),
    ];
    for (path, words) in cases {
        refused(&path, words);
    }
}

#[test]
fn a_file_with_damaged_tables_is_refused() {
    // The names of our symbols are damaged too, so that nothing of this file ever reaches the dynamic linker.
    let mut bytes = fs::read(backend_path()).expect("reads");
    for name in [b"umbp_plugin_preflight_v1".as_slice(), b"umbp_plugin_root_v1"] {
        while let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            bytes[at] = b'x';
        }
    }
    let folder = folder();
    let path = folder.path().join("damaged.so");
    fs::write(&path, &bytes).expect("writes");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("opens");
    let end = bytes.len();
    for at in (0..64).chain((end - 4096..end).step_by(7)) {
        file.write_all_at(&[0xff], at as u64).expect("writes");
        refused(&path, &[]);
        file.write_all_at(&bytes[at..=at], at as u64).expect("writes");
    }
}

#[test]
fn a_library_that_is_no_plugin_is_refused_before_its_constructor_runs() {
    let path = built(fixture("stranger"), &[]);
    let is_mapped = || fs::read_to_string("/proc/self/maps").expect("reads").contains(&*path.to_string_lossy());
    let error = refused(&path, &["is a shared library but not a umbp backend plugin", "umbp_plugin_preflight_v1"]);
    assert!(matches!(error, LoadError::NotAPlugin { .. }));
    // Never given to the dynamic linker, so nothing of it ran, which would have run it:
    assert!(!is_mapped());
    // SAFETY: the constructor only counts, and the function only reads the count.
    let runs = unsafe {
        let library = libloading::Library::new(&path).expect("a library all the same");
        library.get::<extern "C" fn() -> u32>("umbp_stranger_runs").expect("exported")()
    };
    assert_eq!(runs, 1);
}

#[test]
fn another_major_version_is_told_with_both_versions() {
    let path = built(fixture("backend"), &["other-major"]);
    let theirs = format!("built for plugin API {}.", API_MAJOR + 1);
    let ours = format!("this host speaks {API_MAJOR}.{API_MINOR}");
    refused(&path, &[&theirs, &ours, "Rebuild it against umbp-plugin-api 1.x"]);
}

#[test]
fn another_layout_of_the_same_version_is_told_in_a_sentence() {
    let path = built(fixture("backend"), &["other-layout"]);
    let error = refused(&path, &["incompatible type layout", "rebuild it", "1.0"]);
    assert!(matches!(error, LoadError::Layout { ref detail, .. } if detail.len() > 100), "{error:?}");
}

#[test]
fn a_file_or_folder_that_others_can_write_is_refused() {
    let outer = folder();
    let inner = outer.path().join("plugins");
    fs::create_dir(&inner).expect("creates");
    let set = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).expect("sets");
    set(&inner, 0o755);
    let path = copy_of_backend(&inner);
    for (file, folder, words) in [
        (0o757, 0o755, ["mode 0757", "chmod go-w"]),
        (0o775, 0o755, ["mode 0775", "libcopy.so"]),
        (0o755, 0o777, ["mode 0777", "plugins\""]),
        (0o755, 0o1777, ["mode 1777", "plugins\""]),
        (0o755, 0o770, ["mode 0770", "plugins\""]),
    ] {
        set(&path, file);
        set(&inner, folder);
        assert!(matches!(refused(&path, &words), LoadError::Mode { .. }));
    }
    set(&inner, 0o755);
    Plugin::load(&path).expect("trusted again");
    // A link from a folder that others can write could be made to point elsewhere.
    let open = outer.path().join("open");
    fs::create_dir(&open).expect("creates");
    let link = open.join("link.so");
    symlink(&path, &link).expect("links");
    set(&open, 0o777);
    refused(&link, &["mode 0777", "open\""]);
    set(&open, 0o755);
    let plugin = Plugin::load(&link).expect("trusted");
    assert_eq!(plugin.info().path, fs::canonicalize(&path).expect("exists"));
}

#[test]
fn a_file_of_another_user_is_refused() {
    const STRANGER_UID: u32 = 54_321;
    let folder = folder();
    let path = copy_of_backend(folder.path());
    // Only root can give a file away; elsewhere the other tests of trust remain.
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(STRANGER_UID), None).expect("root may");
        let error = refused(&path, &["belongs to uid 54321", "neither root nor this process", "chown"]);
        assert!(matches!(error, LoadError::Owner { owner: STRANGER_UID, .. }));
    } else {
        assert!(chown(&path, Some(STRANGER_UID), None).is_err());
    }
}

#[test]
fn a_library_that_the_linker_refuses_is_told_in_the_linkers_words() {
    // Its own name of a needed library is changed, so that the linker finds none.
    let folder = folder();
    let path = folder.path().join("needy.so");
    let mut bytes = fs::read(backend_path()).expect("reads");
    let at = bytes.windows(10).position(|window| window == b"libc.so.6\0").expect("needs libc");
    bytes[at..at + 9].copy_from_slice(b"libq.so.6");
    fs::write(&path, bytes).expect("writes");
    refused(&path, &["cannot be loaded", "libq.so.6"]);
}
