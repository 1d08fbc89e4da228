//! Which id a record has after a compaction: its own, or one near its neighbours'.

use std::sync::atomic::Ordering;

use crate::file::layout::NONE;
use crate::file::store::Store;
use crate::graph::links;

/// Old ids and new ones, for a plane that stands still.
pub struct Numbering {
    /// By new id: the old one; `NONE` for a slot that stays free.
    pub old_of: Vec<u32>,
    /// By old id: the new one; `NONE` where there is no record.
    pub new_of: Vec<u32>,
    /// Whether ids that were given before mean nothing any more.
    pub renumbers: bool,
}

impl Numbering {
    /// Every record keeps its id. Free slots past the last record go.
    pub fn kept(store: &Store) -> Self {
        let mut old_of: Vec<u32> =
            (0..limit(store)).map(|id| if is_live(store, id) { id } else { NONE }).collect();
        let used = old_of.iter().rposition(|id| *id != NONE).map_or(0, |last| last + 1);
        let new_of = old_of.clone();
        old_of.truncate(used);
        Numbering { old_of, new_of, renumbers: false }
    }

    /// Ids without gaps, in the order in which a breadth-first walk of layer 0 from the entry point meets the records:
    /// what a search reads one after the other then lies close together.
    pub fn by_neighbourhood(store: &Store) -> Self {
        let mut numbering =
            Numbering { old_of: Vec::new(), new_of: vec![NONE; limit(store) as usize], renumbers: true };
        let entry = store.shared().entry.load(Ordering::Acquire) as u32;
        let starts = std::iter::once(entry).filter(|id| *id < limit(store)).chain(0..limit(store));
        let mut next = 0;
        for start in starts {
            numbering.number(store, start);
            while let Some(&id) = numbering.old_of.get(next) {
                next += 1;
                let Some(node) = store.node(id) else { continue };
                links::ids(node.links()).for_each(|other| numbering.number(store, other));
            }
        }
        numbering
    }

    fn number(&mut self, store: &Store, id: u32) {
        if self.new_of.get(id as usize) == Some(&NONE) && is_live(store, id) {
            self.new_of[id as usize] = self.old_of.len() as u32;
            self.old_of.push(id);
        }
    }

    /// The new id of a record; `None` where there is none.
    pub fn new_id(&self, old: u32) -> Option<u32> {
        self.new_of.get(old as usize).copied().filter(|id| *id != NONE)
    }
}

fn limit(store: &Store) -> u32 {
    store.shared().id_high_water.load(Ordering::Acquire).min(store.capacity())
}

fn is_live(store: &Store, id: u32) -> bool {
    store.node(id).is_some_and(|node| node.is_live())
}
