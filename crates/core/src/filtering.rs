//! From what a caller allows to the ids that this is now.

use std::sync::Arc;

use crate::copies::CopiesOf;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::file::store::Store;
use crate::graph::allowed::Allowed;
use crate::graph::filter::Filter;
use crate::graph::search::{Ranking, allows};
use crate::graph::{Graph, Scratch};
use crate::hits::Hits;
use crate::options::SearchOptions;
use crate::plane::find;
use crate::tag_index::{self, Answer};
use crate::tags::{self, TagQuery};

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
    engine: &'g Engine,
    graph: Graph<'g>,
    options: &SearchOptions<'_>,
    ranking: Ranking<'_>,
    scratch: &mut Scratch,
    mut search: impl FnMut(Graph<'g>, Option<Filter<'_>>, &mut Scratch) -> Hits,
) -> Hits {
    if options.keys.is_none() && options.tags.is_none() {
        let filter = options.filter.map(|bits| Filter { allowed: Allowed::Bits(bits), copies: None });
        return search(graph, filter, scratch);
    }
    let mut hits = Hits::default();
    for _ in 0..TRIES_MAX {
        let graph = graph.current();
        let set = Set::of(engine, options);
        let allowed = set.as_allowed();
        hits = search(graph, Some(Filter { allowed, copies: set.copies(engine) }), scratch);
        // A record that was replaced meanwhile is there under another id, and a slot may have got another record.
        let gone = |id: u32| graph.slots.get(id).is_none_or(|node| !node.is_live());
        let few = hits.len() < ranking.k.min(allowed.count(u32::MAX));
        if !few && options.keys.is_none() || !allowed.ids(u32::MAX).any(gone) {
            break;
        }
    }
    hits
}

/// The ids that an answer is chosen from.
enum Set {
    Own(Vec<u32>),
    Shared(Arc<Answer>),
}

impl Set {
    fn of(engine: &Engine, options: &SearchOptions<'_>) -> Set {
        let store = &engine.store;
        let by_bits = |id: &u32| options.filter.is_none_or(|bits| allows(bits, *id));
        if let Some(keys) = options.keys {
            let mut ids: Vec<u32> = keys.iter().filter_map(|key| find(store, key)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.retain(by_bits);
            if let Some(query) = options.tags {
                let mut own = Vec::new();
                ids.retain(|id| has_tags(store, *id, query, &mut own));
            }
            return Set::Own(ids);
        }
        let wanted = engine.tag_index.find(store, options.tags.unwrap_or(&TagQuery::default()));
        match options.filter {
            None => Set::Shared(wanted),
            Some(_) => Set::Own(wanted.set.as_allowed().ids(u32::MAX).filter(by_bits).collect()),
        }
    }

    fn as_allowed(&self) -> Allowed<'_> {
        match self {
            Set::Own(ids) => Allowed::Ids(ids),
            Set::Shared(answer) => answer.set.as_allowed(),
        }
    }

    /// Where there are no tags, or have been none so far, new records are not told of.
    fn copies<'a>(&'a self, engine: &'a Engine) -> Option<CopiesOf<'a>> {
        match self {
            Set::Shared(answer) if tag_index::is_tagged(&engine.store) => {
                Some(CopiesOf { copies: &engine.tag_index.copies, place: &answer.place })
            }
            _ => None,
        }
    }
}

/// Whether a record, which the caller has seen live since it was pinned, has the tags that a query wants.
pub fn has_tags(store: &Store, id: u32, query: &TagQuery, own: &mut Vec<u8>) -> bool {
    store.node(id).is_some_and(|node| tags::read(store, node, own)) && query.accepts(own)
}
