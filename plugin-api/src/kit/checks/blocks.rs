//! P6, P7, P11: blocks go in and come out.

use std::os::fd::BorrowedFd;

use super::super::blocks::{Block, SIZES};
use super::super::judge::{expect, expect_in};
use super::super::life::{CAPACITY_BYTES, Life, Opening, Stored};
use super::super::run::{Lab, Verdict};
use crate::types::{Operation, Status, code};

/// Capacity of the life that is filled, and size of the blocks that fill it.
const SMALL_CAPACITY_BYTES: u64 = 32 << 20;
const FILLER_BYTES: u64 = 1_124_352;

/// Blocks that are deleted from a full tier to make room for one.
const MADE_ROOM: usize = 4;

/// A location that no put answered, but that might pass for one.
const NO_LOCATIONS: [u64; 3] = [0, 4096, u64::MAX];

pub(in super::super) fn bytes_come_back_in_all_sizes(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let sizes = SIZES.into_iter().filter(|size| *size <= life.opened.largest_payload);
    let blocks: Vec<Block> = sizes.zip(0..).map(|(size, number)| Block::new(number, size)).collect();
    if blocks.len() < SIZES.len() && life.opened.largest_payload < CAPACITY_BYTES / 4 {
        let largest = life.opened.largest_payload;
        return Err(format!("its largest payload is {largest} bytes; blocks of real models reach 40 MiB"));
    }
    let stored = life.put(&blocks)?;
    life.get_all(&stored)?;
    // The same keys in a second namespace are other blocks.
    let others: Vec<Block> = blocks.iter().take(4).map(|block| block.within(1)).collect();
    let others = life.put(&others)?;
    life.get_all(&others)?;
    life.get_all(&stored[..4])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_get_writes_its_own_buffer_alone(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let blocks: Vec<Block> =
        [61, 4096, 4157, 562_176, 640_256].into_iter().zip(0..).map(|(l, n)| Block::new(n, l)).collect();
    let stored = life.put(&blocks)?;
    // `get` watches what is before and behind its buffer.
    life.get_all(&stored)?;
    // And side by side, in one batch: each has its own bytes.
    let mut offset = 0;
    let mut gets = Vec::new();
    for one in &stored {
        gets.push(life.stored_operation(code::GET, one, offset));
        offset += life.room(one.block.length);
    }
    for ((one, get), ended) in stored.iter().zip(&gets).zip(life.perform(&gets)?) {
        expect("a get in a batch", ended.status, Status::OK)?;
        if life.sink.read(get.offset, one.block.length as usize) != one.block.bytes() {
            return Err(format!("WRONG BYTES: a get of {} bytes in a batch", one.block.length));
        }
    }
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_put_leaves_its_buffer(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let block = Block::new(0, 562_176);
    let put = life.put_operation(&block, life.step());
    // Others read the buffer at the same time, so two puts may share it.
    let twin = Block::new(1, block.length);
    let twin_checksum = twin.checksum(&block.bytes());
    let twin_put = Operation { key: twin.key(), parent: twin.parent(), depth: 1, checksum: twin_checksum, ..put };
    let watched = (2 * life.step() + life.room(block.length)) as usize;
    let before = life.source.read(0, watched);
    let ended = life.perform(&[put, twin_put])?;
    for one in &ended {
        expect("one of two puts of one buffer", one.status, Status::OK)?;
    }
    if life.source.read(0, watched) != before {
        return Err("a put changed its buffer, or what is around it".to_owned());
    }
    life.get_all(&[Stored { block, location: ended[0].location, checksum: put.checksum }])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_missing_block_is_a_miss(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let there = life.put(&[Block::new(0, 73_728)])?;
    let block = Block::new(1, 73_728);
    let checksum = block.checksum(&block.bytes());
    let lost = [Status::MISS, Status::CORRUPT];
    for location in NO_LOCATIONS.into_iter().chain([there[0].location]) {
        let missing = Stored { block, location, checksum };
        let what = format!("of a block that was never put, at location {location:#x}");
        expect_in(&format!("a get {what}"), life.get(&missing)?, &lost)?;
        expect(&format!("exists {what}"), life.exists(&missing)?.status, Status::MISS)?;
        let deleted = life.one(life.stored_operation(code::DELETE, &missing, 0))?;
        expect_in(&format!("a delete {what}"), deleted.status, &[Status::MISS, Status::OK])?;
    }
    // Another length than the block's is another block.
    let mut other = there[0];
    other.block.length -= 4096;
    expect_in("a get with a shorter length", life.get(&other)?, &lost)?;
    life.get_all(&there).map_err(|error| format!("after operations on missing blocks: {error}"))?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_wrong_checksum_is_corrupt(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    for length in [61, 73_728, 640_256] {
        let block = Block::new(length, length);
        // Bytes that are not those of the checksum: a put may refuse them, a get must not hand them out.
        let put = life.put_operation(&block, 0);
        let wrong = Operation { checksum: put.checksum ^ 1, ..put };
        let ended = life.one(wrong)?;
        if ended.status == Status::OK {
            let stored = Stored { block, location: ended.location, checksum: wrong.checksum };
            let what = format!("a get of {length} bytes that do not match their checksum");
            expect(&what, life.get(&stored)?, Status::CORRUPT)?;
        } else {
            expect("a put with a wrong checksum", ended.status, Status::CORRUPT)?;
        }
    }
    let good = life.put(&[Block::new(1, 73_728)])?;
    let doubted = Stored { checksum: good[0].checksum ^ (1 << 63), ..good[0] };
    let what = "a get that expects another checksum";
    expect_in(what, life.get(&doubted)?, &[Status::CORRUPT, Status::MISS])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_deleted_block_is_gone(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let blocks: Vec<Block> = (0..6).map(|number| Block::new(number, 294_912)).collect();
    let stored = life.put(&blocks)?;
    let lost = [Status::MISS, Status::CORRUPT];
    for one in &stored[..3] {
        life.delete(one)?;
        expect_in("a get after the delete", life.get(one)?, &lost)?;
        expect("exists after the delete", life.exists(one)?.status, Status::MISS)?;
    }
    // Its space may be used again; even then nobody gets other bytes under its key.
    let fresh: Vec<Block> = (50..56).map(|number| Block::new(number, 294_912)).collect();
    let fresh = life.put(&fresh)?;
    for one in &stored[..3] {
        expect_in("a get after the delete and more puts", life.get(one)?, &lost)?;
    }
    life.get_all(&stored[3..])?;
    life.get_all(&fresh)?;
    // And the same key may come again.
    let again = life.put(&blocks[..1])?;
    life.get_all(&again)?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn exists_tells_location_and_length(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let stored = life.put(&[Block::new(0, 61), Block::new(1, 562_176), Block::new(2, 4096).within(1)])?;
    for one in &stored {
        let found = life.exists(one)?;
        expect("exists of a stored block", found.status, Status::OK)?;
        if (found.location, found.length) != (one.location, one.block.length) {
            return Err(format!(
                "exists told location {:#x} and length {}, the put {:#x} and {}",
                found.location, found.length, one.location, one.block.length
            ));
        }
        let told = (found.checksum, found.depth, found.parent);
        let put = (one.checksum, one.block.depth(), one.block.parent());
        if lab.facts.shared && told != put {
            return Err(format!(
                "exists told checksum, depth and parent {told:x?}, the put {put:x?}, which a shared backend keeps"
            ));
        }
    }
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_full_tier_says_so(lab: &Lab) -> Result<Verdict, String> {
    if lab.facts.shared {
        return Ok(Verdict::Void("its capacity is its engine's own".to_owned()));
    }
    let storage = lab.storage()?;
    let life = Life::open(lab, &Opening { capacity: SMALL_CAPACITY_BYTES, ..Opening::new(&storage) })?;
    let most = SMALL_CAPACITY_BYTES / FILLER_BYTES + 1;
    let mut stored = Vec::new();
    let mut number = 0;
    let refused = loop {
        if number > most {
            return Err(format!(
                "{number} blocks of {FILLER_BYTES} bytes went into a capacity of {SMALL_CAPACITY_BYTES}"
            ));
        }
        let block = Block::new(number, FILLER_BYTES);
        number += 1;
        let put = life.put_operation(&block, 0);
        let ended = life.one(put)?;
        if ended.status != Status::OK {
            expect("a put into a full tier", ended.status, Status::NO_SPACE)?;
            break Stored { block, location: ended.location, checksum: put.checksum };
        }
        stored.push(Stored { block, location: ended.location, checksum: put.checksum });
    };
    if stored.len() < most as usize / 2 {
        return Err(format!("full after {} of {most} blocks that its capacity should hold", stored.len()));
    }
    expect("exists of the block that found no room", life.exists(&refused)?.status, Status::MISS)?;
    life.get_all(&stored).map_err(|error| format!("once the tier is full: {error}"))?;
    let held = life.stats()?.resident_bytes;
    if held > SMALL_CAPACITY_BYTES {
        return Err(format!("stats say {held} resident bytes of a capacity of {SMALL_CAPACITY_BYTES}"));
    }
    // Deleting makes room.
    for one in stored.drain(..MADE_ROOM) {
        life.delete(&one)?;
    }
    let again = life.put(&[refused.block]).map_err(|error| format!("after {MADE_ROOM} deletes: {error}"))?;
    life.get_all(&again)?;
    life.get_all(&stored)?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn stats_count_what_is_held(lab: &Lab) -> Result<Verdict, String> {
    if lab.facts.shared {
        return Ok(Verdict::Void("what lies there is other hosts' too".to_owned()));
    }
    let (_storage, life) = Life::fresh(lab)?;
    let blocks = [Block::new(0, 61), Block::new(1, 73_728), Block::new(2, 1_124_352)];
    let stored = life.put(&blocks)?;
    let held = |life: &Life, wanted: &[Block]| {
        let stats = life.stats()?;
        let bytes: u64 = wanted.iter().map(|block| block.length).sum();
        if (stats.blocks, stats.resident_bytes) == (wanted.len() as u64, bytes) {
            return Ok(());
        }
        let (count, found) = (stats.blocks, stats.resident_bytes);
        Err(format!("it holds {} blocks of {bytes} bytes, but stats say {count} and {found}", wanted.len()))
    };
    held(&life, &blocks)?;
    life.delete(&stored[1])?;
    held(&life, &[blocks[0], blocks[2]])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_file_extent_holds_the_payload(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    if !life.opened.file_extent {
        life.end()?;
        return Ok(Verdict::Void("it answers no file_extent".to_owned()));
    }
    let stored = life.put(&[Block::new(0, 61), Block::new(1, 562_176), Block::new(2, 4096)])?;
    for one in &stored {
        let found = life.one(life.stored_operation(code::FILE_EXTENT, one, 0))?;
        expect("file_extent of a stored block", found.status, Status::OK)?;
        if found.length != one.block.length {
            return Err(format!("file_extent told length {}, not {}", found.length, one.block.length));
        }
        // A reader with O_DIRECT needs room and place in whole steps.
        let memory = super::super::memory::Memory::new(life.room(found.length) as usize)?;
        // SAFETY: the fd stays the backend's, which is open until `end`.
        let fd = unsafe { BorrowedFd::borrow_raw(found.fd) };
        // SAFETY: the memory is ours alone and as long as said.
        let buffer = unsafe { std::slice::from_raw_parts_mut(memory.address(), memory.length() as usize) };
        rustix::io::pread(fd, buffer, found.offset).map_err(|errno| format!("reading a file extent: {errno}"))?;
        if memory.read(0, found.length as usize) != one.block.bytes() {
            return Err(format!("a file extent of {} bytes does not hold the payload", found.length));
        }
    }
    life.end()?;
    Ok(Verdict::Held)
}
