//! What a plane says of itself: a full check, and cheap statistics.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::distance::kernels;
use crate::engine::Engine;
use crate::error::Result;
use crate::file::layout::{HEAP_UNIT, NONE};
use crate::graph::node::SlotState;
use crate::graph::{Graph, links};
use crate::key_index;
use crate::options::NODES_MAX;
use crate::record;
use crate::recover::intact;
use crate::report::{Stats, VerifyReport};
use crate::tags;

const EXAMPLES_MAX: usize = 32;

/// See `Plane::stats`.
pub fn stats(engine: &Engine) -> Result<Stats> {
    engine.check_current()?;
    let store = &engine.store;
    let shared = store.shared();
    let entry = shared.entry.load(Ordering::Acquire);
    // Sums saturate: the counts are what the file says, and it may be damaged.
    Ok(Stats {
        calibration_stale: engine.curves.get(store).curves.iter().any(|curve| engine.is_stale(curve)),
        count: shared.count.load(Ordering::Relaxed).max(0) as u64,
        id_high_water: shared.id_high_water.load(Ordering::Acquire),
        limbo: shared
            .limbo_count
            .load(Ordering::Relaxed)
            .saturating_add(shared.held_count.load(Ordering::Relaxed)),
        free: shared.free_count.load(Ordering::Relaxed),
        max_level: if entry == u64::MAX { 0 } else { (entry >> 32) as u8 },
        file_bytes: store.storage().len()?,
        slot_bytes: store.layout.slot_bytes_packed(),
        exact_bytes: store.layout.exact_bytes,
        key_entry_bytes: store.layout.key_entry_bytes,
        heap_bytes: shared.heap_used.load(Ordering::Relaxed).saturating_mul(HEAP_UNIT),
        long_key_bytes: shared.long_key_bytes.load(Ordering::Relaxed),
        tag_copy_bytes: engine.tag_index.copies.bytes(),
        extents: shared.extent_count.load(Ordering::Relaxed),
        flushes: shared.commits.load(Ordering::Relaxed).saturating_sub(2),
        kernels: kernels().name,
        writing: engine.is_writing(),
        copy_on_write: store.storage().copies_on_write(),
    })
}

/// See `Plane::verify`.
pub fn verify(engine: &Engine) -> Result<VerifyReport> {
    let mut pinned = engine.pin()?;
    let (graph, _) = pinned.parts();
    let mut report = VerifyReport::default();
    check_records(&graph, &mut report);
    check_reachable(&graph, &mut report);
    check_lists(&graph, &mut report);
    if engine.store.config.unique_keys {
        check_key_index(&graph, &mut report);
    }
    Ok(report)
}

fn note(report: &mut VerifyReport, id: u32) {
    if report.examples.len() < EXAMPLES_MAX && !report.examples.contains(&id) {
        report.examples.push(id);
    }
}

fn check_records(graph: &Graph<'_>, report: &mut VerifyReport) {
    let mut own = Vec::new();
    for id in 0..graph.slots.limit() {
        let Some(node) = graph.slots.get(id) else { continue };
        if node.state().is_none() {
            report.invalid_records += 1;
            note(report, id);
        }
        if !node.is_live() {
            continue;
        }
        report.live += 1;
        if !(tags::read(graph.store, node, &mut own) && tags::are_sound(&own)) {
            report.invalid_records += 1;
            note(report, id);
        }
        if !intact(graph.store, id, node) {
            report.checksum_failures += 1;
            note(report, id);
        }
        for layer in 0..=node.level() {
            for other in links::ids(graph.links(node, layer)) {
                match graph.slots.get(other) {
                    // A host's links may lead to nodes that are still to come.
                    None if node.is_mirrored() && other <= NODES_MAX => report.dangling_links += 1,
                    None => report.invalid_links += 1,
                    Some(_) if other == id => report.invalid_links += 1,
                    Some(target) if !target.is_live() => report.dangling_links += 1,
                    // A reused slot may be lower than the one that the link meant: walks skip it on that layer.
                    Some(target) if target.level() < layer => report.dangling_links += 1,
                    Some(_) => continue,
                }
            }
        }
    }
}

