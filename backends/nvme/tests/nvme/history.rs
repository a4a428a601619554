//! Random histories on a medium with random faults, against a model.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proptest::prelude::*;
use tempfile::TempDir;
use umbp_backend_nvme::port::Direction;
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, config, copy_of, quick_folder};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 4 * MIB;
/// Snapshots are another test's matter: a copy of the folder is no kill while names change.
const STEPS_MAX: usize = 60;

#[derive(Clone, Debug)]
enum Step {
    Put {
        length: u64,
        fault: Fault,
    },
    Get {
        at: usize,
        fault: Fault,
    },
    Delete {
        at: usize,
        fault: Fault,
    },
    /// One bit of a block on the disk.
    Flip {
        at: usize,
        byte: u64,
    },
    Flush {
        fails: bool,
    },
    Kill,
    Stop,
    /// Completions in another order, or each twice.
    Shuffle(u64),
    Repeat(bool),
}

/// What goes wrong during one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The first piece of a store, or of a load, ends with this errno.
    Store(i32),
    Load(i32),
    /// Pieces move so many bytes at most.
    Short(u32),
    Append(i32),
    Extend,
}

fn fault() -> impl Strategy<Value = Fault> {
    let errno = || prop::sample::select(vec![libc::EIO, libc::ENOSPC, libc::ENXIO, libc::EAGAIN, libc::EINTR]);
    prop_oneof![
        4 => Just(Fault::None),
        1 => errno().prop_map(Fault::Store),
        1 => errno().prop_map(Fault::Load),
        1 => prop::sample::select(vec![4096_u32, 8704, 65_536]).prop_map(Fault::Short),
        1 => errno().prop_map(Fault::Append),
        1 => Just(Fault::Extend),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..1000_usize;
    prop_oneof![
        10 => (1..60_000_u64, fault()).prop_map(|(length, fault)| Step::Put { length, fault }),
        6 => (at(), fault()).prop_map(|(at, fault)| Step::Get { at, fault }),
        5 => (at(), fault()).prop_map(|(at, fault)| Step::Delete { at, fault }),
        1 => (at(), 0..60_000_u64).prop_map(|(at, byte)| Step::Flip { at, byte }),
        1 => any::<bool>().prop_map(|fails| Step::Flush { fails }),
        1 => Just(Step::Kill),
        1 => Just(Step::Stop),
        1 => (0..3_u64).prop_map(|seed| Step::Shuffle(seed * 0x9e37_79b9)),
        1 => any::<bool>().prop_map(Step::Repeat),
    ]
}

/// The store and what it should hold.
struct World {
    place: TempDir,
    more: &'static str,
    tier: Option<Tier>,
    faults: Arc<Faults>,
    next: u64,
    living: BTreeMap<u64, Stored>,
    /// Living blocks whose bytes on disk are damaged.
    damaged: Vec<u64>,
}

impl World {
    fn new(more: &'static str) -> Self {
        let (place, faults) = (quick_folder(), Arc::default());
        let (living, damaged) = (BTreeMap::new(), Vec::new());
        let mut world = Self { place, more, tier: None, faults, next: 0, living, damaged };
        world.open();
        world
    }

    fn tier(&self) -> &Tier {
        self.tier.as_ref().expect("open")
    }

    /// Opens: exactly the living are there.
    fn open(&mut self) {
        let (medium, faults) = Faulty::new();
        let more = format!("{}\nsync_window = \"1h\"", self.more);
        let tier = Tier::open_with(&config(self.place.path(), CAPACITY, &more), medium).unwrap();
        tier.introduce();
        let found: BTreeMap<u64, Stored> = tier.recover().into_iter().collect();
        let keys = |blocks: &BTreeMap<u64, Stored>| blocks.keys().copied().collect::<Vec<_>>();
        assert_eq!(keys(&found), keys(&self.living), "what was completed is there, what was deleted is not");
        (self.tier, self.faults, self.living) = (Some(tier), faults, found);
        self.living.values().for_each(|block| self.read(block, Fault::None));
    }

    fn pick(&self, at: usize) -> Option<Stored> {
        self.living.values().nth(at % self.living.len().max(1)).cloned()
    }

    /// Runs `operation` with the fault, and takes it away again.
    fn under<R>(&self, fault: Fault, operation: impl FnOnce(&Tier) -> R) -> R {
        let faults = &self.faults;
        match fault {
            Fault::None => {}
            Fault::Store(errno) => *faults.fail.lock().unwrap() = Some((Direction::Store, errno, 1)),
            Fault::Load(errno) => *faults.fail.lock().unwrap() = Some((Direction::Load, errno, 1)),
            Fault::Short(most) => faults.shorten.store(most, SeqCst),
            Fault::Append(errno) => *faults.append.lock().unwrap() = (errno, 1),
            Fault::Extend => faults.extend.store(libc::ENOSPC, SeqCst),
        }
        let result = operation(self.tier());
        *faults.fail.lock().unwrap() = None;
        *faults.append.lock().unwrap() = (0, 0);
        faults.shorten.store(0, SeqCst);
        faults.extend.store(0, SeqCst);
        result
    }

    fn read(&self, block: &Stored, fault: Fault) {
        // `get` compares the bytes of what succeeds.
        let result = self.under(fault, |tier| tier.get(block));
        let expected = match fault {
            Fault::Load(errno) if is_error(errno) => Err(told(errno)),
            _ if self.damaged.contains(&block.number) => Err(Status::CORRUPT),
            _ => Ok(()),
        };
        assert_eq!(result, expected, "{block:?} {fault:?}");
    }

    fn put(&mut self, length: u64, fault: Fault) {
        self.next += 1;
        match (self.under(fault, |tier| tier.put(self.next, length)), fault) {
            (Ok(_), Fault::Store(errno)) if is_error(errno) => panic!("a store that failed is none"),
            (Ok(_), Fault::Append(errno)) if errno != libc::ENOSPC => panic!("a block without a record is none"),
            (Ok(block), _) => drop(self.living.insert(self.next, block)),
            (Err(status), Fault::Store(errno) | Fault::Append(errno)) => {
                assert!(status == told(errno) || status == Status::NO_SPACE, "{status:?} {fault:?}");
            }
            (Err(status), _) => assert_eq!(status, Status::NO_SPACE, "{fault:?}"),
        }
    }

    fn delete(&mut self, block: &Stored, fault: Fault) {
        match (self.under(fault, |tier| tier.delete(block)), fault) {
            // A full file system is given room, where there is any, and asked again.
            (status, Fault::Append(errno)) if errno != libc::ENOSPC || status != Status::OK => {
                assert_eq!(status, told(errno), "{fault:?}");
            }
            (status, _) => {
                assert_eq!(status, Status::OK, "{fault:?}");
                self.living.remove(&block.number);
                self.damaged.retain(|number| *number != block.number);
                assert_eq!(self.tier().get(block), Err(Status::MISS));
            }
        }
    }

    fn flip(&mut self, block: &Stored, byte: u64) {
        let data = OpenOptions::new().read(true).write(true).open(self.place.path().join("data")).unwrap();
        let offset = (block.location & ((1 << 40) - 1)) * 4096 + byte % block.length;
        let mut bytes = [0];
        data.read_exact_at(&mut bytes, offset).unwrap();
        data.write_all_at(&[bytes[0] ^ 4], offset).unwrap();
        match self.damaged.iter().position(|number| *number == block.number) {
            // Twice in the same bit would repair it.
            Some(_) => data.write_all_at(&bytes, offset).unwrap(),
            None => self.damaged.push(block.number),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put { length, fault } => self.put(length, fault),
            Step::Get { at, fault } => self.pick(at).iter().for_each(|block| self.read(block, fault)),
            Step::Delete { at, fault } => self.pick(at).iter().for_each(|block| self.delete(block, fault)),
            Step::Flip { at, byte } => self.pick(at).iter().for_each(|block| self.flip(block, byte)),
            Step::Flush { fails } => {
                self.faults.sync.store(if fails { libc::EIO } else { 0 }, SeqCst);
                // With nothing to make durable there is nothing to fail.
                let status = self.tier().nvme.flush();
                assert!(status == Status::OK || fails && status == Status::IO, "{status:?}");
                self.faults.sync.store(0, SeqCst);
            }
            Step::Kill => {
                let killed = copy_of(self.place.path());
                self.tier = None;
                self.place = killed;
                self.open();
            }
            Step::Stop => {
                self.tier.take().into_iter().for_each(Tier::shutdown);
                self.open();
            }
            Step::Shuffle(seed) => self.faults.shuffle.store(seed, SeqCst),
            Step::Repeat(on) => self.faults.repeat.store(on, SeqCst),
        }
    }
}

/// EINTR and EAGAIN are no errors to a piece: it is sent again.
fn is_error(errno: i32) -> bool {
    !matches!(errno, libc::EINTR | libc::EAGAIN)
}

fn told(errno: i32) -> Status {
    if errno == libc::ENOSPC { Status::NO_SPACE } else { Status::IO }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    // D5, E4, E6, E8: each failure is one operation's, and a kill at any point finds what the model has.
    #[test]
    fn random_histories_under_random_faults_agree_with_the_model(
        steps in prop::collection::vec(step(), 1..STEPS_MAX),
        more in prop::sample::select(vec!["", "io = \"threads\"", "direct = \"off\"", "depth = 1"]),
    ) {
        let mut world = World::new(more);
        for step in &steps {
            world.step(step);
        }
        // Whatever failed, everybody else's block is whole, now and after a kill.
        world.living.values().for_each(|block| world.read(block, Fault::None));
        world.step(&Step::Kill);
    }
}
