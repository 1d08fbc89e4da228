//! From what a caller allows to the ids that this is now.

use crate::error::{Error, Result};
use crate::file::store::Store;
use crate::graph::allowed::Allowed;
use crate::graph::{Graph, Scratch};
use crate::hits::Hits;
use crate::options::SearchOptions;
use crate::plane::find;

/// How often an answer is looked for again because records that were allowed have got other ids meanwhile.
const TRIES_MAX: usize = 4;

/// Checks what can be known to be wrong without looking at records.
pub fn check(store: &Store, options: &SearchOptions<'_>) -> Result<()> {
    if options.keys.is_some() && !store.config.unique_keys {
        return Err(Error::InvalidOption { name: "uniqueKeys", reason: "is needed to filter by keys" });
    }
    Ok(())
}

/// Answers a query with `search` for the ids that the options allow; `None` stands for all of them. The caller is pinned.
pub fn search<'g>(
    graph: Graph<'g>,
    options: &SearchOptions<'_>,
    scratch: &mut Scratch,
    mut search: impl FnMut(Graph<'g>, Option<&Allowed<'_>>, &mut Scratch) -> Hits,
) -> Hits {
    let Some(keys) = options.keys else {
        return search(graph, options.filter.map(Allowed::Bits).as_ref(), scratch);
    };
    let mut hits = Hits::default();
    for _ in 0..TRIES_MAX {
        let graph = graph.current();
        let mut ids: Vec<u32> = keys.iter().filter_map(|key| find(graph.store, key)).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut allowed = Allowed::Ids(ids);
        if let Some(bits) = options.filter {
            allowed = allowed.and(bits);
        }
        hits = search(graph, Some(&allowed), scratch);
        // A record that was replaced meanwhile is there under another id.
        let gone = |id: u32| graph.slots.get(id).is_none_or(|node| !node.is_live());
        if !allowed.ids(u32::MAX).any(gone) {
            break;
        }
    }
    hits
}
