//! The backend: segments by the host's number, and what was fallen back from.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use umbp_plugin_api::backend::{Level, Stats};
use umbp_plugin_api::{
    Backend, Host, Info, OpenConfig, OpenError, Opened, Operation, OptionsError, Role, Segment, Status, Submitted,
};

use crate::holders::{UNMAP_WAIT_MS, wait_for_unmap};
use crate::limits::{Limits, Roots, in_words, rounded};
use crate::numa::Placement;
use crate::options::{HugePages, Options};
use crate::segment::{Mapping, PAGE_BYTES, Pages, Recipe, make};

/// Most segments of one tier; one more is refused.
pub const MAX_SEGMENTS: usize = 4096;

/// Tiers of at least so many bytes tell how far pre-faulting is.
const PROGRESS_FROM_BYTES: u64 = 1 << 30;

/// A line of progress after each such part of the capacity.
const PROGRESS_PARTS: u64 = 10;

/// A tier in host memory.
pub struct Dram {
    host: Host,
    tier: String,
    capacity: u64,
    started: Instant,
    options: Options,
    // The only lock; nothing else is taken under it, and no host service is called.
    state: Mutex<State>,
}

struct State {
    recipe: Recipe,
    segments: HashMap<u64, Mapping>,
    /// Segments being made, which count towards the bound.
    pending: usize,
    prefaulted: u64,
    told_not_placed: bool,
    told_not_locked: bool,
}

impl Dram {
    /// As `open`, under the given limits.
    pub fn open_within(config: &OpenConfig, host: Host, limits: &Limits) -> Result<(Self, Opened), OpenError> {
        let options = Options::parse(&config.options)?;
        let tier = &config.tier;
        let placement = Placement::resolve(options.numa)
            .map_err(|error| OpenError::Environment(format!("tier `{tier}`: {error}")))?;
        let (pages, fallback) = choose_pages(options.hugepages, config.capacity);
        let what = format!("tier `{tier}`");
        limits.check_file(&what, config.capacity).map_err(OpenError::TooLarge)?;
        if !pages.reserved() {
            limits.check_memory(&what, config.capacity).map_err(OpenError::TooLarge)?;
        }
        if let Some(reason) = fallback {
            tell_normal_pages(&host, tier, options.hugepages, &reason);
        }
        let recipe = Recipe { pages, placement, lock: options.mlock, threads: options.prefault_threads };
        let report = describe(&options, pages);
        let state = State {
            recipe,
            segments: HashMap::new(),
            pending: 0,
            prefaulted: 0,
            told_not_placed: false,
            told_not_locked: false,
        };
        let dram = Self {
            host,
            tier: tier.clone(),
            capacity: config.capacity,
            started: Instant::now(),
            options,
            state: Mutex::new(state),
        };
        let opened = Opened { alignment: PAGE_BYTES, largest_payload: config.capacity, file_extent: false, report };
        Ok((dram, opened))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_one(&self, id: u64, asked: u64, limits: &Limits) -> Result<Segment, OpenError> {
        let what = format!("segment {id} of tier `{}`", self.tier);
        let recipe = self.state().recipe.clone();
        limits.check_file(&what, asked).map_err(OpenError::TooLarge)?;
        let name = format!("umbp-{}-{id}", self.tier);
        if recipe.pages.reserved() {
            match make(&name, round_up(asked, recipe.pages)?, &recipe) {
                Ok(made) => return Ok(self.keep(id, made)),
                Err(error) => {
                    let normal = State::normal_pages(self.options.hugepages);
                    let first = std::mem::replace(&mut self.state().recipe.pages, normal).reserved();
                    if first {
                        tell_normal_pages(&self.host, &self.tier, self.options.hugepages, &error.to_string());
                    }
                }
            }
        }
        let recipe = self.state().recipe.clone();
        let length = round_up(asked, recipe.pages)?;
        limits.check_memory(&what, length).map_err(OpenError::TooLarge)?;
        let made = make(&name, length, &recipe)
            .map_err(|error| OpenError::Environment(format!("tier `{}`: {error}", self.tier)))?;
        Ok(self.keep(id, made))
    }

    fn keep(&self, id: u64, made: crate::segment::Made) -> Segment {
        let length = made.mapping.length() as u64;
        let segment = Segment { fd: made.fd, address: made.mapping.address(), length };
        let mut state = self.state();
        let before = state.prefaulted;
        state.prefaulted += length;
        let done = state.prefaulted;
        state.segments.insert(id, made.mapping);
        let tell_place = made.not_placed.filter(|_| !std::mem::replace(&mut state.told_not_placed, true));
        let tell_lock = made.not_locked.filter(|_| !std::mem::replace(&mut state.told_not_locked, true));
        drop(state);
        if let Some(error) = tell_place {
            let text = format!(
                "tier `{}`: numa placement refused ({error}); pages come from where the kernel puts them; \
                 give the daemon CAP_SYS_NICE or set numa = \"none\"",
                self.tier
            );
            fall_back(&self.host, "fallback.numa", &text);
        }
        if let Some(error) = tell_lock {
            let limit = getrlimit(Resource::Memlock).current.map_or_else(|| "unlimited".to_owned(), in_words);
            let text = format!(
                "tier `{}`: memory cannot be locked ({error}); it stays unlocked; RLIMIT_MEMLOCK is {limit}: raise it \
                 (`ulimit -l`, LimitMEMLOCK= of the unit) or set mlock = false",
                self.tier
            );
            fall_back(&self.host, "fallback.mlock", &text);
        }
        self.tell_progress(before, done);
        segment
    }

    fn tell_progress(&self, before: u64, done: u64) {
        let part = (self.capacity / PROGRESS_PARTS).max(1);
        if self.capacity >= PROGRESS_FROM_BYTES && done / part > before / part {
            let text = format!(
                "tier `{}`: pre-faulted {} of {} in {:.1} s",
                self.tier,
                rounded(done),
                rounded(self.capacity),
                self.started.elapsed().as_secs_f64()
            );
            self.host.log(Level::Info, &text);
        }
    }
}

impl State {
    const fn normal_pages(asked: HugePages) -> Pages {
        match asked {
            HugePages::Auto => Pages::Advised,
            HugePages::Off | HugePages::TwoMiB | HugePages::OneGiB => Pages::Normal,
        }
    }
}

impl Backend for Dram {
    const INFO: Info = Info {
        name: "dram",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Storage,
        mappable: true,
        persistent: false,
        shared: false,
    };

