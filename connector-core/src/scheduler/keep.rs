//! Which blocks a later match can use; the others are not worth storing.

use super::config::{Config, Geometry, GroupKind};
use super::prefix::Class;

/// The rule for one request.
pub(super) struct Keep<'a> {
    pub(super) config: &'a Config,
    pub(super) geometry: &'a Geometry,
    pub(super) classes: &'a [Class],
    pub(super) prompt_tokens: u64,
}

impl Keep<'_> {
    /// The block of this group (matched position, too) that ends at `end`.
    pub(super) fn is_useful(&self, position: usize, group: usize, end: u64) -> bool {
        match self.config.groups[group].kind {
            GroupKind::Full => true,
            GroupKind::Scratch | GroupKind::Mamba { align: true } => false,
            GroupKind::Mamba { align: false } => self.config.retention_interval.is_none() || self.is_point(end, false),
            GroupKind::SlidingWindow { window } => self.window(position, group, window, end),
        }
    }

    /// A match may end here: at a multiple of the interval, or where the prompt is replayed from.
    fn is_point(&self, end: u64, eagle: bool) -> bool {
        let block = self.geometry.block;
        match self.config.retention_interval {
            None => end.is_multiple_of(block),
            Some(interval) => {
                (interval > 0 && end.is_multiple_of(interval)) || self.replay_points(eagle).contains(&end)
            }
        }
    }

    fn replay_points(&self, eagle: bool) -> Vec<u64> {
        let block = self.geometry.block;
        let cut = |tokens: u64| tokens / block * block;
        let before_last = cut(self.prompt_tokens.saturating_sub(1));
        if eagle {
            let points = [cut(self.prompt_tokens), before_last];
            points.iter().filter_map(|point| point.checked_sub(block)).collect()
        } else {
            vec![before_last]
        }
    }

    fn window(&self, position: usize, group: usize, window: u64, end: u64) -> bool {
        let span = self.geometry.spans[group];
        let eagle = self.config.options.eagle && super::prefix::asks_to_the_end(self.classes, position);
        let shift = u64::from(eagle);
        let need = (window - 1).div_ceil(span) + shift;
        // The block is one of the last `need` before a point, which lies a block before the run's end with a drafter.
        (0..need).any(|behind| {
            let run_end = end + behind * span;
            run_end.checked_sub(shift * span).is_some_and(|point| self.is_point(point, eagle))
        })
    }
}
