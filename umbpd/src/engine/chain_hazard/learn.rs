//! What is learned: how often blocks of each class are used again, and how that falls with the time since their last
//! use.
//!
//! Uses of a block come at a rate of `worth[class] / rarity(age)` (a proportional hazards model: the worths are Cox's
//! factors, the common rate is Breslow's estimate, pooled so that it never rises with age). Time is the number of
//! blocks used so far, in all.

/// Classes of blocks.
pub(super) const CLASSES: usize = 28;

/// Slots of time for each capacity's worth of uses, and how many capacities' worth are remembered.
const SLOTS_PER_CAPACITY: u32 = 64;
const CAPACITIES: u32 = 16;
const RING: u32 = SLOTS_PER_CAPACITY * CAPACITIES;
const SLOT_USES_MIN: u64 = 64;
/// Buckets of age; the end of each is the square root of 2 times that of the one before it. The last has no end.
const BUCKETS: usize = 20;
/// End of the first bucket: the capacity divided by this.
const FIRST_PART: f64 = 32.0;
/// Uses, as a multiple of the capacity, after which all counts are halved.
const DECAY_CAPACITIES: f64 = 4.0;
/// Expected uses that pull a class to worth 1.
const PRIOR_USES: f64 = 20.0;
/// Weight of "the rate goes on falling as one over age" against what was seen, in chances of a use.
const EXTRA_CHANCES: f64 = 300.0;

/// Slots of time that are remembered.
pub(super) fn slots() -> u32 {
    RING
}

#[derive(Clone, Copy, Default)]
struct Count {
    /// Used in this bucket of age.
    used: f64,
    /// Passed its end unused.
    passed: f64,
}

/// See the module.
pub(super) struct Learned {
    /// Time.
    pub(super) now: u64,
    /// The slot of time.
    pub(super) slot: u32,
    slot_uses: u64,
    slot_len: u64,
    /// By slot and class: blocks last used in it, and not used since.
    waiting: Vec<[u32; CLASSES]>,
    /// Time at which each slot began.
    began: Vec<u64>,
    /// By bucket: the first slot that has not passed its end.
    passed: Vec<u32>,
    counts: Vec<[Count; CLASSES]>,
    seen: f64,
    decay_at: f64,
    worth: [f64; CLASSES],
    /// By bucket: logarithm of one over the rate of uses. Empty while nothing is learned.
    shape: Vec<f64>,
    /// Ends of buckets.
    edges: Vec<f64>,
}

impl Learned {
    /// Nothing learned yet, for about so many blocks.
    pub(super) fn new(blocks: u64, now: u64, slot: u32) -> Self {
        let first = (blocks as f64 / FIRST_PART).max(4.0);
        let edge = |bucket: usize| if bucket == 0 { 0.0 } else { first * 2_f64.powf((bucket as f64 - 1.0) / 2.0) };
        Self {
            now,
            slot,
            slot_uses: 0,
            slot_len: (blocks / u64::from(SLOTS_PER_CAPACITY)).max(SLOT_USES_MIN),
            waiting: vec![[0; CLASSES]; RING as usize],
            began: vec![now; RING as usize],
            passed: vec![slot; BUCKETS - 1],
            counts: vec![[Count::default(); CLASSES]; BUCKETS],
            seen: 0.0,
            decay_at: blocks as f64 * DECAY_CAPACITIES,
            worth: [1.0; CLASSES],
            shape: Vec::new(),
            edges: (0..=BUCKETS).map(edge).collect(),
        }
    }

    /// A request begins.
    pub(super) fn begin(&mut self) {
        if self.slot_uses >= self.slot_len {
            self.next_slot();
        }
        self.pass();
    }

    /// A request of so many blocks is complete.
    pub(super) fn end(&mut self, blocks: u64) {
        self.slot_uses += blocks;
        self.now += blocks;
        self.seen += blocks as f64;
    }

    /// Ages up to this are told apart from none.
    pub(super) fn first_age(&self) -> u64 {
        self.edges[1] as u64
    }

    /// Whether what was last used in this slot is still watched.
    pub(super) fn is_watched(&self, slot: u32) -> bool {
        self.slot - slot < RING
    }

    /// A block of this class is watched from its use in this slot on.
    pub(super) fn watch(&mut self, class: u8, slot: u32) {
        if self.is_watched(slot) {
            self.waiting[(slot % RING) as usize][usize::from(class)] += 1;
        }
    }