    fn check_options(text: &str) -> Result<String, OptionsError> {
        Ok(Options::parse(text)?.resolved())
    }

    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
        let first = Self::open_within(config, host.clone(), &Limits::read());
        let Err(OpenError::TooLarge(_)) = first else { return first };
        // The pool of an earlier daemon is charged until its clients let go of it.
        let roots = Roots::default();
        let shortage = || Limits::read_from(&roots).memory_shortage(config.capacity);
        let held = wait_for_unmap(&roots.proc, Duration::from_millis(UNMAP_WAIT_MS), shortage);
        Self::open_within(config, host, &Limits::read()).map_err(|error| match (error, held) {
            (OpenError::TooLarge(message), Some(names)) => {
                OpenError::TooLarge(format!("{message}; memory of an earlier pool is still mapped by {names}"))
            }
            (error, _) => error,
        })
    }

    fn segment_create(&self, id: u64, length: u64) -> Result<Segment, OpenError> {
        {
            let mut state = self.state();
            let count = state.segments.len() + state.pending;
            if length == 0 || state.segments.contains_key(&id) || count >= MAX_SEGMENTS {
                return Err(OpenError::Environment(format!(
                    "tier `{}`: segment {id} of {length} bytes refused: a segment has a length and a number of its \
                     own, and a tier has at most {MAX_SEGMENTS} ({count} now)",
                    self.tier
                )));
            }
            state.pending += 1;
        }
        let made = self.make_one(id, length, &Limits::read());
        self.state().pending -= 1;
        made
    }

    fn segment_destroy(&self, id: u64) {
        // Bound to a name, so that unmapping happens after the lock is let go.
        let mapping = self.state().segments.remove(&id);
        drop(mapping);
    }

    unsafe fn region_register(&self, _id: u64, _address: *mut u8, _length: u64, _device: &str) -> Status {
        Status::OK
    }

    fn region_unregister(&self, _id: u64) {}

    fn namespace_put(&self, _id: u32, _digest: &[u8; 32], _descriptor: &[u8]) -> Status {
        Status::OK
    }

    fn namespace_drop(&self, _id: u32) {}

    fn submit(&self, _operations: &[Operation], results: &mut [Submitted]) {
        // The host allocates in the segments and moves the bytes itself.
        results.fill(Submitted::rejected(Status::UNSUPPORTED));
    }

    fn stats(&self) -> Stats {
        let medium_bytes = self.state().segments.values().map(|mapping| mapping.length() as u64).sum();
        Stats { resident_bytes: 0, medium_bytes, blocks: 0 }
    }

    /// Nothing is in flight and no thread runs. The mappings stay until the value is dropped, since other backends
    /// may still have them registered.
    fn shutdown(&self, _deadline: Duration) {}
}

fn fall_back(host: &Host, name: &str, text: &str) {
    host.log(Level::Warn, text);
    host.count(name, 1);
}

fn tell_normal_pages(host: &Host, tier: &str, asked: HugePages, reason: &str) {
    let size = if asked == HugePages::OneGiB { "1 GiB" } else { "2 MiB" };
    let text = format!(
        "tier `{tier}`: no {size} pages, normal pages are used: {reason}; reserve more (vm.nr_hugepages) or set \
         hugepages = \"off\""
    );
    // With "auto" normal pages are no disappointment.
    host.log(if asked == HugePages::Auto { Level::Info } else { Level::Warn }, &text);
    host.count("fallback.hugepages", 1);
}

/// The pages to try, and why they are not those that were asked for.
fn choose_pages(asked: HugePages, capacity: u64) -> (Pages, Option<String>) {
    let pages = match asked {
        HugePages::Off => return (Pages::Normal, None),
        HugePages::Auto | HugePages::TwoMiB => Pages::TwoMiB,
        HugePages::OneGiB => Pages::OneGiB,
    };
    let kib = pages.bytes() >> 10;
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
    let free = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    let needed = capacity.div_ceil(pages.bytes());
    if free >= needed {
        return (pages, None);
    }
    (State::normal_pages(asked), Some(format!("{needed} are needed and {path} is {free}")))
}

fn describe(options: &Options, pages: Pages) -> String {
    let place = match options.numa {
        crate::options::Numa::None => String::new(),
        crate::options::Numa::Interleave => ", interleaved".to_owned(),
        crate::options::Numa::Node(node) => format!(", node {node}"),
    };
    let lock = if options.mlock { ", to be locked" } else { "" };
    format!("memfd, {}{place}{lock}, {} threads pre-fault", pages.name(), options.prefault_threads)
}

fn round_up(length: u64, pages: Pages) -> Result<u64, OpenError> {
    let step = pages.bytes();
    length.checked_next_multiple_of(step).ok_or_else(|| OpenError::TooLarge(format!("{length} bytes are no length")))
}
