//! Threads begin and end here: the driver's with the choice of its port, and the probe for O_DIRECT.

use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::Level;
use umbp_plugin_api::{Host, OpenError};

use crate::compact::keep_house;
use crate::driver::Driver;
use crate::folder::{Folder, environment};
use crate::options::{Direct, Io, Options};
use crate::port::{Medium, Port, Probed, Wake, probe};
use crate::queue::locked;
use crate::store::{Opening, Store};

/// How long a broken driver waits for the kernel to let go of memory.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Threads of a tier. Each holds a sender that it drops at its end, so that the end can be awaited with a deadline.
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
    alive: Mutex<Option<Sender<()>>>,
    ended: Mutex<Receiver<()>>,
}

impl Threads {
    /// None yet.
    pub(crate) fn new() -> Self {
        let (alive, ended) = channel();
        Self { handles: Mutex::new(Vec::new()), alive: Mutex::new(Some(alive)), ended: Mutex::new(ended) }
    }

    /// One more.
    pub(crate) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let alive = locked(&self.alive).clone();
        let wrapped = move || {
            body();
            drop(alive);
        };
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(wrapped);
        let handle = handle.map_err(|error| OpenError::Environment(format!("cannot start a thread: {error}")))?;
        locked(&self.handles).push(handle);
        Ok(())
    }

    /// Waits for the end of all; false at the deadline, and the rest is left to itself.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        drop(locked(&self.alive).take());
        let left = deadline.saturating_duration_since(Instant::now());
        if locked(&self.ended).recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        for handle in locked(&self.handles).drain(..) {
            let _ = handle.join();
        }
        true
    }
}

/// How a driver thread came up.
struct Setup {
    waker: Arc<dyn Wake>,
    direct: bool,
    report: String,
}

/// Opens one path and begins its threads; answers it and a line about the way taken.
pub(crate) fn launch(
    opening: Opening,
    path: &Path,
    options: &Options,
    threads: &Threads,
) -> Result<(Arc<Store>, String), OpenError> {
    let (folder, namespaces) = opening.folder(path)?;
    warn_if_disk_is_small(&opening, &folder);
    let folder = Arc::new(folder);
    let (told, setup) = channel();
    let (give, taken) = channel::<Arc<Store>>();
    let (medium, host, options_) = (opening.medium.clone(), opening.host.clone(), options.clone());
    let probed = folder.clone();
    let number = opening.index;
    threads.spawn(&format!("nvme-ring-{number}"), move || match set_up(&probed, &options_, &*medium, &host) {
        Err(error) => drop(told.send(Err(error))),
        Ok((port, setup)) => {
            drop(told.send(Ok(setup)));
            if let Ok(store) = taken.recv() {
                drive(store, port, options_.depth);
            }
        }
    })?;
    let dead = || OpenError::Environment(format!("path {}: the thread for its I/O died at start", path.display()));
    let setup: Setup = setup.recv().map_err(|_| dead())??;
    let store = Arc::new(opening.store(folder, namespaces, setup.direct)?);
    store.inbox.connect(setup.waker);
    let (keeper, house, window) = (store.clone(), store.clone(), options.sync_window);
    threads.spawn(&format!("nvme-keep-{number}"), move || keeper.keeper.run(&keeper))?;
    threads.spawn(&format!("nvme-sync-{number}"), move || keep_house(&house, window))?;
    give.send(store.clone()).map_err(|_| dead())?;
    Ok((store, setup.report))
}

fn drive(store: Arc<Store>, mut port: Box<dyn Port>, depth: u32) {
    let direct = rustix::fs::fcntl_getfl(&store.data).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
    if let Err(error) = port.attach(store.data.as_raw_fd()) {
        store.host.count("fallback.registered_files", 1);
        store.host.log(Level::Warn, &format!("the data file is used without registration: {error}"));
    }
    let mut driver = Driver::new(store.clone(), port, depth, direct);
    let cause = match catch_unwind(AssertUnwindSafe(|| driver.run())) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => format!("its port is broken: {error}"),
        Err(_) => "it panicked".to_owned(),
    };
    store.host.count("panics", 1);
    let path = store.folder.path().display();
    store.host.log(Level::Error, &format!("path {path}: I/O ends, {cause}"));
    drop(store.inbox.close());
    driver.fail_all(DRAIN_DEADLINE);
}

