//! How many tokens of a request the store has.

use std::collections::HashSet;

use crate::key::{BlockHash, LocalKey};
use crate::plan::RequestId;

use super::Scheduler;
use super::config::GroupKind;
use super::prefix::{Match, Question};
use super::request::{Asked, Matched};
use super::seam::{BlockPool, Hold, Lookups};

/// The answer to "how many tokens does the store have?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matching {
    /// Tokens beyond the local prefix; none = ask again later.
    pub tokens: Option<u64>,
    /// They are loaded beside the engine's steps.
    pub load_async: bool,
}

const NOTHING: Matching = Matching { tokens: Some(0), load_async: false };

/// Group, end of the hash, hash: what is asked, once for all ranks.
type Unit = (usize, u64, BlockHash);

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// Tokens behind the first `local_tokens` that can be loaded, never the whole prompt. `local_cached`: is the block
    /// of this group and hash in the engine's own memory?
    pub fn get_num_new_matched_tokens(
        &mut self,
        id: &RequestId,
        local_tokens: u64,
        local_cached: &dyn Fn(usize, BlockHash) -> bool,
    ) -> Matching {
        let least =
            if self.config.options.enable_partial_hash_hits { self.geometry.hash_block } else { self.geometry.block };
        let aligned = local_tokens.is_multiple_of(self.geometry.block);
        let can = self.bound && self.config.options.enable_lookup && aligned;
        let Some(request) = self.requests.get_mut(id) else { return NOTHING };
        request.matched = None;
        if !can || request.num_tokens < least || request.load_failed {
            self.drop_lookup(id);
            self.drop_match(id);
            return NOTHING;
        }
        let (tokens, hashes) = (request.num_tokens, request.hashes.len());
        let last = request.hashes.last().copied();
        let is_same = |asked: &Asked| {
            asked.local == local_tokens && asked.tokens == tokens && asked.hashes == hashes && asked.last == last
        };
        if request.asked.as_ref().is_some_and(|asked| !is_same(asked)) {
            self.drop_lookup(id);
        }
        let units = self.units(id, local_tokens);
        let answer = if self.config.options.lookup_async && !units.is_empty() {
            match self.answer_later(id, &units, local_tokens, last) {
                Some(answer) => answer,
                None => return Matching { tokens: None, load_async: false },
            }
        } else {
            self.drop_match(id);
            let keys = self.keys_of_units(&units);
            if keys.is_empty() { Some(Vec::new()) } else { self.runtime.lookup(&keys, Hold::Hits) }
        };
        let Some(present) = self.present(&units, answer, id) else { return NOTHING };
        let found = self.solve(id, local_tokens, local_cached, &present);
        self.keep_match(id, local_tokens, &found)
    }

    /// The answer of an asynchronous lookup; none while it is under way, which it is from the first call on.
    fn answer_later(
        &mut self,
        id: &RequestId,
        units: &[Unit],
        local: u64,
        last: Option<BlockHash>,
    ) -> Option<Option<Vec<bool>>> {
        let request = self.requests.get_mut(id)?;
        if let Some(asked) = &request.asked {
            let answer = self.runtime.take(asked.lookup)?;
            request.asked = None;
            return Some(answer);
        }
        let (tokens, hashes) = (request.num_tokens, request.hashes.len());
        self.drop_match(id);
        let lookup = self.runtime.submit(&self.keys_of_units(units), Hold::Hits);
        let asked = Asked { lookup, local, tokens, hashes, last };
        self.requests.get_mut(id)?.asked = Some(asked);
        None
    }

    fn keys_of_units(&self, units: &[Unit]) -> Vec<LocalKey> {
        units.iter().flat_map(|(group, _, hash)| Self::keys_of(&self.ranks, *group, *hash)).collect()
    }

    /// What is asked of the store: per group the boundaries behind the local prefix.
    fn units(&self, id: &RequestId, local: u64) -> Vec<Unit> {
        let mut units = Vec::new();
        let Some(request) = self.requests.get(id) else { return units };
        let hash_block = self.geometry.hash_block;
        let hashed = request.hashes.len() as u64 * hash_block;
        // With a drafter one more block may be needed, which is computed anew.
        let to_the_end = self.config.options.eagle && !self.is_one_full();
        for group in &self.geometry.matched {
            let Some(unit) = self.geometry.units[*group] else { continue };
            let most = if to_the_end { hashed } else { request.num_tokens.saturating_sub(1).min(hashed) };
            let mut end = local + unit;
            while end <= most {
                if let Some(hash) = request.hash(end, hash_block) {
                    units.push((*group, end, hash));
                }
                end += unit;
            }
        }
        units
    }

    /// The boundaries that every rank has. An answer of another length than the question is none.
    fn present(&mut self, units: &[Unit], answer: Option<Vec<bool>>, id: &RequestId) -> Option<HashSet<(usize, u64)>> {
        let ranks = self.ranks.len();
        let answer = answer.filter(|answer| answer.len() == units.len() * ranks)?;
        let mut held = Vec::new();
        let mut present = HashSet::new();
        for ((group, end, hash), of_ranks) in units.iter().zip(answer.chunks(ranks)) {
            let keys = Self::keys_of(&self.ranks, *group, *hash);
            held.extend(keys.zip(of_ranks).filter_map(|(key, there)| there.then_some(key)));
            if of_ranks.iter().all(|there| *there) {
                present.insert((*group, *end));
            }
        }
        self.requests.get_mut(id)?.held = held;
        Some(present)
    }

    fn solve(
        &self,
        id: &RequestId,
        local: u64,
        local_cached: &dyn Fn(usize, BlockHash) -> bool,
        present: &HashSet<(usize, u64)>,
    ) -> Match {
        let Some(request) = self.requests.get(id) else { return Match::default() };
        let (geometry, hash_block) = (&self.geometry, self.geometry.hash_block);
        let is_present = |position: usize, end: u64| {
            let group = geometry.matched[position];
            if end > local {
                return present.contains(&(group, end));
            }
            request.hash(end, hash_block).is_some_and(|hash| local_cached(group, hash))
        };
        let question = Question {
            geometry,
            classes: &self.classes,
            local,
            limit: request.num_tokens.saturating_sub(1),
            hashed: request.hashes.len() as u64 * hash_block,
            eagle: self.config.options.eagle,
            present: &is_present,
        };
        if self.is_one_full() { question.one_full() } else { question.solve() }
    }

    /// One matched group, of full attention: the simplest rule.
    fn is_one_full(&self) -> bool {
        let matched = &self.geometry.matched;
        matched.len() == 1 && self.config.groups[matched[0]].kind == GroupKind::Full
    }

    fn keep_match(&mut self, id: &RequestId, local: u64, found: &Match) -> Matching {
        let (geometry, load_async) = (&self.geometry, self.geometry.load_async);
        let tokens = found.tokens.saturating_sub(local);
        if tokens == 0 {
            self.drop_match(id);
            return NOTHING;
        }
        let Some(request) = self.requests.get_mut(id) else { return NOTHING };
        let mut blocks = Vec::new();
        for (named, group) in found.named.iter().zip(&geometry.matched) {
            for block in named {
                if let Some(hash) = request.hash(block.end, geometry.hash_block) {
                    blocks.push((*group, block.index, hash));
                }
            }
        }
        request.matched = Some(Matched { local, tokens, blocks });
        Matching { tokens: Some(tokens), load_async }
    }
}
