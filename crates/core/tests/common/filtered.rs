//! Searches confined by bits, keys and tags, in any combination, against a model.

use super::{Model, Rng};
use vecplane_core::{Plane, SearchOptions, Tag, TagQuery, TagSet};

/// A query by tags, of those that records have and of others.
fn tag_query(model: &Model, rng: &mut Rng) -> TagQuery {
    let set = |rng: &mut Rng, most: usize| {
        let id = model.some_id(rng);
        let own = id.map(|id| model.records[&id].tags.clone()).unwrap_or_default();
        let own: Vec<Tag<'_>> = own.iter().filter(|_| rng.chance(0.5)).take(most).collect();
        let other = rng.chance(0.2).then_some(Tag::Text("nobody has this"));
        TagSet::new(own.into_iter().chain(other)).unwrap()
    };
    let any_of = rng.chance(0.6).then(|| set(rng, 3));
    let (all, none) = (rng.chance(0.5), rng.chance(0.5));
    TagQuery {
        any_of,
        all_of: if all { set(rng, 2) } else { TagSet::default() },
        none_of: if none { set(rng, 2) } else { TagSet::default() },
    }
}

/// Whatever the combination: the nearest of the records that all of its parts allow, and as many as there are.
pub fn check_filtered(plane: &Plane, model: &Model, rng: &mut Rng, query: &[f32]) {
    let k = rng.range(1..=30);
    let tags = rng.chance(0.9).then(|| tag_query(model, rng));
    let bits = rng.chance(0.3).then(|| rng.bytes(model.records.len() / 8 + 1));
    let keys: Vec<Vec<u8>> =
        model.records.values().filter(|_| rng.chance(0.3)).map(|record| record.key.clone()).collect();
    let keys = (model.options.unique_keys && rng.chance(0.2)).then_some(keys);
    let bit = |bits: &[u8], id: u32| bits.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1);
    let mut some = model.clone();
    some.records.retain(|id, record| {
        tags.as_ref().is_none_or(|tags| tags.accepts(record.tags.as_bytes()))
            && bits.as_ref().is_none_or(|bits| bit(bits, *id))
            && keys.as_ref().is_none_or(|keys| keys.contains(&record.key))
    });
    let options = SearchOptions {
        tags: tags.as_ref(),
        filter: bits.as_deref(),
        keys: keys.as_deref(),
        ..SearchOptions::new(k)
    };
    let exact = plane.search_exact_with(query, &options).unwrap();
    some.check_hits(query, &exact, k);
    assert_eq!(some.recall(query, &exact, k), 1.0, "an exact search missed one: {options:?}");
    let hits = plane.search(query, &options).unwrap();
    some.check_hits(query, &hits, k);
}