    /// A block is no longer watched.
    pub(super) fn forget(&mut self, class: u8, slot: u32) {
        if self.is_watched(slot) {
            let waiting = &mut self.waiting[(slot % RING) as usize][usize::from(class)];
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// A block of this class, last used in this slot, is used again.
    pub(super) fn used(&mut self, class: u8, slot: u32) {
        if !self.is_watched(slot) {
            return;
        }
        let bucket = self.passed.iter().take_while(|passed| **passed > slot).count();
        // Nothing is ever seen to pass the last bucket: its uses say nothing of a rate.
        if bucket < self.passed.len() {
            self.counts[bucket][usize::from(class)].used += 1.0;
        }
        self.forget(class, slot);
    }

    fn next_slot(&mut self) {
        self.slot += 1;
        self.slot_uses = 0;
        let at = (self.slot % RING) as usize;
        self.waiting[at] = [0; CLASSES];
        self.began[at] = self.now;
        let oldest = (self.slot + 1).saturating_sub(RING);
        self.passed.iter_mut().for_each(|passed| *passed = (*passed).max(oldest));
        self.weigh();
    }

    /// Counts what has passed the end of a bucket unused.
    fn pass(&mut self) {
        for (bucket, passed) in self.passed.iter_mut().enumerate() {
            while *passed < self.slot {
                let at = (*passed % RING) as usize;
                if ((self.now - self.began[at]) as f64) < self.edges[bucket + 1] {
                    break;
                }
                for (count, waiting) in self.counts[bucket].iter_mut().zip(&self.waiting[at]) {
                    count.passed += f64::from(*waiting);
                }
                *passed += 1;
            }
        }
    }

    /// Worth of a class: its uses over those expected of it if all classes were alike. Shape: the common rate.
    fn weigh(&mut self) {
        let mut got = [(PRIOR_USES, PRIOR_USES); CLASSES];
        // Pieces of age, pooled so that the rate never rises: uses, chances times width, buckets.
        let mut pieces: Vec<(f64, f64, usize)> = Vec::new();
        let mut rate = 0.0;
        for (bucket, row) in self.counts.iter().enumerate() {
            let used: f64 = row.iter().map(|count| count.used).sum();
            let chances = |(count, worth): (&Count, &f64)| (count.used + count.passed) * worth;
            let chances: f64 = row.iter().zip(&self.worth).map(chances).sum();
            let share = (used + 1.0) / (chances + 2.0);
            for (got, count) in got.iter_mut().zip(row) {
                got.0 += count.used;
                got.1 += (count.used + count.passed) * share;
            }
            let width = self.edges[bucket + 1] - self.edges[bucket];
            if bucket == 0 {
                rate = 1.0 / width / 100.0;
            }
            let mut piece = (used + EXTRA_CHANCES * rate * width, (chances + EXTRA_CHANCES) * width, 1);
            rate = piece.0 / piece.1 / std::f64::consts::SQRT_2;
            while let Some(before) = pieces.last().filter(|before| before.0 / before.1 <= piece.0 / piece.1) {
                piece = (piece.0 + before.0, piece.1 + before.1, piece.2 + before.2);
                pieces.pop();
            }
            pieces.push(piece);
        }
        self.shape = pieces.iter().flat_map(|piece| std::iter::repeat_n((piece.1 / piece.0).ln(), piece.2)).collect();
        for (worth, got) in self.worth.iter_mut().zip(&got) {
            *worth = got.0 / got.1;
        }
        if self.seen >= self.decay_at {
            self.seen = 0.0;
            for count in self.counts.iter_mut().flatten() {
                *count = Count { used: count.used / 2.0, passed: count.passed / 2.0 };
            }
        }
    }

    pub(super) fn worth(&self, class: u8) -> f64 {
        self.worth[usize::from(class)]
    }

    /// One over the rate of uses at this age, of a class of worth 1; it never falls with age.
    pub(super) fn rarity(&self, age: u64) -> f64 {
        let age = age as f64;
        let Some(last) = self.shape.len().checked_sub(1) else { return age + 1.0 };
        let first = self.edges[1];
        let place = if age < first { age / first * 0.5 } else { (age / first).log2() * 2.0 + 0.5 };
        let bucket = place as usize;
        let log = if bucket >= last {
            // Beyond: as one over age.
            self.shape[last] + (place - last as f64) * std::f64::consts::LN_2 / 2.0
        } else {
            self.shape[bucket] + (self.shape[bucket + 1] - self.shape[bucket]) * (place - bucket as f64)
        };
        // Never quite flat, so that of two alike the older leaves.
        log.exp() * (1.0 + age * 1e-9)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.len() * size_of::<[u32; CLASSES]>() + self.counts.len() * size_of::<[Count; CLASSES]>()
    }
}
