//! File systems and devices of every kind: a full one, one without O_DIRECT, one with 4 KiB sectors. They are mounted,
//! which takes root; elsewhere the tests skip themselves and say so.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, copy_of, disk_bytes, folder};

const CAPACITY: u64 = 32 * MIB;

/// A mounted file system, unmounted when dropped.
struct Mount {
    place: TempDir,
    device: Option<String>,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    } else {
        Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr).trim()))
    }
}

impl Mount {
    fn of(kind: &str, options: &str) -> Option<Self> {
        let place = folder();
        let path = place.path().to_str().unwrap();
        or_skip(run("mount", &["-t", kind, "-o", options, "none", path]).map(drop))?;
        Some(Self { place, device: None })
    }

    /// ext4 on a loop device with sectors of 4 KiB.
    fn with_large_sectors(image: &Path) -> Option<Self> {
        std::fs::File::create(image).unwrap().set_len(4 * CAPACITY).unwrap();
        let image = image.to_str().unwrap();
        let device = or_skip(run("losetup", &["--find", "--show", "--sector-size", "4096", image]))?;
        let mount = Self { place: folder(), device: Some(device.clone()) };
        run("mkfs.ext4", &["-q", &device]).unwrap();
        run("mount", &[&device, mount.place.path().to_str().unwrap()]).unwrap();
        Some(mount)
    }

    /// A folder in it, and its name.
    fn blocks(&self) -> PathBuf {
        self.place.path().join("blocks")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a ring lets go of its files a moment after it was closed.
        let _ = run("umount", &["--lazy", self.place.path().to_str().unwrap()]);
        if let Some(device) = &self.device {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}

fn or_skip<T>(made: Result<T, String>) -> Option<T> {
    if let Err(reason) = &made {
        assert!(std::env::var_os("UMBP_REQUIRE_ROOT_TESTS").is_none(), "UMBP_REQUIRE_ROOT_TESTS is set, but {reason}");
        println!("skipped: {reason}");
    }
    made.ok()
}

/// Warnings that hold `words`; anything else that is warned of is wrong.
fn warned(tier: &Tier, words: &[&str]) {
    let log = tier.told.log.lock().unwrap();
    let warnings: Vec<&String> = log.iter().filter(|(level, _)| *level <= Level::Warn).map(|(_, text)| text).collect();
    // A container may refuse what these tests are not about.
    let machine = |text: &str| text.contains("RLIMIT_MEMLOCK") || text.contains("io_uring is");
    for word in words {
        assert_eq!(warnings.iter().filter(|text| text.contains(word)).count(), 1, "{word}: {warnings:?}");
    }
    assert!(warnings.iter().all(|text| machine(text) || words.iter().any(|word| text.contains(word))), "{warnings:?}");
}

/// Stores, loads, deletes, and finds all again in the next life.
fn works(tier: Tier, path: &Path) {
    let lengths = [61, 4096, 73_728, 640_256, 1_124_352, 2_561_024];
    let blocks: Vec<Stored> = (0..).zip(lengths).map(|(number, length)| tier.put(number, length).unwrap()).collect();
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())));
    assert_eq!(tier.delete(&blocks[2]), Status::OK);
    assert_eq!(tier.nvme.stats().medium_bytes, disk_bytes(path));
    tier.shutdown();
    let (tier, found) = Tier::recovered(path, CAPACITY, "");
    assert_eq!(found.len(), 5);
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn f1_f9_without_o_direct_the_page_cache_serves_with_one_warning() {
    // ramfs has neither O_DIRECT nor holes.
    let Some(mount) = Mount::of("ramfs", "mode=0700") else { return };
    let tier = Tier::fresh(&mount.blocks(), CAPACITY, "");
    assert!(tier.opened.report.contains("page cache, since"), "{}", tier.opened.report);
    assert_eq!((tier.told.counted("fallback.direct"), tier.told.counted("fallback.no_punch")), (1, 0));
    // What a file system in memory reports as free is nothing.
    let free = if tier.told.counted("fallback.small_disk") == 1 { "are free" } else { "the page cache" };
    warned(&tier, &["the page cache is used", free]);
    let blocks: Vec<Stored> = (0..20).map(|number| tier.put(number, 640_256).unwrap()).collect();
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())));
    tier.shutdown();
    let (tier, found) = Tier::recovered(&mount.blocks(), CAPACITY, "");
    assert_eq!(found.len(), 20);
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn f2_on_a_device_with_sectors_of_4_kib_o_direct_serves() {
    let image = folder();
    let Some(mount) = Mount::with_large_sectors(&image.path().join("image")) else { return };
    let tier = Tier::fresh(&mount.blocks(), CAPACITY, "");
    assert!(tier.opened.report.contains("O_DIRECT, 4096-byte alignment"), "{}", tier.opened.report);
    assert_eq!(tier.told.counted("fallback.direct"), 0);
    warned(&tier, &[]);
    works(tier, &mount.blocks());
}

