//! How much of a prompt is there: the longest prefix that all groups allow.
//!
//! Sans everything: presence of a block is a question to a closure, so that rules and lookups stay apart.

use std::collections::BTreeSet;

use super::config::{Config, Geometry, GroupKind};

/// A block that a match uses: its index in the group's table, and the token at which the key's hash ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) index: usize,
    pub(super) end: u64,
}

/// The usable prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    /// Its tokens, the local prefix included.
    pub(super) tokens: u64,
    /// Per matched group (in the order of [`Geometry::matched`]), the blocks it uses.
    pub(super) named: Vec<Vec<Named>>,
}

/// Groups that behave alike.
#[derive(Clone, Debug)]
pub(super) struct Class {
    kind: GroupKind,
    span: u64,
    /// Positions in [`Geometry::matched`].
    members: Vec<usize>,
    eagle: bool,
}

/// What decides a match.
pub(super) struct Question<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) classes: &'a [Class],
    /// Tokens in the engine's own memory.
    pub(super) local: u64,
    /// Tokens that may be matched: all but the last.
    pub(super) limit: u64,
    /// Tokens that have hashes.
    pub(super) hashed: u64,
    /// The drafter's block is dropped.
    pub(super) eagle: bool,
    /// Is the block of this matched group, whose hash ends at this token, there?
    pub(super) present: &'a dyn Fn(usize, u64) -> bool,
}

/// The classes of a config, full attention first.
pub(super) fn classes(config: &Config, geometry: &Geometry) -> Vec<Class> {
    let flagged = geometry.matched.iter().any(|at| config.groups[*at].eagle);
    let mut classes: Vec<Class> = Vec::new();
    for (position, at) in geometry.matched.iter().enumerate() {
        let group = &config.groups[*at];
        let (kind, span) = (group.kind, geometry.spans[*at]);
        let eagle = config.options.eagle && (group.eagle || !flagged);
        match classes.iter_mut().find(|class| class.kind == kind && class.span == span) {
            Some(class) => {
                class.members.push(position);
                class.eagle |= eagle;
            }
            None => classes.push(Class { kind, span, members: vec![position], eagle }),
        }
    }
    classes.sort_by_key(|class| class.kind != GroupKind::Full);
    classes
}

/// Matched groups (positions) whose lookup asks up to the last hash.
pub(super) fn asks_to_the_end(classes: &[Class], position: usize) -> bool {
    classes.iter().any(|class| class.eagle && class.members.contains(&position))
}

/// What the leading run of a full class found.
#[derive(Clone, Copy, Default)]
struct Run {
    blocks: usize,
    /// A unit inside the block behind the run.
    inner: Option<u64>,
    tokens: u64,
}

impl Run {
    fn named(self, span: u64, local: u64, tokens: u64) -> Vec<Named> {
        let end = |index: usize| {
            let whole = (index as u64 + 1) * span;
            if index < self.blocks { Some(whole) } else { self.inner }
        };
        let blocks = (local / span) as usize..tokens.div_ceil(span) as usize;
        blocks.filter_map(|index| end(index).map(|end| Named { index, end })).collect()
    }
}

