//! What the NVMe backend reads back from its folder: superblock, namespaces, records of journals and snapshots.
//!
//! Claims: nothing panics; what decodes survives being encoded and decoded again; no record is good in another file
//! than its own.

use crc_fast::{CrcAlgorithm, Digest};
use umbp_backend_nvme::format::{
    Kind, NamespaceTable, RECORD_BYTES, Record, Salt, StoredNamespace, Superblock, decode_namespaces, decode_record,
    decode_superblock,
};

use super::{Target, signature};

const UUID: [u8; 16] = *b"umbp fuzz corpus";
const JOURNAL: u64 = 7;
/// Bytes of a checksum, and where a salt's file kind and number stand behind the UUID.
const SUM_BYTES: usize = 4;

/// The target.
pub(super) fn target() -> Target {
    Target { name: "nvme", run, repair, seeds }
}

fn run(input: &[u8]) -> u64 {
    let superblock = decode_superblock(input).map(|superblock| {
        assert_eq!(decode_superblock(&superblock.encode()), Ok(superblock));
    });
    let namespaces = decode_namespaces(input, &UUID).map(|table| {
        assert_eq!(decode_namespaces(&table.encode(&UUID), &UUID), Ok(table));
    });
    let mut outcomes: Vec<_> = input.chunks(RECORD_BYTES).map(record).collect();
    outcomes.sort();
    outcomes.dedup();
    outcomes.push(format!("{:?}", superblock.err()));
    outcomes.push(format!("{:?}", namespaces.err()));
    signature(&outcomes)
}

fn record(bytes: &[u8]) -> String {
    let salt = Salt::journal(&UUID, JOURNAL);
    match decode_record(bytes, &salt) {
        Ok(record) => {
            assert_eq!(decode_record(&record.encode(&salt), &salt), Ok(record));
            for other in [Salt::snapshot(&UUID, JOURNAL), Salt::journal(&UUID, JOURNAL + 1)] {
                assert!(decode_record(bytes, &other).is_err(), "a record is good in its own file alone");
            }
            format!("{:?}", record.kind)
        }
        Err(error) => format!("{error:?}"),
    }
}

/// Three quarters of the inputs get checksums that fit: of the whole as a superblock, as namespaces, or of each record.
fn repair(input: &mut [u8], random: u64) {
    let length = input.len();
    let sum_at_end = |input: &mut [u8], salt: &[u8]| {
        if let Some(at) = length.checked_sub(SUM_BYTES) {
            let sum = crc32c(&[salt, &input[..at]]);
            input[at..].copy_from_slice(&sum);
        }
    };
    match random % 4 {
        0 => {}
        1 => sum_at_end(input, &[]),
        2 => sum_at_end(input, &UUID),
        _ => {
            let salt = [&UUID[..], b"J", &JOURNAL.to_le_bytes()].concat();
            for record in input.chunks_exact_mut(RECORD_BYTES) {
                let sum = crc32c(&[&salt, &record[SUM_BYTES..]]);
                record[..SUM_BYTES].copy_from_slice(&sum);
            }
        }
    }
}

fn crc32c(parts: &[&[u8]]) -> [u8; SUM_BYTES] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    (digest.finalize() as u32).to_le_bytes()
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let salt = Salt::journal(&UUID, JOURNAL);
    let superblock = Superblock { uuid: UUID, path_index: 0, path_count: 1, capacity: 4 << 30 };
    let namespace = |local: u32, descriptor: &[u8]| StoredNamespace {
        local,
        digest: [local as u8; 32],
        descriptor: descriptor.to_vec(),
    };
    let table = NamespaceTable { next: 3, entries: vec![namespace(1, b"model=m"), namespace(2, b"")] };
    let put = |sequence: u64| {
        let mut key = [0; 44];
        key[..8].copy_from_slice(&sequence.to_le_bytes());
        key[32] = 8;
        let (unit, length) = (sequence * 16, 65_536);
        let put = Record { sequence, generation: sequence, unit, length, namespace: 1, key, ..Record::start() };
        Record { kind: Kind::Put, checksum: u64::MAX / 3, recency: sequence, depth: 4, parent: [1; 44], ..put }
    };
    let delete = Record { sequence: 9, ..Record::delete(4, 64, 65_536, 1) };
    let journal = [Record::start(), put(1), put(2), put(4), delete];
    let mut files = vec![
        ("superblock".to_owned(), superblock.encode().to_vec()),
        ("namespaces".to_owned(), table.encode(&UUID)),
        ("namespaces-empty".to_owned(), NamespaceTable::default().encode(&UUID)),
        ("journal".to_owned(), journal.iter().flat_map(|record| record.encode(&salt)).collect()),
    ];
    for (name, record) in [("start", Record::start()), ("put", put(3)), ("delete", delete)] {
        files.push((name.to_owned(), record.encode(&salt).to_vec()));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_good_and_repair_makes_a_changed_one_good_again() {
        let is_good = |bytes: &[u8]| {
            let records = bytes
                .chunks(RECORD_BYTES)
                .map(record)
                .filter(|outcome| ["Put", "Delete", "Start"].contains(&outcome.as_str()));
            decode_superblock(bytes).is_ok() || decode_namespaces(bytes, &UUID).is_ok() || records.count() > 0
        };
        for (name, mut bytes) in seeds() {
            assert!(is_good(&bytes), "{name}");
            let at = bytes.len() - SUM_BYTES - 1;
            bytes[at] ^= 1;
            let repaired = (1..4).any(|kind| {
                let mut copy = bytes.clone();
                repair(&mut copy, kind);
                is_good(&copy)
            });
            assert!(repaired, "{name}");
        }
    }
}
