//! Bytes on disk: what is written reads back, and no bytes make a decoder panic.

use proptest::prelude::*;
use umbp_backend_nvme::format::{
    Kind, NamespaceTable, RECORD_BYTES, Record, SUPERBLOCK_BYTES, Salt, StoredNamespace, Superblock, decode_namespaces,
    decode_record, decode_superblock,
};

const UUID: [u8; 16] = [9; 16];

prop_compose! {
    fn record()(
        numbers in any::<[u64; 5]>(), words in any::<[u32; 2]>(), length in 1..=u32::MAX, unit in 0..1_u64 << 40,
        key in any::<[[u8; 22]; 2]>(), parent in any::<[[u8; 22]; 2]>(), kind in 0..3_usize,
    ) -> Record {
        let joined = |halves: [[u8; 22]; 2]| std::array::from_fn(|at| halves[at / 22][at % 22]);
        Record {
            kind: [Kind::Put, Kind::Delete, Kind::Start][kind],
            sequence: numbers[0],
            generation: numbers[1],
            unit,
            length,
            namespace: words[0],
            checksum: numbers[2],
            recency: numbers[3],
            depth: words[1],
            key: joined(key),
            parent: joined(parent),
        }
    }
}

prop_compose! {
    fn table()(
        next in any::<u32>(),
        entries in prop::collection::vec(
            (any::<u32>(), any::<[u8; 32]>(), prop::collection::vec(any::<u8>(), 0..99)), 0..9
        )
    ) -> NamespaceTable {
        let stored = |(local, digest, descriptor)| StoredNamespace { local, digest, descriptor };
        let entries = entries.into_iter().map(stored);
        NamespaceTable { next, entries: entries.collect() }
    }
}

proptest! {
    #[test]
    fn a_record_reads_back_in_its_own_file_alone(record in record(), file in any::<u64>(), bit in 0..RECORD_BYTES * 8) {
        let salt = Salt::journal(&UUID, file);
        let mut bytes = record.encode(&salt);
        prop_assert_eq!(decode_record(&bytes, &salt), Ok(record));
        for other in [Salt::journal(&UUID, file ^ 1), Salt::snapshot(&UUID, file), Salt::journal(&[8; 16], file)] {
            prop_assert!(decode_record(&bytes, &other).is_err());
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode_record(&bytes, &salt).is_err());
    }

    #[test]
    fn a_superblock_reads_back(
        uuid in any::<[u8; 16]>(), words in any::<[u32; 2]>(), capacity in any::<u64>(), bit in 0..SUPERBLOCK_BYTES * 8
    ) {
        let superblock = Superblock { uuid, path_index: words[0], path_count: words[1], capacity };
        let mut bytes = superblock.encode();
        prop_assert_eq!(decode_superblock(&bytes), Ok(superblock));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode_superblock(&bytes).is_err());
    }

    #[test]
    fn a_namespace_table_reads_back(table in table(), at in any::<prop::sample::Index>()) {
        let mut bytes = table.encode(&UUID);
        prop_assert_eq!(decode_namespaces(&bytes, &UUID), Ok(table));
        prop_assert!(decode_namespaces(&bytes, &[8; 16]).is_err());
        let at = at.index(bytes.len());
        prop_assert!(decode_namespaces(&bytes[..at], &UUID).is_err());
        bytes[at] ^= 4;
        prop_assert!(decode_namespaces(&bytes, &UUID).is_err());
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000), magic in 0..3_usize) {
        let mut bytes = bytes;
        let magic: &[u8] = [&b""[..], b"UMBPNVME", b"UMBPNSPC"][magic];
        bytes.splice(..magic.len().min(bytes.len()), magic.iter().copied());
        let _ = (decode_superblock(&bytes), decode_namespaces(&bytes, &UUID));
        let _ = decode_record(&bytes, &Salt::journal(&UUID, 1));
        bytes.resize(RECORD_BYTES, 0);
        let _ = decode_record(&bytes, &Salt::snapshot(&UUID, 1));
    }
}