impl Question<'_> {
    fn all(&self, class: &Class, end: u64) -> bool {
        class.members.iter().all(|position| (self.present)(*position, end))
    }

    /// One group of full attention: whole blocks to the first miss, then into the next one.
    pub(super) fn one_full(&self) -> Match {
        let class = &self.classes[0];
        let unit = self.geometry.units[self.geometry.matched[0]].unwrap_or(class.span);
        let mut run = Run { blocks: (self.local / class.span) as usize, ..Run::default() };
        let most = self.limit;
        while (run.blocks as u64 + 1) * class.span <= most && self.all(class, (run.blocks as u64 + 1) * class.span) {
            run.blocks += 1;
        }
        run.tokens = run.blocks as u64 * class.span;
        run.inner = self.inner(class, run.tokens, most, unit);
        run.tokens = run.inner.unwrap_or(run.tokens);
        if self.eagle {
            run.tokens = run.tokens.saturating_sub(class.span);
        }
        let tokens = run.tokens.max(self.local);
        // The last block goes by the hash of the match's own end.
        run.blocks = (tokens / class.span) as usize;
        run.inner = (!tokens.is_multiple_of(class.span)).then_some(tokens);
        Match { tokens, named: vec![run.named(class.span, self.local, tokens)] }
    }

    /// The last present unit inside the block that begins at `start`.
    fn inner(&self, class: &Class, start: u64, most: u64, unit: u64) -> Option<u64> {
        let last = (start + class.span - 1).min(most) / unit * unit;
        let mut end = last;
        while end > start {
            if self.all(class, end) {
                return Some(end);
            }
            end -= unit;
        }
        None
    }

    /// Several groups, or one that is not full attention.
    pub(super) fn solve(&self) -> Match {
        let mut tokens = self.limit;
        let mut dropped: BTreeSet<usize> = BTreeSet::new();
        let mut runs: Vec<Option<Run>> = vec![None; self.classes.len()];
        let mut named: Vec<Vec<Named>> = vec![Vec::new(); self.classes.len()];
        let simple = self.classes.len() == 2 && self.classes[0].kind == GroupKind::Full;
        loop {
            let before = tokens;
            for (at, class) in self.classes.iter().enumerate() {
                if let Some(run) = runs[at] {
                    let step = if self.geometry.fine { self.geometry.alignment } else { class.span };
                    tokens = tokens.min(run.tokens) / step * step;
                    continue;
                }
                let drop = self.eagle && class.eagle && !dropped.contains(&at);
                let mut limit = tokens;
                if drop && self.geometry.matched.len() > 1 && !matches!(class.kind, GroupKind::Mamba { .. }) {
                    let inside =
                        self.geometry.fine && class.kind == GroupKind::Full && class.span > self.geometry.hash_block;
                    limit = (tokens + if inside { self.geometry.hash_block } else { class.span }).min(self.hashed);
                }
                let found = match class.kind {
                    GroupKind::Full => {
                        let run = self.full(class, limit, drop);
                        runs[at] = Some(run);
                        run.tokens
                    }
                    GroupKind::SlidingWindow { window } => self.window(class, window, limit, drop, &mut named[at]),
                    GroupKind::Mamba { .. } | GroupKind::Scratch => self.state(class, limit, &mut named[at]),
                };
                if drop {
                    dropped.insert(at);
                } else if found < tokens {
                    dropped.clear();
                }
                tokens = tokens.min(found);
            }
            if tokens >= before || simple || tokens == 0 {
                break;
            }
        }
        let tokens = if tokens > self.local { tokens } else { self.local };
        let mut all = vec![Vec::new(); self.geometry.matched.len()];
        for (at, class) in self.classes.iter().enumerate() {
            let last = tokens.div_ceil(class.span) as usize;
            let first = (self.local / class.span) as usize;
            let blocks: Vec<Named> = match runs[at] {
                Some(run) => run.named(class.span, self.local, tokens),
                None => named[at].iter().copied().filter(|named| (first..last).contains(&named.index)).collect(),
            };
            for member in &class.members {
                all[*member].clone_from(&blocks);
            }
        }
        Match { tokens, named: all }
    }

    fn full(&self, class: &Class, limit: u64, drop: bool) -> Run {
        let alignment = self.geometry.alignment;
        let mut run = Run::default();
        while (run.blocks as u64 + 1) * class.span <= limit && self.all(class, (run.blocks as u64 + 1) * class.span) {
            run.blocks += 1;
        }
        run.tokens = run.blocks as u64 * class.span;
        if self.geometry.fine && class.span > alignment {
            run.inner = self.inner(class, run.tokens, limit, alignment);
            run.tokens = run.inner.unwrap_or(run.tokens);
        }
        if drop {
            run.tokens = run.tokens.saturating_sub(alignment.min(class.span));
        }
        run.tokens = run.tokens / alignment * alignment;
        run
    }

    /// From the right, the first run that is long enough and ends where a match may.
    fn window(&self, class: &Class, window: u64, limit: u64, drop: bool, named: &mut Vec<Named>) -> u64 {
        let (span, alignment) = (class.span, self.geometry.alignment);
        let need = (window - 1).div_ceil(span) + u64::from(drop);
        let mut run = 0_u64;
        let mut end = 0_u64;
        for block in (1..=limit / span).rev() {
            let aligned = (block - u64::from(drop)) * span % alignment == 0;
            if !self.all(class, block * span) {
                run = 0;
            } else if run > 0 || aligned {
                if run == 0 {
                    end = block;
                }
                run += 1;
                if run >= need {
                    break;
                }
            }
        }
        let whole = run >= need && run > 0;
        if !whole {
            // The run that reaches the first block, if any.
            end = run;
            while !(end * span).is_multiple_of(alignment) {
                end -= 1;
            }
        }
        if drop && end > 0 {
            end -= 1;
            while !(end * span).is_multiple_of(alignment) {
                end -= 1;
            }
        }
        named.clear();
        let first = if whole { (end + u64::from(drop)).saturating_sub(need) } else { 0 };
        named.extend((first..end).map(|index| Named { index: index as usize, end: (index + 1) * span }));
        end * span
    }

    fn state(&self, class: &Class, limit: u64, named: &mut Vec<Named>) -> u64 {
        named.clear();
        let alignment = self.geometry.alignment;
        let mut end = limit / alignment * alignment;
        let unit = self.geometry.units[self.geometry.matched[class.members[0]]].unwrap_or(class.span);
        while end > 0 {
            if end.is_multiple_of(unit) && self.all(class, end) {
                named.push(Named { index: end.div_ceil(class.span) as usize - 1, end });
                return end;
            }
            end -= alignment;
        }
        0
    }
}
