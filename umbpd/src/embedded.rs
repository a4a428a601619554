//! The daemon inside an engine's process: the first process of an engine serves, on a thread of its own, and the
//! others attach to its socket as to any daemon.
//!
//! Who is first is decided by the lock beside the socket. When the process that serves ends, the others see a daemon
//! that is gone: misses, until a process that starts later serves on the same socket; nobody takes over in the middle
//! of its life. What the standalone program does to its whole process is left out: no signal is watched or ignored, no
//! limit is raised, and the process stays dumpable, since engines read each other's memory. A limit that would not do
//! is an error that names it ([`StartError::Limit`]); locked memory that is not to be had is a fallback of the backends.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use umbp_config::{Config, ConfigErrors, Source};

use crate::daemon::{Daemon, Ended, StartError, StartOptions};
use crate::loader::chain;
use crate::session::listen::ListenError;

/// What this process is to the socket.
#[derive(Debug)]
pub enum Joined {
    /// This process serves until the host is stopped or dropped.
    Host(Host),
    /// Another daemon serves there, or is coming up: attach to it.
    Guest {
        /// What the lock says of the process that serves.
        pid: String,
    },
}

/// A daemon that serves inside this process. Dropping it drains and stops it, within the config's `drain`; in a forked
/// child both do nothing.
#[derive(Debug)]
pub struct Host {
    socket: PathBuf,
    greeting: String,
    running: Option<Running>,
    process: u32,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Option<Ended>>,
}

/// The deployment of an embedded daemon: the file's, or the default one, checked as ever. The socket is `socket`, or
/// what file or environment set, or that of [`Config::embedded`].
pub fn config(file: Option<PathBuf>, socket: Option<&Path>) -> Result<Config, ConfigErrors> {
    let named = socket.map(|path| path.to_string_lossy().into_owned());
    Ok(Config::load(&Source::of_process(file.clone(), named))?.embedded(file.as_deref()))
}

/// Serves on the config's socket, unless somebody does already. Blocks until the daemon serves, which may take as long
/// as pre-faulting its pool; or until it is refused.
pub fn join(config: Config, options: StartOptions) -> Result<Joined, StartError> {
    let socket = config.daemon.socket.value.clone();
    let (say, started) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let serve = move || match Daemon::start(config, &options) {
        Ok(daemon) => {
            // Who asked waits for it.
            let _ = say.send(Ok(daemon.greeting()));
            let ended = daemon.run(async move { drop(stopped.await) });
            ended.inspect_err(|error| tracing::error!("the embedded daemon has ended: {}", chain(error))).ok()
        }
        Err(error) => {
            let _ = say.send(Err(error));
            None
        }
    };
    let thread = std::thread::Builder::new().name("umbp-embedded".to_owned()).spawn(serve);
    let thread = thread.map_err(|source| StartError::System {
        what: "start the embedded daemon's thread",
        remedy: crate::daemon::MORE_THREADS,
        source,
    })?;
    match started.recv() {
        Ok(Ok(greeting)) => {
            let running = Some(Running { stop, thread });
            Ok(Joined::Host(Host { socket, greeting, running, process: std::process::id() }))
        }
        Ok(Err(StartError::Listen(ListenError::Held { pid, .. }))) => Ok(Joined::Guest { pid }),
        Ok(Err(error)) => Err(error),
        Err(mpsc::RecvError) => {
            let source = std::io::Error::other("its thread panicked while it started");
            Err(StartError::System {
                what: "start the embedded daemon",
                remedy: "its log says why; this is a bug, report it",
                source,
            })
        }
    }
}

impl Host {
    /// Where it serves.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// One line for people: socket, and each tier with its state.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Drains and stops, within the config's `drain`; answers how it ended, or none where it had failed before.
    /// Plugins that do not return from their shutdown are left behind: their threads go with the process.
    pub fn stop(mut self) -> Option<Ended> {
        self.end()
    }

    fn end(&mut self) -> Option<Ended> {
        let Running { stop, thread } = self.running.take()?;
        if std::process::id() != self.process {
            // The thread is the parent's: there is nothing here to join, nor to detach.
            std::mem::forget((stop, thread));
            return None;
        }
        // A daemon that has ended already does not listen.
        let _ = stop.send(());
        let ended = thread.join().unwrap_or_else(|_| {
            tracing::error!("the embedded daemon's thread panicked");
            None
        });
        if let Some(ended) = ended.filter(|ended| ended.tiers_left > 0) {
            tracing::warn!("{} tiers of the embedded daemon did not shut down in time", ended.tiers_left);
        }
        ended
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}