#[test]
fn a_file_system_that_is_full_before_the_capacity_refuses_and_never_freezes() {
    // K3: what is deleted makes room, also where the disk has not a byte left for the record of a deletion.
    let Some(mount) = Mount::of("tmpfs", "mode=0700,size=8m") else { return };
    let path = mount.blocks();
    let tier = Tier::fresh(&path, CAPACITY, "sync_window = \"10ms\"");
    warned(&tier, &["stores will be refused when the file system is full"]);
    let mut kept = VecDeque::new();
    let mut refused = 0;
    for (number, length) in (0..2000_u64).map(|n| (n, [4096, 73_728, 4096, 4096, 294_912, 8192][n as usize % 6])) {
        loop {
            match tier.put(number, length) {
                Ok(block) => break kept.push_back(block),
                Err(Status::NO_SPACE) => {
                    refused += 1;
                    let victim = kept.pop_front().expect("room, once it is empty");
                    assert_eq!(tier.delete(&victim), Status::OK, "block {number}");
                }
                Err(status) => panic!("{status:?} at block {number}"),
            }
        }
    }
    assert!(refused > 100, "{refused}");
    let resident = tier.nvme.stats().resident_bytes;
    println!("{resident} bytes in a file system of 8 MiB, {refused} refused");
    // Of the file system's 8 MiB, seven eighths are payload; the rest is records, and what the last eviction has freed.
    assert!(resident > 7 * MIB, "{resident} bytes in a file system of 8 MiB");
    assert!(kept.iter().all(|block| tier.get(block) == Ok(())));
    let killed = copy_of(&path);
    tier.shutdown();
    // E3: not a byte is left when it starts again.
    let full = std::fs::write(mount.place.path().join("ballast"), vec![1; 8 * MIB as usize]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    for path in [&*path, killed.path()] {
        let (tier, found) = Tier::recovered(path, CAPACITY, "");
        assert_eq!(found.len(), kept.len());
        assert!(kept.iter().all(|block| tier.get(&found[&block.number]) == Ok(())));
    }
}

#[test]
fn k3_where_the_disk_has_no_byte_left_a_deletion_makes_room_for_its_own_record() {
    // A journal's last page takes 27 records or fewer, so that one of these counts of blocks ends at a page's end.
    let Some(mount) = Mount::of("tmpfs", "mode=0700,size=16m") else { return };
    for count in 1..=28 {
        let (path, ballast) = (mount.blocks(), mount.place.path().join("ballast"));
        let tier = Tier::fresh(&path, 8 * MIB, "");
        let blocks: Vec<Stored> = (0..count).map(|number| tier.put(number, 4096).unwrap()).collect();
        let full = std::fs::write(&ballast, vec![1; 16 * MIB as usize]).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        for block in &blocks {
            assert_eq!(tier.delete(block), Status::OK, "of {count} blocks");
        }
        tier.shutdown();
        std::fs::remove_file(&ballast).unwrap();
        let (tier, found) = Tier::recovered(&path, 8 * MIB, "");
        assert_eq!(found.len(), 0);
        drop(tier);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
