//! Movers: found, loaded and asked about their options as tiers are, each on its own thread, since any of it may hang.
//!
//! Nothing in this daemon copies through a mover yet. So none is opened, and each is told of, in the log and in status.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use umbp_config::Config;
use umbp_plugin_api::Role;
use umbp_plugin_api::host::PluginInfo;

use super::start::{MORE_THREADS, StartError, system};
use crate::check::NO_MOVER_IS_USED;
use crate::core::seat::MoverSeat;
use crate::engine::api::TierState;
use crate::loader::{Failure, bring_up, find};

/// What a mover's thread says on its way.
enum Step {
    Loaded(PluginInfo),
    Done(Result<(), Failure>),
}

/// Every mover, with what came of it; refuses the start for a wrong config, and for one that is required and fails.
pub(super) fn load_all(
    config: &Arc<Config>,
    program: Option<&Path>,
    wait: Duration,
) -> Result<Vec<MoverSeat>, StartError> {
    let folders = find::folders(&config.daemon.plugin_dirs, program);
    let (say, steps) = channel();
    let mut seats = Vec::new();
    for (at, mover) in config.movers.iter().enumerate() {
        let (config, folders, say) = (config.clone(), folders.clone(), say.clone());
        std::thread::Builder::new()
            .name(format!("umbp-mover-{at}"))
            .spawn(move || load(&config, at, &folders, &say))
            .map_err(system("start a mover's thread", MORE_THREADS))?;
        seats.push(MoverSeat {
            name: mover.name.to_string(),
            backend: mover.backend.to_string(),
            plugin: None,
            state: TierState::Declared,
            report: format!("the plugin has not returned from its start for {} s", wait.as_secs()),
            abandoned: true,
        });
    }
    drop(say);
    let until = Instant::now() + wait;
    let mut failed = vec![true; seats.len()];
    while seats.iter().any(|seat| seat.abandoned) {
        // Past the wait, or with every thread at its end, nothing more is said.
        let Ok((at, step)) = steps.recv_timeout(until.saturating_duration_since(Instant::now())) else { break };
        let seat: &mut MoverSeat = &mut seats[at];
        match step {
            Step::Loaded(info) => {
                seat.state = TierState::Loaded;
                seat.plugin = Some(format!("{} {} ({})", info.name, info.version, info.path.display()));
            }
            Step::Done(Err(Failure::Config(errors))) => return Err(errors.into()),
            Step::Done(result) => {
                failed[at] = result.is_err();
                seat.report = result.map_or_else(|failure| failure.text(), |()| NO_MOVER_IS_USED.to_owned());
                seat.abandoned = false;
            }
        }
    }
    for ((seat, mover), failed) in seats.iter().zip(&config.movers).zip(failed) {
        if failed && *mover.required {
            return Err(StartError::Mover { mover: seat.name.clone(), reason: seat.report.clone() });
        }
        tracing::warn!("mover {} is not used: {}", seat.name, seat.report);
    }
    Ok(seats)
}

fn load(config: &Config, at: usize, folders: &[PathBuf], say: &Sender<(usize, Step)>) {
    let mover = &config.movers[at];
    let looked_at = || {
        let path = find::file_of(&mover.backend, folders)?;
        let plugin = bring_up::load(&path)?;
        if plugin.info().role != Role::Mover {
            let path = path.display();
            let text = format!("{path} is a storage tier, not a mover; name it in a [[tier]], not in a [[mover]]");
            return Err(Failure::Environment(text));
        }
        // Who does not listen any more has given this mover up.
        let _ = say.send((at, Step::Loaded(plugin.info().clone())));
        bring_up::check_options(config, &format!("mover.{}", *mover.name), &plugin, &mover.options).map(drop)
    };
    let _ = say.send((at, Step::Done(looked_at())));
}
