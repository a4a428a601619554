//! P3 for mappable backends: the memory that they provide.

use std::os::fd::AsFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::super::life::Life;
use super::super::run::{Lab, Verdict};

/// No multiple of any page but the smallest.
const LENGTH_BYTES: u64 = (8 << 20) + (12 << 10);

pub(in super::super) fn sealed_private_and_shared(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let segment = life.live.segment_create(1, LENGTH_BYTES).map_err(|error| format!("no segment: {error}"))?;
    if segment.length < LENGTH_BYTES || segment.address.is_null() {
        return Err(format!("asked for {LENGTH_BYTES} bytes, got {} at {:?}", segment.length, segment.address));
    }
    let stat = fstat(&segment.fd).map_err(|errno| format!("fstat of a segment: {errno}"))?;
    if stat.st_size as u64 != segment.length {
        return Err(format!("a segment of {} bytes has a file of {}", segment.length, stat.st_size));
    }
    if stat.st_mode & 0o7777 != 0o600 {
        return Err(format!("a segment's mode is {:o}, not 600", stat.st_mode & 0o7777));
    }
    let seals = fcntl_get_seals(&segment.fd).map_err(|errno| format!("seals of a segment: {errno}"))?;
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if !seals.contains(needed) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(format!("a segment's seals are {seals:?}; {needed:?} are needed, and none against writing"));
    }
    if (stat.st_blocks as u64) * 512 < segment.length {
        return Err(format!("of {} bytes only {} are pre-faulted", segment.length, stat.st_blocks * 512));
    }
    both_ways(&segment)?;
    let second = life.live.segment_create(2, LENGTH_BYTES).map_err(|error| format!("no second segment: {error}"))?;
    if second.address == segment.address {
        return Err("two segments at one address".to_owned());
    }
    life.live.segment_destroy(1);
    both_ways(&second).map_err(|error| format!("after another segment was destroyed: {error}"))?;
    life.live.segment_destroy(2);
    life.end()?;
    Ok(Verdict::Held)
}

/// What is written through a mapping of the fd is seen at the backend's address, and the reverse; at both ends.
fn both_ways(segment: &crate::Segment) -> Result<(), String> {
    let length = segment.length as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a fresh range; nothing of ours is replaced.
    let own = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, segment.fd.as_fd(), 0) }
        .map_err(|errno| format!("a client could not map the segment: {errno}"))?
        .cast::<u8>();
    let mut seen = true;
    for at in [0, length - 1] {
        // SAFETY: both ranges are mapped for `length` bytes, and nobody else knows this segment.
        unsafe {
            own.add(at).write_volatile(0x5c);
            seen &= segment.address.add(at).read_volatile() == 0x5c;
            segment.address.add(at).write_volatile(0xc5);
            seen &= own.add(at).read_volatile() == 0xc5;
        }
    }
    // SAFETY: mapped above, used no more.
    let _ = unsafe { munmap(own.cast(), length) };
    if seen {
        Ok(())
    } else {
        Err("a write through the fd and the backend's address do not show each other".to_owned())
    }
}

pub(in super::super) fn destroyed_is_given_back(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    for round in 0..3 {
        let segment = life.live.segment_create(1, LENGTH_BYTES);
        let segment = segment.map_err(|error| format!("round {round}: the number is not free again: {error}"))?;
        let held = life.stats()?.medium_bytes;
        if held != segment.length {
            return Err(format!("round {round}: one segment of {} bytes, but stats say {held}", segment.length));
        }
        drop(segment);
        life.live.segment_destroy(1);
    }
    // An unknown number harms nobody.
    life.live.segment_destroy(77);
    match life.stats()?.medium_bytes {
        0 => life.end().map(|()| Verdict::Held),
        left => Err(format!("every segment is destroyed, but stats say {left} bytes")),
    }
}
