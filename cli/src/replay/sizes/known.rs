//! Hit ratios of known policies on the two public traces of Mooncake (FAST '25), as an independent simulator computed
//! them: the offline optimum (Belady), least recently used and S3-FIFO, both with tails before heads.

use super::Case;

/// The figures of one trace.
pub(crate) struct Known {
    requests: usize,
    blocks: usize,
    unique: u64,
    /// By size in percent of the unique blocks, ascending.
    pub(crate) rows: &'static [Row],
}

/// Hit ratios at one size.
pub(crate) struct Row {
    pub(crate) percent: u32,
    pub(crate) belady: f64,
    pub(crate) lru: f64,
    pub(crate) s3_fifo: f64,
}

const fn row(percent: u32, belady: f64, lru: f64, s3_fifo: f64) -> Row {
    Row { percent, belady, lru, s3_fifo }
}

/// Known by their counts: no other trace has all three alike.
const ALL: [Known; 2] = [
    // conversation_trace.jsonl
    Known {
        requests: 12_031,
        blocks: 288_500,
        unique: 182_790,
        rows: &[
            row(1, 0.2464, 0.0525, 0.0750),
            row(2, 0.3142, 0.0793, 0.1067),
            row(5, 0.3664, 0.1958, 0.1874),
            row(10, 0.3664, 0.2789, 0.2448),
            row(25, 0.3664, 0.3535, 0.3445),
            row(50, 0.3664, 0.3631, 0.3619),
            row(75, 0.3664, 0.3659, 0.3660),
            row(100, 0.3664, 0.3664, 0.3664),
        ],
    },
    // synthetic_trace.jsonl
    Known {
        requests: 3_993,
        blocks: 121_877,
        unique: 43_924,
        rows: &[
            row(1, 0.1854, 0.0381, 0.0384),
            row(2, 0.2613, 0.0778, 0.0759),
            row(5, 0.3956, 0.1566, 0.1544),
            row(10, 0.5063, 0.2623, 0.2608),
            row(25, 0.6260, 0.4441, 0.4470),
            row(50, 0.6396, 0.5888, 0.5746),
            row(75, 0.6396, 0.6302, 0.6186),
            row(100, 0.6396, 0.6396, 0.6396),
        ],
    },
];

/// The figures for a trace that is replayed as they were made: whole, and asked for every block.
pub(crate) fn of(case: &Case<'_>) -> Option<&'static Known> {
    let blocks: usize = case.requests.iter().map(|request| request.ids.len()).sum();
    let same =
        |known: &&Known| (known.requests, known.blocks, known.unique) == (case.requests.len(), blocks, case.unique);
    ALL.iter().find(same).filter(|_| case.warm_up == 0 && case.gpu_blocks == 0)
}

impl Known {
    /// The figures at a size such as `5%`.
    pub(crate) fn at(&self, size: &str) -> Option<&'static Row> {
        let percent: u32 = size.strip_suffix('%')?.parse().ok()?;
        self.rows.iter().find(|row| row.percent == percent)
    }
}
