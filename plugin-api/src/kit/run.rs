//! Runs the checks, each on a thread of its own, and keeps their storage apart.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::{Backend, Role};

use super::checks::{ALL, Needs};
use super::options::KitOptions;
use super::report::{Check, Outcome, Report};
use super::subject::{Facts, Hosted, InProcess, Subject};

/// A check may last as long as so many waits.
const WAITS_OF_A_CHECK: u32 = 10;

/// After so many checks that did not end, the others are not run: each leaves a thread behind.
const MAX_HANGS: usize = 2;

/// After so many failures the kit waits less, so that a backend which never completes is told from in a minute.
const PATIENT_FAILURES: usize = 3;

/// How much less.
const IMPATIENCE: u32 = 10;

/// What every check is given.
pub(super) struct Lab {
    pub(super) subject: Box<dyn Subject>,
    pub(super) facts: Facts,
    pub(super) options: KitOptions,
    work: PathBuf,
    next_storage: AtomicUsize,
    failures: AtomicUsize,
}

/// Where one backend keeps its blocks, for one life or several. The folder goes when this does, since a check may leave
/// a whole tier behind.
pub(super) struct Storage {
    /// The options' text, with the folder in it.
    pub(super) options: String,
    folder: PathBuf,
}

impl Drop for Storage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The kit's own folder; removed at the end, whatever a hung check still holds in it.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Lab {
    /// Fresh storage.
    pub(super) fn storage(&self) -> Result<Storage, String> {
        let folder = self.work.join(self.next_storage.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&folder).map_err(|error| format!("the kit cannot create {}: {error}", folder.display()))?;
        Ok(Storage { options: self.options.text.replace("{work}", &folder.to_string_lossy()), folder })
    }

    /// Longest wait for one thing.
    pub(super) fn wait(&self) -> Duration {
        match self.failures.load(Ordering::Relaxed) {
            few if few < PATIENT_FAILURES => self.options.wait,
            _ => self.options.wait / IMPATIENCE,
        }
    }
}

/// Runs the kit on a shared object.
pub fn run(path: &Path, options: &KitOptions) -> Report {
    match Hosted::load(path) {
        Ok(subject) => run_on(Box::new(subject), options),
        Err(sentence) => broken(path.display().to_string(), "p01_the_file_is_a_backend", sentence),
    }
}

/// Runs the kit on a type of this process: no boundary, but a debugger finds its way.
pub fn run_in_process<B: Backend>(options: &KitOptions) -> Report {
    run_on(Box::new(InProcess::<B>::default()), options)
}

/// One line for a backend's test.
///
/// # Panics
/// With the report, if the shared object does not conform.
pub fn assert_conforms(path: &Path, options: &KitOptions) {
    let report = run(path, options);
    assert!(report.conforms(), "{report}");
}

/// As [`assert_conforms`], for a type of this process.
///
/// # Panics
/// With the report, if the backend does not conform.
pub fn assert_conforms_in_process<B: Backend>(options: &KitOptions) {
    let report = run_in_process::<B>(options);
    assert!(report.conforms(), "{report}");
}

fn run_on(subject: Box<dyn Subject>, options: &KitOptions) -> Report {
    let source = subject.source();
    let facts = match subject.facts() {
        Ok(facts) => facts,
        Err(sentence) => return broken(source, "p01_facts_are_known_without_open", sentence),
    };
    let work = match make_work(options) {
        Ok(work) => work,
        Err(sentence) => return broken(source, "p00_the_kit_has_a_folder", sentence),
    };
    let described = describe(&source, &facts);
    let lab = Arc::new(Lab {
        subject,
        facts,
        options: options.clone(),
        work: work.0.clone(),
        next_storage: AtomicUsize::new(0),
        failures: AtomicUsize::new(0),
    });
    let mut hangs = 0;
    let mut checks = Vec::with_capacity(ALL.len());
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.starts_with(only));
    for (name, needs, check) in ALL.iter().filter(|(name, ..)| wanted(name)) {
        let outcome = if hangs >= MAX_HANGS {
            Outcome::NotApplicable(format!("not run, since {hangs} checks did not end"))
        } else if let Some(reason) = needs.missing(&lab.facts) {
            Outcome::NotApplicable(reason.to_owned())
        } else {
            on_its_own_thread(&lab, *check).unwrap_or_else(|sentence| {
                hangs += 1;
                Outcome::Failed(sentence)
            })
        };
        if matches!(outcome, Outcome::Failed(_)) {
            lab.failures.fetch_add(1, Ordering::Relaxed);
        }
        checks.push(Check { name, outcome });
    }
    Report { subject: described, checks }
}