/// Walks layer 0 from the entry point and the root, which is where every search starts from.
fn check_reachable(graph: &Graph<'_>, report: &mut VerifyReport) {
    let mut seen = vec![false; graph.slots.limit() as usize];
    let starts = graph.entry_point().map(|(id, _)| id).into_iter().chain(graph.root());
    let mut stack: Vec<u32> = Vec::new();
    let live = |id: u32| graph.slots.get(id).filter(|node| node.is_live());
    for id in starts {
        if live(id).is_some() && !std::mem::replace(&mut seen[id as usize], true) {
            stack.push(id);
        }
    }
    while let Some(id) = stack.pop() {
        let Some(node) = live(id) else { continue };
        for other in links::ids(node.links()) {
            if live(other).is_some() && !std::mem::replace(&mut seen[other as usize], true) {
                stack.push(other);
            }
        }
    }
    for id in (0..graph.slots.limit()).filter(|id| !seen[*id as usize]) {
        match live(id) {
            // What a host's links do not reach is its own affair.
            Some(node) if node.is_mirrored() => report.unlinked += 1,
            Some(_) => {
                report.unreachable += 1;
                note(report, id);
            }
            None => {}
        }
    }
}

fn check_lists(graph: &Graph<'_>, report: &mut VerifyReport) {
    let shared = graph.store.shared();
    let mut listed = vec![false; graph.slots.limit() as usize];
    let lists = [
        (&shared.free_head, SlotState::Free),
        (&shared.limbo_head, SlotState::Limbo),
        (&shared.held_head, SlotState::Replaced),
    ];
    for (head, state) in lists {
        let mut id = head.load(Ordering::Relaxed);
        while id != NONE {
            let node = graph.slots.get(id).filter(|node| node.state() == Some(state));
            let Some(node) = node.filter(|_| !listed[id as usize]) else {
                report.lost_slots += 1;
                note(report, id);
                break;
            };
            listed[id as usize] = true;
            id = node.header().next.load(Ordering::Relaxed);
        }
    }
    for id in 0..graph.slots.limit() {
        let node = graph.slots.get(id);
        let live = node.is_some_and(|node| node.is_live());
        // A host's own, or such as a host left out.
        let hosts = node.is_some_and(|node| {
            matches!(node.state(), Some(SlotState::Never | SlotState::Cleared | SlotState::Hidden))
        });
        if live == listed[id as usize] && !hosts {
            report.lost_slots += 1;
            note(report, id);
        }
    }
}

fn check_key_index(graph: &Graph<'_>, report: &mut VerifyReport) {
    let store = graph.store;
    let mut indexed = HashSet::new();
    for id in key_index::ids(store) {
        let live = graph.slots.get(id).is_some_and(|node| node.is_live());
        if !live || !indexed.insert(id) {
            report.key_index_mismatches += 1;
            note(report, id);
        }
    }
    for id in 0..graph.slots.limit() {
        if !graph.slots.get(id).is_some_and(|node| node.is_live()) {
            continue;
        }
        // SAFETY: pinned by `verify`, and seen live.
        let found = unsafe { record::key(store, id) }.and_then(|key| {
            key_index::find(store, key_index::KeyHash::new(store, key), |other| {
                let live = graph.slots.get(other).is_some_and(|node| node.is_live());
                // SAFETY: as above.
                live && unsafe { record::key(store, other) } == Some(key)
            })
        });
        if found != Some(id) {
            report.key_index_mismatches += 1;
            note(report, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Plane};

    #[test]
    fn counts_that_a_damaged_file_exaggerates_overflow_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions {
            key_cap: 200,
            key_arena_bytes_per_node: Some(64),
            max_nodes: Some(100),
            ..CreateOptions::new(2)
        };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        plane.insert(&[1.0, 0.0], b"a").unwrap();
        let engine = plane.engine().unwrap();
        let shared = engine.store.shared();
        shared.limbo_count.store(u32::MAX, Ordering::Relaxed);
        shared.held_count.store(u32::MAX, Ordering::Relaxed);
        shared.heap_used.store(u64::MAX, Ordering::Relaxed);
        shared.long_key_bytes.store(u64::MAX, Ordering::Relaxed);
        let stats = plane.stats().unwrap();
        assert_eq!((stats.limbo, stats.heap_bytes, stats.long_key_bytes), (u32::MAX, u64::MAX, u64::MAX));
        assert!(plane.insert(&[0.0, 1.0], &[b'k'; 200]).is_err());
        assert!(plane.search(&[1.0, 0.0], &crate::SearchOptions::new(1)).is_ok());
    }
}
