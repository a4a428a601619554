//! What the host of a runtime may show: where the daemon is, that it is away, or that it is there again. Once for each
//! time, and in no log of this crate: an engine has several runtimes, and its host says it once.

use std::path::PathBuf;

use crate::client::Client;
use crate::options::Error;

/// News for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There is no session: every lookup is a miss until there is one.
    Away {
        /// Where the daemon is looked for.
        socket: PathBuf,
        /// Why there is none.
        reason: String,
    },
    /// There is one: the first word, or after it was away.
    Attached {
        /// The daemon's socket.
        socket: PathBuf,
        /// The daemon's version.
        daemon: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Away { socket, reason } => write!(
                f,
                "no umbpd on {}: nothing is loaded or stored until one is there; start umbpd, or set socket ({reason})",
                socket.display()
            ),
            Self::Attached { socket, daemon } => write!(f, "attached to umbpd {daemon} on {}", socket.display()),
        }
    }
}

/// Whether the last word was that the daemon is away; none = there was no word yet.
#[derive(Debug, Default)]
pub(super) struct Watch {
    away: Option<bool>,
}

impl Watch {
    /// News since the last call; at most one.
    pub(super) fn look(&mut self, client: &Client, socket: &std::path::Path) -> Option<Notice> {
        let socket = socket.to_owned();
        match (client.detached(), self.away) {
            (Some(error), None | Some(false)) => {
                self.away = Some(true);
                let reason = match error {
                    Error::Detached { reason, .. } => reason,
                    other => other.to_string(),
                };
                Some(Notice::Away { socket, reason })
            }
            (None, None | Some(true)) => {
                self.away = Some(false);
                let daemon = client.welcome().map_or_else(String::new, |welcome| welcome.daemon);
                Some(Notice::Attached { socket, daemon })
            }
            _ => None,
        }
    }
}