/// What a check is: it fails with a sentence.
pub(super) type CheckFn = fn(&Lab) -> Result<Verdict, String>;

/// How a check ends that does not fail.
pub(super) enum Verdict {
    Held,
    /// With the reason why there was nothing to hold.
    Void(String),
}

/// Ends within a bound, or `Err` when the check did not; its thread is left behind then.
fn on_its_own_thread(lab: &Arc<Lab>, check: CheckFn) -> Result<Outcome, String> {
    let (sender, receiver) = mpsc::channel();
    let its_lab = Arc::clone(lab);
    let thread = std::thread::Builder::new().name("umbp-kit".to_owned()).spawn(move || {
        let outcome = match catch_unwind(AssertUnwindSafe(|| check(&its_lab))) {
            Ok(Ok(Verdict::Held)) => Outcome::Passed,
            Ok(Ok(Verdict::Void(reason))) => Outcome::NotApplicable(reason),
            Ok(Err(sentence)) => Outcome::Failed(sentence),
            Err(payload) => Outcome::Failed(format!("panicked: {}", panic_text(&*payload))),
        };
        let _ = sender.send(outcome);
    });
    let thread = thread.map_err(|error| format!("the kit cannot start a thread: {error}"))?;
    let longest = lab.wait() * WAITS_OF_A_CHECK;
    match receiver.recv_timeout(longest) {
        Ok(outcome) => {
            let _ = thread.join();
            Ok(outcome)
        }
        Err(_) => Err(format!("a call into the backend did not return: the check did not end within {longest:?}")),
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "a value that is no text",
    }
}

fn make_work(options: &KitOptions) -> Result<Work, String> {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let below = options.work.clone().unwrap_or_else(std::env::temp_dir);
    let name = format!("umbp-kit-{}-{}", std::process::id(), RUN.fetch_add(1, Ordering::Relaxed));
    let path = below.join(name);
    std::fs::create_dir_all(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    Ok(Work(path))
}

fn broken(subject: String, name: &'static str, sentence: String) -> Report {
    Report { subject, checks: vec![Check { name, outcome: Outcome::Failed(sentence) }] }
}

fn describe(source: &str, facts: &Facts) -> String {
    let role = match facts.role {
        Role::Storage => "storage",
        Role::Mover => "mover",
    };
    let mut words = vec![role];
    for (holds, word) in [(facts.mappable, "mappable"), (facts.persistent, "persistent"), (facts.shared, "shared")] {
        if holds {
            words.push(word);
        }
    }
    format!("{} {} ({})\n{source}", facts.name, facts.version, words.join(", "))
}

impl Needs {
    /// Why a check is not for this backend.
    fn missing(self, facts: &Facts) -> Option<&'static str> {
        let storage = facts.role == Role::Storage;
        match self {
            Self::Anything => None,
            Self::Blocks | Self::Persistence if !storage => Some("a mover stores no blocks"),
            Self::Persistence if !facts.persistent => Some("not persistent: it recovers nothing"),
            Self::Blocks | Self::Persistence if facts.mappable => Some("mappable: the host moves the bytes itself"),
            Self::Segments if !facts.mappable => Some("not mappable: it provides no segments"),
            Self::Blocks | Self::Persistence | Self::Segments => None,
        }
    }
}
