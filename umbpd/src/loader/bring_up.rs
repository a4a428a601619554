//! A tier's plugin from its file to an open backend, on the tier's own thread: any step may block or hang.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use umbp_config::{Config, Options, Tier};
use umbp_plugin_api::backend::{OpenError, Role};
use umbp_plugin_api::host::{CheckError, HostOpenError, HostedBackend, LoadError, Plugin, PluginInfo};
use umbp_plugin_api::{OpenConfig, Opened, OptionsError};

use super::{Failure, chain, find};
use crate::engine::UNIT_BYTES;
use crate::engine::api::TierIndex;
use crate::tier::worker::Worker;
use crate::tier::{End, Ready, SegmentInfo, TierLink, segments};

/// A plugin that opened after its wait was given up gets this long for its shutdown.
const SHUTDOWN_MS: u64 = 5_000;

/// What is said on the way.
#[derive(Debug)]
pub enum Step {
    /// The shared object is loaded.
    Loaded(PluginInfo),
    /// The plugin is open, and serves as soon as it is told so.
    Ready(Ready),
    /// It does not serve.
    Failed(Failure),
}

/// What a tier's thread needs to know.
pub struct Order {
    /// Index of the tier.
    pub index: TierIndex,
    /// The deployment.
    pub config: Arc<Config>,
    /// Folders of plugins.
    pub folders: Vec<PathBuf>,
    /// The thread's queue, inbox and the like.
    pub link: TierLink,
}

impl Order {
    fn tier(&self) -> &Tier {
        &self.config.tiers[usize::from(self.index.0)]
    }
}

/// The whole life of a tier's thread. If nobody takes its steps any more, it shuts its plugin down and ends.
pub fn run(order: Order, steps: &Sender<(TierIndex, Step)>) {
    let ended = order.link.shared.clone();
    let say = |step| steps.send((order.index, step)).is_ok();
    match open(&order, &say) {
        Err(failure) => {
            say(Step::Failed(failure));
        }
        Ok((backend, ready)) => {
            if say(Step::Ready(ready)) {
                Worker::new(order.index, backend, order.link).run();
            } else {
                backend.shutdown(Duration::from_millis(SHUTDOWN_MS));
            }
        }
    }
    ended.set_ended(End::Clean);
}

fn open(order: &Order, say: &dyn Fn(Step) -> bool) -> Result<(HostedBackend, Ready), Failure> {
    let tier = order.tier();
    let path = find::file_of(&tier.backend, &order.folders)?;
    order.link.shared.enter("load");
    let plugin = load(&path)?;
    check_role(&order.config, order.index, plugin.info())?;
    say(Step::Loaded(plugin.info().clone()));
    order.link.shared.enter("check_options");
    check_options(&order.config, &owner(tier), &plugin, &tier.options)?;
    let settings = OpenConfig {
        tier: tier.name.to_string(),
        capacity: *tier.capacity,
        options: tier.options.text.clone(),
        slots: tier.slots(),
    };
    order.link.shared.enter("open");
    let services = order.link.services.clone();
    let (backend, opened) = plugin.open(&settings, services).map_err(|error| refused(order, error))?;
    check_alignment(&opened)?;
    let segments = if order.index.0 == 0 { make_segments(order, &backend)? } else { Vec::new() };
    order.link.shared.leave();
    Ok((backend, Ready { opened, segments }))
}

/// Every segment of the first tier, pre-faulted.
fn make_segments(order: &Order, backend: &HostedBackend) -> Result<Vec<SegmentInfo>, Failure> {
    let lengths = segments::plan(*order.tier().capacity).map_err(|error| Failure::Refuse(error.to_string()))?;
    order.link.shared.enter("segment_create");
    let make = |(id, length): (u64, u64)| {
        backend
            .segment_create(id, length)
            .map(|segment| SegmentInfo::new(id, segment))
            .map_err(|error| refused(order, error))
    };
    (0..).zip(lengths).map(make).collect()
}

/// A first tier must be mappable, a tier must store, and only a shared one has the keys of one.
pub(super) fn check_role(config: &Config, index: TierIndex, info: &PluginInfo) -> Result<(), Failure> {
    let at = usize::from(index.0);
    let tier = &config.tiers[at];
    if info.role != Role::Storage {
        let key = format!("tier.{}.backend", *tier.name);
        let value = format!("\"{}\"", *tier.backend);
        let problem = "this backend is a mover, not a storage tier";
        return Err(Failure::Config(config.error_at(
            &key,
            &value,
            &tier.backend.place,
            problem,
            "declare it under [[mover]]",
        )));
    }
    if at == 0 {
        config.check_first_tier(&|_| Some(info.mappable)).map_err(Failure::Config)?;
    }
    if !info.shared {
        config.check_unshared(tier).map_err(Failure::Config)?;
    }
    Ok(())
}

/// Extents of the first tier are whole units, so a tier cannot ask for a coarser alignment of its buffers.
fn check_alignment(opened: &Opened) -> Result<(), Failure> {
    if opened.alignment <= UNIT_BYTES {
        return Ok(());
    }
    Err(Failure::Environment(format!(
        "the backend needs buffers aligned to {} bytes, extents are aligned to {UNIT_BYTES}; \
         use a device with a smaller block size, or turn direct I/O off in the tier's options",
        opened.alignment
    )))
}

fn owner(tier: &Tier) -> String {
    format!("tier.{}", *tier.name)
}

/// Loads a shared object, a tier's or a mover's. Blocks, and may hang, since constructors run.
pub fn load(path: &Path) -> Result<Plugin, Failure> {
    Plugin::load(path).map_err(|error| {
        if let LoadError::Layout { detail, .. } = &error {
            tracing::debug!("{detail}");
        }
        Failure::Environment(chain(&error))
    })
}

/// Has a plugin check the options of `owner`, which is `tier.<name>` or `mover.<name>`; answers the resolved ones.
pub fn check_options(config: &Config, owner: &str, plugin: &Plugin, options: &Options) -> Result<String, Failure> {
    plugin.check_options(&options.text).map_err(|error| match error {
        CheckError::Options(error) => wrong_options(config, owner, options, error),
        CheckError::Panicked(text) => Failure::Environment(format!("backend panicked in check_options: {text}")),
    })
}

fn wrong_options(config: &Config, owner: &str, options: &Options, error: OptionsError) -> Failure {
    Failure::Config(config.options_error(owner, options, &error.message, error.span))
}

fn refused(order: &Order, error: HostOpenError) -> Failure {
    match error {
        HostOpenError::Open(OpenError::Options(error)) => {
            wrong_options(&order.config, &owner(order.tier()), &order.tier().options, error)
        }
        HostOpenError::Open(OpenError::Locked(text) | OpenError::TooLarge(text)) => Failure::Refuse(text),
        other => Failure::Environment(chain(&other)),
    }
}
