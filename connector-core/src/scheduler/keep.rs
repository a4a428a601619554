//! Which blocks a later match can use; the others are not worth storing.

use super::config::{Config, Geometry, GroupKind, gcd};
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
            GroupKind::Mamba { align: false } => {
                self.config.retention_interval.is_none() || self.has_point(end, self.geometry.spans[group], 1, false)
            }
            GroupKind::SlidingWindow { window } => self.window(position, group, window, end),
        }
    }

    /// Some point where a match may end lies at `from` or a whole number of spans, fewer than `count`, behind it. Such
    /// are the multiples of the interval, and where the prompt is replayed from.
    fn has_point(&self, from: u64, span: u64, count: u64, eagle: bool) -> bool {
        let end = from.saturating_add(span.saturating_mul(count.saturating_sub(1)));
        let reaches = |point: u64| (from..=end).contains(&point) && (point - from).is_multiple_of(span);
        let interval = self.config.retention_interval.unwrap_or(self.geometry.block);
        // `from` is a multiple of the span, so that a point must be one of both.
        let every = match interval {
            0 => None,
            _ => (interval / gcd(interval, span)).checked_mul(span),
        };
        let next = every.and_then(|every| from.checked_next_multiple_of(every));
        next.is_some_and(|next| count > 0 && next <= end)
            || (self.config.retention_interval.is_some()
                && self.replay_points(eagle).into_iter().flatten().any(reaches))
    }

    fn replay_points(&self, eagle: bool) -> [Option<u64>; 2] {
        let block = self.geometry.block;
        let cut = |tokens: u64| tokens / block * block;
        let before_last = cut(self.prompt_tokens.saturating_sub(1));
        if eagle {
            [cut(self.prompt_tokens), before_last].map(|point| point.checked_sub(block))
        } else {
            [Some(before_last), None]
        }
    }

    fn window(&self, position: usize, group: usize, window: u64, end: u64) -> bool {
        let span = self.geometry.spans[group];
        let eagle = self.config.options.eagle && super::prefix::asks_to_the_end(self.classes, position);
        let shift = u64::from(eagle);
        let need = (window - 1).div_ceil(span) + shift;
        // One of the last `need` blocks before a point, which lies a block before the run's end with a drafter.
        self.has_point(end.saturating_sub(shift * span), span, need, eagle)
    }
}
