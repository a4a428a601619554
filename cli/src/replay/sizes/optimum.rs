//! The offline optimum (Belady's MIN with bypass): of all blocks it keeps those that are asked for again the soonest,
//! and takes none in whose next use is later than all of theirs. A parent's next use is never later than its child's,
//! and of two alike the deeper leaves, so what it keeps are whole prefixes: no policy that keeps such has more hits.

use std::collections::{BTreeSet, HashMap};

use super::Case;
use crate::replay::prefix_cache::PrefixCache;
use crate::replay::report::ratio;

/// When a block is asked for next (number of a request), and where it stands in its chain.
type Next = (usize, usize);

pub(crate) fn hit_ratio(case: &Case<'_>, blocks: usize) -> f64 {
    let mut following: HashMap<u64, usize> = HashMap::new();
    let mut next: Vec<Vec<Option<usize>>> = Vec::with_capacity(case.requests.len());
    for (at, request) in case.requests.iter().enumerate().rev() {
        next.push(request.ids.iter().map(|id| following.insert(*id, at)).collect());
    }
    next.reverse();
    let mut front = PrefixCache::new(case.gpu_blocks);
    let mut kept: HashMap<u64, Next> = HashMap::new();
    let mut order: BTreeSet<(Next, u64)> = BTreeSet::new();
    let (mut hits, mut total) = (0, 0);
    for (at, (request, next)) in case.requests.iter().zip(&next).enumerate() {
        let known = front.leading(&request.ids);
        if at >= case.warm_up {
            hits += request.ids[known..].iter().take_while(|id| kept.contains_key(id)).count() as u64;
            total += request.ids.len() as u64;
        }
        for (depth, (id, next)) in request.ids.iter().zip(next).enumerate() {
            if let Some(old) = kept.remove(id) {
                order.remove(&(old, *id));
            }
            if let Some(next) = next {
                kept.insert(*id, (*next, depth));
                order.insert(((*next, depth), *id));
            }
        }
        while order.len() > blocks {
            let Some((_, id)) = order.pop_last() else { break };
            kept.remove(&id);
        }
        front.touch(&request.ids);
    }
    ratio(hits, total)
}
