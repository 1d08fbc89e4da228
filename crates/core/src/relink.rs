//! The graph after a crash of the machine: links, parents and entry point of the records that a checksum has confirmed.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::file::layout::NONE;
use crate::graph::links;
use crate::options::NODES_MAX;

/// A record that a checksum confirms.
pub struct Found {
    pub id: u32,
    pub generation: u64,
    pub level: u8,
    /// Written by a host, whose links are left as they are.
    pub mirrored: bool,
}

/// Drops links to nothing, gives every record a parent again, and chooses the entry point: a host's own where it is there.
pub fn relink(engine: &Engine, records: &[Found], entry: u64) -> Result<()> {
    let store = &engine.store;
    let shared = store.shared();
    let mut pinned = engine.pin()?;
    let (graph, scratch) = pinned.parts();
    let layers = Layers::new(records);
    let mut keep = Vec::new();
    // A host's links may lead to nodes that are still to come, but not where none can be.
    let limit = store.config.max_nodes.unwrap_or(NODES_MAX);
    for found in records {
        let Some(node) = graph.slots.get(found.id) else { continue };
        for layer in 0..=found.level {
            let leads = |other: u32| if found.mirrored { other < limit } else { layers.has(other, layer) };
            clean_links(leads, found.id, graph.links(node, layer), &mut keep);
        }
    }
    let hosts = records.iter().find(|r| r.mirrored && r.id == entry as u32);
    if hosts.is_some_and(|record| entry >> 32 <= u64::from(record.level)) {
        shared.entry.store(entry, Ordering::Release);
    } else if let Some(entry) = records.iter().max_by_key(|r| (r.level, u32::MAX - r.id)) {
        shared.entry.store(u64::from(entry.level) << 32 | u64::from(entry.id), Ordering::Release);
    }
    let linked = || records.iter().filter(|found| !found.mirrored);
    let Some(root) = linked().min_by_key(|r| r.generation) else { return Ok(()) };
    shared.root.store(root.id, Ordering::Release);
    // A parent is any older record that links to the child; most have kept theirs.
    let mut orphan = vec![false; graph.slots.limit() as usize];
    for found in linked() {
        let Some(node) = graph.slots.get(found.id) else { continue };
        let kept = graph.slots.get(node.parent()).is_some_and(|parent| {
            layers.has(node.parent(), 0)
                && !parent.is_mirrored()
                && parent.generation() < found.generation
                && links::contains(parent.links(), found.id)
        });
        orphan[found.id as usize] = !kept && found.id != root.id;
        if !kept {
            node.set_parent(NONE);
        }
    }
    for found in linked() {
        let Some(node) = graph.slots.get(found.id) else { continue };
        for child in links::ids(node.links()) {
            if orphan[child as usize]
                && let Some(record) = graph.slots.get(child)
                && record.generation() > found.generation
            {
                record.set_parent(found.id);
                orphan[child as usize] = false;
            }
        }
    }
    let mut orphans: Vec<&Found> = records.iter().filter(|r| orphan[r.id as usize]).collect();
    orphans.sort_by_key(|r| r.generation);
    for found in orphans {
        let Some(node) = graph.slots.get(found.id) else { continue };
        graph.set_row(&mut scratch.query, found.id);
        graph.link(found.id, node, found.level, scratch);
        if node.parent() == NONE && !graph.adopt_anywhere(found.id, &mut scratch.edit) {
            return Err(Error::Corrupt { what: "a record could not be linked again", offset: 0 });
        }
    }
    Ok(())
}

/// On how many layers each record is: small enough to stay in a cache, where a look at each link's slot would not.
struct Layers(Vec<u8>);

impl Layers {
    fn new(records: &[Found]) -> Self {
        let mut layers = vec![0; records.last().map_or(0, |r| r.id as usize + 1)];
        records.iter().for_each(|found| layers[found.id as usize] = found.level + 1);
        Layers(layers)
    }

    fn has(&self, id: u32, layer: u8) -> bool {
        self.0.get(id as usize).is_some_and(|layers| layer < *layers)
    }
}

/// Leaves the links that lead somewhere, each once. A list that is as it should be is not written to, so
/// that its page need not be either.
fn clean_links(leads: impl Fn(u32) -> bool, id: u32, list: &[AtomicU32], keep: &mut Vec<u32>) {
    keep.clear();
    for link in list {
        let other = link.load(Ordering::Relaxed);
        if other != id && leads(other) && !keep.contains(&other) {
            keep.push(other);
        }
    }
    for (i, link) in list.iter().enumerate() {
        let should = keep.get(i).copied().unwrap_or(NONE);
        if link.load(Ordering::Relaxed) != should {
            link.store(should, Ordering::Relaxed);
        }
    }
}