fn set_up(
    folder: &Folder,
    options: &Options,
    medium: &dyn Medium,
    host: &Host,
) -> Result<(Box<dyn Port>, Setup), OpenError> {
    let failed = |what: &str, error: io::Error| environment(folder.path(), what, &error);
    let (mut port, ring) = match options.io {
        Io::Threads => {
            let port = medium.threads(options.depth).map_err(|e| failed("start threads for I/O", e))?;
            (port, "threads, as configured".to_owned())
        }
        Io::IoUring => {
            let port = medium.ring(options.depth).map_err(|e| failed("use io_uring, which `io` demands", e))?;
            (port, "io_uring".to_owned())
        }
        Io::Auto => match medium.ring(options.depth) {
            Ok(port) => (port, "io_uring".to_owned()),
            Err(error) => {
                let text = format!("threads with pread and pwrite, since {}", refusal(&error));
                host.count("fallback.io_uring", 1);
                host.log(Level::Warn, &format!("path {}: {text}", folder.path().display()));
                (medium.threads(options.depth).map_err(|e| failed("start threads for I/O", e))?, text)
            }
        },
    };
    let (direct, way) = match options.direct {
        Direct::Off => (false, "page cache, as configured".to_owned()),
        Direct::Auto => match probe(folder, &mut *port) {
            Probed::Direct(alignment) => {
                // Told from the start, so that whoever watches it knows that O_DIRECT serves.
                host.count("fallback.direct", 0);
                (true, format!("O_DIRECT, {alignment}"))
            }
            Probed::Buffered(cause) => {
                host.count("fallback.direct", 1);
                host.log(Level::Warn, &format!("path {}: the page cache is used: {cause}", folder.path().display()));
                (false, format!("page cache, since {cause}"))
            }
        },
    };
    let setup = Setup { waker: port.waker(), direct, report: format!("{ring}, {way}") };
    Ok((port, setup))
}

/// Why io_uring was refused: the sysctl and a sandbox give the same errno, and have different remedies (F4).
fn refusal(error: &io::Error) -> String {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match (error.raw_os_error(), sysctl.trim()) {
        (Some(libc::EPERM), "1" | "2") => {
            format!("io_uring is refused ({error}): sysctl kernel.io_uring_disabled is {}", sysctl.trim())
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            format!("io_uring is refused ({error}) by a sandbox such as a container's seccomp profile")
        }
        (Some(libc::ENOSYS), _) => {
            format!("io_uring is missing ({error}): the kernel lacks it, or a sandbox hides it")
        }
        (Some(libc::ENOMEM), _) => format!("io_uring cannot lock memory ({error}): raise RLIMIT_MEMLOCK"),
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

fn warn_if_disk_is_small(opening: &Opening, folder: &Folder) {
    // Some (ramfs) tell no size.
    let Some(file_system) = rustix::fs::statvfs(folder.path()).ok().filter(|found| found.f_blocks > 0) else { return };
    let data = std::fs::metadata(folder.file("data")).map_or(0, |m| std::os::unix::fs::MetadataExt::blocks(&m) * 512);
    let free = file_system.f_bavail * file_system.f_frsize;
    let needed = opening.capacity.saturating_sub(data);
    if needed > free {
        opening.host.count("fallback.small_disk", 1);
        let path = folder.path().display();
        let text = format!(
            "path {path}: `capacity` may take {needed} bytes more, and {free} are free; stores will be refused when \
             the file system is full"
        );
        opening.host.log(Level::Warn, &text);
    }
}
