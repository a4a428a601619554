//! The daemon inside this process, for engines that bring their own.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use umbpd::StartOptions;
use umbpd::embedded::{self, Host, Joined};

use crate::without_interpreter;

/// This process's part in an engine's own daemon: the first process of a socket serves, the others attach to it.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct Embedded {
    socket: PathBuf,
    about: String,
    serves: bool,
    host: Mutex<Option<Host>>,
}

#[pymethods]
impl Embedded {
    /// Serves, unless somebody does already on the same socket; returns when the daemon is up, which takes as long as
    /// pre-faulting its pool. `config` is a deployment's file; `program` the umbpd whose `../plugins` holds backends.
    #[new]
    fn new(py: Python<'_>, config: Option<PathBuf>, socket: Option<PathBuf>, program: PathBuf) -> PyResult<Self> {
        // Warnings of the daemon, and of this process's clients, would be nobody's.
        umbpd::process::init_log();
        let origin = config.as_ref().map_or("embedded default".to_owned(), |file| file.display().to_string());
        py.detach(|| {
            let config =
                embedded::config(config, socket.as_deref()).map_err(|errors| PyValueError::new_err(errors.lines()))?;
            let socket = config.daemon.socket.value.clone();
            let options = StartOptions { program: Some(program), ..StartOptions::new(origin) };
            let joined = embedded::join(config, options).map_err(|error| PyRuntimeError::new_err(report(&error)))?;
            let (about, host) = match joined {
                Joined::Host(host) => (host.greeting().to_owned(), Some(host)),
                Joined::Guest { pid } => (format!("umbpd serves on {} (pid {pid})", socket.display()), None),
            };
            Ok(Self { socket, about, serves: host.is_some(), host: Mutex::new(host) })
        })
    }

    /// Where to attach.
    #[getter]
    fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// One line for people.
    #[getter]
    fn about(&self) -> &str {
        &self.about
    }

    /// This process is the one that serves.
    #[getter]
    fn serves(&self) -> bool {
        self.serves
    }

    /// Drains and stops what this process serves; nothing where it does not.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

/// Stops it, if nobody has.
impl Drop for Embedded {
    fn drop(&mut self) {
        without_interpreter(|| self.end());
    }
}

impl Embedded {
    /// Whoever else stops it meanwhile waits for the lock, and so for the end.
    fn end(&self) {
        *self.host.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// An error with its sources.
fn report(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
