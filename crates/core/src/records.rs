//! Records at hand: many by their keys, and all of them in order.

use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::plane::{Plane, find, read_vector};
use crate::record;
use crate::tags::{self, TagSet};

/// Slots that one call looks at, so that it ends soon also where nearly all are free.
const SLOTS_MAX: u32 = 1 << 16;

/// How far an iteration has come. Good for as long as records keep their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The next id to look at.
    pub next: u32,
    /// The iteration ends before this one: the high water mark when it began, so that it ends whatever is added meanwhile.
    pub end: u32,
    /// How often the records had been numbered anew when it began.
    pub numbering: u32,
}

/// Some records, ascending by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// Their ids.
    pub ids: Vec<u32>,
    /// Their vectors, one after the other, each as `Plane::vector` gives it.
    pub vectors: Vec<f32>,
    /// Their keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each record's key in `keys`.
    pub key_ends: Vec<u32>,
    /// Their tags, one set after the other, as `TagSet::as_bytes` gives them.
    pub tags: Vec<u8>,
    /// End of each record's tags in `tags`.
    pub tag_ends: Vec<u32>,
}

impl Plane {
    /// The vectors of the live records with these keys, in order; each as `get` gives it.
    pub fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<f32>>>> {
        self.needs_unique_keys()?;
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        let store = &engine.store;
        Ok(keys.iter().map(|key| find(store, key).and_then(|id| read_vector(store, id))).collect())
    }

    /// A live record's tags.
    pub fn tags(&self, id: u32) -> Result<Option<TagSet>> {
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        let Some(node) = engine.store.node(id).filter(|node| node.is_live()) else { return Ok(None) };
        let mut own = Vec::new();
        Ok(tags::read(&engine.store, node, &mut own).then(|| TagSet::from_file(own)))
    }

    /// Where an iteration over all records starts.
    pub fn cursor(&self) -> Result<Cursor> {
        let engine = self.engine()?;
        engine.check_current()?;
        Ok(cursor_from(&engine, 0))
    }

    /// Where one goes on that has come as far as an id.
    pub fn cursor_after(&self, id: u32) -> Result<Cursor> {
        let engine = self.engine()?;
        engine.check_current()?;
        Ok(cursor_from(&engine, id.saturating_add(1)))
    }

    /// Where one goes on that has come as far as the record with this key.
    pub fn cursor_after_key(&self, key: &[u8]) -> Result<Cursor> {
        self.needs_unique_keys()?;
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        let id = find(&engine.store, key).ok_or(Error::KeyNotFound)?;
        Ok(cursor_from(&engine, id.saturating_add(1)))
    }

    /// The next records, at most so many, and where to go on; `None` at the end. A call may give none though there are more.
    /// Every record that lives under one id from the first call to the last is given once; what is added, removed or replaced
    /// meanwhile may be given or not.
    pub fn records(&self, cursor: Cursor, most: usize) -> Result<(Records, Option<Cursor>)> {
        let engine = self.engine()?;
        let pinned = engine.pin()?;
        let store = &engine.store;
        if store.shared().renumberings.load(Ordering::Acquire) != cursor.numbering {
            return Err(Error::Renumbered);
        }
        let mut records = Records::default();
        let mut own = Vec::new();
        let slots = store.slots().with_limit(cursor.end);
        let last = slots.limit().min(cursor.next.saturating_add(SLOTS_MAX));
        let mut next = cursor.next;
        while next < last && records.ids.len() < most {
            let id = next;
            next += 1;
            let Some(node) = slots.get(id).filter(|node| node.is_live()) else { continue };
            let generation = node.generation();
            let Some(vector) = read_vector(store, id) else { continue };
            // SAFETY: pinned, and seen live; without a pin the check below decides whether what was copied counts.
            let Some(key) = (unsafe { record::key(store, id) }) else { continue };
            if !tags::read(store, node, &mut own) {
                continue;
            }
            let start = records.keys.len();
            records.keys.extend_from_slice(key);
            let same = pinned.protects() || node.is_live() && node.generation() == generation;
            if !same {
                records.keys.truncate(start);
                continue;
            }
            records.ids.push(id);
            records.vectors.extend_from_slice(&vector);
            records.key_ends.push(records.keys.len() as u32);
            records.tags.extend_from_slice(&own);
            records.tag_ends.push(records.tags.len() as u32);
        }
        let more = next < slots.limit();
        Ok((records, more.then_some(Cursor { next, ..cursor })))
    }
}

fn cursor_from(engine: &Engine, next: u32) -> Cursor {
    let shared = engine.store.shared();
    Cursor {
        next,
        end: shared.id_high_water.load(Ordering::Acquire),
        numbering: shared.renumberings.load(Ordering::Acquire),
    }
}
