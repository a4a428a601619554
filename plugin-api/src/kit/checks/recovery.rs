//! P12: what an earlier life stored.

use std::collections::BTreeMap;

use super::super::blocks::{Block, NAMESPACES};
use super::super::judge::{expect, expect_in};
use super::super::life::{Life, Opening, Stored};
use super::super::run::{Lab, Verdict};
use crate::types::{RecoveredBlock, Status};

/// Blocks that a life leaves behind; more than a page, and no multiple of one.
const LEFT_BEHIND: u64 = 23;

/// Blocks of one page of recovery.
const PAGE: usize = 5;

/// The second life gives the namespaces other numbers.
const NUMBERS: [(u32, usize); 2] = [(1, 0), (2, 1)];
const OTHER_NUMBERS: [(u32, usize); 2] = [(40, 1), (9, 0)];

fn blocks() -> Vec<Block> {
    let sizes = [61, 4096, 73_728, 562_176];
    (0..LEFT_BEHIND).map(|n| Block::new(n, sizes[n as usize % 4]).within(n as usize % 2)).collect()
}

pub(in super::super) fn every_block_comes_back(lab: &Lab) -> Result<Verdict, String> {
    let storage = lab.storage()?;
    let first = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    if !first.recovered.is_empty() || !first.recovered_namespaces.is_empty() {
        return Err("a first life recovered something".to_owned());
    }
    let stored = first.put(&blocks())?;
    expect("flush", first.live.flush(), Status::OK)?;
    first.end()?;

    let second = Life::open(lab, &Opening { namespaces: &OTHER_NUMBERS, page: PAGE, ..Opening::new(&storage) })?;
    check_namespaces(&second)?;
    let found = check_recovered(&second, &stored, &OTHER_NUMBERS)?;
    second.get_all(&found).map_err(|error| format!("in a second life: {error}"))?;
    for one in &found {
        expect("exists in a second life", second.exists(one)?.status, Status::OK)?;
    }
    // What the second life adds joins what it found.
    let more = second.put(&[Block::new(1_000, 294_912)])?;
    second.get_all(&found)?;
    second.end()?;

    let third = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    let all: Vec<Stored> = found.iter().chain(&more).copied().collect();
    let found = check_recovered(&third, &all, &NUMBERS)?;
    third.get_all(&found).map_err(|error| format!("in a third life: {error}"))?;
    third.end()?;
    Ok(Verdict::Held)
}

fn check_namespaces(life: &Life) -> Result<(), String> {
    let mut found: Vec<_> = life.recovered_namespaces.iter().map(|n| (n.digest, n.descriptor.as_slice())).collect();
    let mut wanted: Vec<_> = NAMESPACES.iter().map(|n| (n.digest, n.descriptor)).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    if found == wanted { Ok(()) } else { Err(format!("of the namespaces\n{wanted:?}\ncame back\n{found:?}")) }
}

/// Exactly these blocks came back, each whole; answers them with the locations of this life.
fn check_recovered(life: &Life, stored: &[Stored], numbers: &[(u32, usize)]) -> Result<Vec<Stored>, String> {
    let mut by_key: BTreeMap<(u32, [u8; 44]), &RecoveredBlock> = BTreeMap::new();
    for block in &life.recovered {
        if by_key.insert((block.namespace_id, block.key), block).is_some() {
            return Err("one block came back twice".to_owned());
        }
    }
    let mut found = Vec::with_capacity(stored.len());
    for one in stored {
        let block = &one.block;
        let number = numbers.iter().find(|(_, which)| *which == block.namespace).map_or(0, |(number, _)| *number);
        let Some(back) = by_key.remove(&(number, block.key())) else {
            let length = block.length;
            return Err(format!("block {} of {length} bytes, of namespace {number}, did not come back", block.number));
        };
        let got = (back.parent, back.depth, back.length, back.checksum, back.recency);
        let put = (block.parent(), block.depth(), block.length, one.checksum, block.recency());
        if got != put {
            return Err(format!(
                "parent, depth, length, checksum, recency of block {}: put as\n{put:?}\ncame back as\n{got:?}",
                block.number
            ));
        }
        found.push(Stored { location: back.location, ..*one });
    }
    if by_key.is_empty() { Ok(found) } else { Err(format!("{} blocks came back that were not there", by_key.len())) }
}

pub(in super::super) fn a_deleted_block_stays_deleted(lab: &Lab) -> Result<Verdict, String> {
    let storage = lab.storage()?;
    let first = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    let stored = first.put(&blocks())?;
    let (gone, kept) = stored.split_at(7);
    for one in gone {
        first.delete(one)?;
    }
    first.end()?;
    // One more is deleted by the life that recovered it.
    let second = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    let found = check_recovered(&second, kept, &NUMBERS)?;
    second.delete(&found[0])?;
    second.end()?;
    let third = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    let found = check_recovered(&third, &kept[1..], &NUMBERS)?;
    third.get_all(&found)?;
    for one in gone.iter().chain(&kept[..1]) {
        expect_in("a get of what an earlier life deleted", third.get(one)?, &[Status::MISS, Status::CORRUPT])?;
        expect("exists of what an earlier life deleted", third.exists(one)?.status, Status::MISS)?;
    }
    third.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_namespace_not_put_is_left_out(lab: &Lab) -> Result<Verdict, String> {
    let storage = lab.storage()?;
    let first = Life::open(lab, &Opening { namespaces: &NUMBERS, ..Opening::new(&storage) })?;
    let stored = first.put(&blocks())?;
    first.end()?;
    let of_first: Vec<Stored> = stored.iter().filter(|one| one.block.namespace == 0).copied().collect();
    let second = Life::open(lab, &Opening { namespaces: &NUMBERS[..1], page: PAGE, ..Opening::new(&storage) })?;
    let found = check_recovered(&second, &of_first, &NUMBERS)?;
    second.get_all(&found)?;
    second.end()?;
    Ok(Verdict::Held)
}
