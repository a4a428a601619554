//! What the host of a runtime may show: the daemon is away, or is there again. Once for each time.

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
    /// There is one, after it was away.
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

/// Whether the last word was that the daemon is away.
#[derive(Debug, Default)]
pub(super) struct Watch {
    away: bool,
}

impl Watch {
    /// News since the last call; at most one, which is also logged.
    pub(super) fn look(&mut self, client: &Client, socket: &std::path::Path) -> Option<Notice> {
        let socket = socket.to_owned();
        match (client.detached(), self.away) {
            (Some(error), false) => {
                self.away = true;
                let reason = match error {
                    Error::Detached { reason, .. } => reason,
                    other => other.to_string(),
                };
                let notice = Notice::Away { socket, reason };
                tracing::warn!("{notice}");
                Some(notice)
            }
            (None, true) => {
                self.away = false;
                let daemon = client.welcome().map_or_else(String::new, |welcome| welcome.daemon);
                let notice = Notice::Attached { socket, daemon };
                tracing::info!("{notice}");
                Some(notice)
            }
            _ => None,
        }
    }
}
