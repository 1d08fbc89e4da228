//! The heap region: blocks of many sizes for upper links, long keys and key index tables.
//!
//! Blocks come from free lists by size class, else from the end. A free block's first word names the next one. All of
//! it lives in the file and is changed by one thread at a time, in an order in which a process may die at any point and
//! lose at most one block until the next full recovery.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::file::layout::{HEAP_UNIT, RegionKind};
use crate::file::shared::HEAP_CLASSES;
use crate::file::store::Store;

/// First unit handed out: unit 0 stands for "none", and a line is left free before the first block.
pub const HEAP_FIRST: u32 = 4;

/// Units in a block of this class: 1 to 8, then four steps a doubling.
fn class_units(class: usize) -> u32 {
    if class < 8 {
        return class as u32 + 1;
    }
    let (doubling, step) = ((class - 8) / 4, (class - 8) % 4);
    (8 + 2 * (step as u32 + 1)) << doubling
}

/// Smallest class whose blocks have this many units.
fn class_for(units: u32) -> Option<usize> {
    (0..HEAP_CLASSES).find(|class| class_units(*class) >= units)
}

/// Largest class whose blocks have at most this many units.
fn class_within(units: u32) -> Option<usize> {
    (0..HEAP_CLASSES).take_while(|class| class_units(*class) <= units).last()
}

fn units_for(bytes: usize) -> u32 {
    (bytes as u64).div_ceil(HEAP_UNIT).max(1) as u32
}

/// Units that a block of `bytes` bytes really takes.
pub fn block_units(bytes: usize) -> u32 {
    class_for(units_for(bytes)).map_or(u32::MAX, class_units)
}

/// Takes a block of at least `bytes` bytes; its contents are whatever was there. The caller holds the allocation lock.
pub fn allocate(store: &Store, bytes: usize) -> Result<u32> {
    let class = class_for(units_for(bytes)).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
    let units = class_units(class);
    let shared = store.shared();
    let unit = match pop(store, class) {
        Some(unit) => unit,
        None => match split(store, class) {
            Some(unit) => unit,
            None => bump(store, units)?,
        },
    };
    shared.heap_used.fetch_add(u64::from(units), Ordering::Relaxed);
    Ok(unit)
}

/// Gives a block back. Nobody reads it any more. The caller holds the allocation lock.
pub fn release(store: &Store, unit: u32, bytes: usize) {
    if let Some(class) = class_for(units_for(bytes)) {
        let units = u64::from(class_units(class));
        push(store, class, unit);
        let used = &store.shared().heap_used;
        let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(units)));
    }
}

/// Puts any run of units on the free lists, cut into blocks; for recovery, which finds such runs between live blocks.
pub fn release_run(store: &Store, mut unit: u32, mut units: u32) {
    while let Some(class) = class_within(units) {
        push(store, class, unit);
        unit += class_units(class);
        units -= class_units(class);
    }
}

fn pop(store: &Store, class: usize) -> Option<u32> {
    let head = &store.shared().heap_free[class];
    let unit = head.load(Ordering::Relaxed);
    if unit == 0 {
        return None;
    }
    let inside = unit
        .checked_add(class_units(class))
        .is_some_and(|end| end <= store.shared().heap_bump.load(Ordering::Relaxed));
    match store.heap_words(unit, 1) {
        Some(words) if inside => {
            head.store(words[0].load(Ordering::Relaxed), Ordering::Relaxed);
            Some(unit)
        }
        // A damaged list: forget it. Its blocks come back with the next full recovery.
        _ => {
            head.store(0, Ordering::Relaxed);
            None
        }
    }
}

fn push(store: &Store, class: usize, unit: u32) {
    let head = &store.shared().heap_free[class];
    if let Some(words) = store.heap_words(unit, 1) {
        words[0].store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(unit, Ordering::Relaxed);
    }
}

/// Cuts a block off a larger free one, when so much is free that looking for one pays.
fn split(store: &Store, class: usize) -> Option<u32> {
    let shared = store.shared();
    let bump = u64::from(shared.heap_bump.load(Ordering::Relaxed));
    if bump.saturating_sub(shared.heap_used.load(Ordering::Relaxed)) < bump / 8 {
        return None;
    }
    for larger in class + 1..HEAP_CLASSES {
        if let Some(unit) = pop(store, larger) {
            release_run(store, unit + class_units(class), class_units(larger) - class_units(class));
            return Some(unit);
        }
    }
    None
}

fn bump(store: &Store, units: u32) -> Result<u32> {
    let shared = store.shared();
    let at = shared.heap_bump.load(Ordering::Relaxed).max(HEAP_FIRST);
    let end = at.checked_add(units).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
    let needed = u64::from(end) * HEAP_UNIT;
    if needed > store.heap_mapped() {
        store.grow(RegionKind::Heap, needed - store.heap_mapped())?;
    }
    shared.heap_bump.store(end, Ordering::Relaxed);
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_and_waste_at_most_a_quarter() {
        for class in 1..HEAP_CLASSES {
            assert!(class_units(class) > class_units(class - 1));
        }
        for units in 1..10_000u32 {
            let class = class_for(units).unwrap();
            assert!(class_units(class) >= units && class_units(class) <= units + units.div_ceil(4));
            assert!(class_units(class_within(units).unwrap()) <= units);
        }
    }
}
