//! Which records have which tags: compressed bitmaps in memory, shared by all handles of a process on a plane.
//!
//! Built by a look at every record when tags are first asked for, and kept up by the log of new records since: by this
//! process's writers at once, for those of others at the next query. Records that were removed stay in until their slot is used
//! again, and one that is being written may be missing; so a query looks at the tags of what it found once more.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};

use roaring::RoaringBitmap;

use crate::copies::{Copies, Place};
use crate::distance::prefetch;
use crate::engine::lock;
use crate::file::shared::FLAG_TAGGED;
use crate::file::store::Store;
use crate::graph::allowed::Allowed;
use crate::graph::node::Node;
use crate::tags::{self, TagQuery};

/// Slots that a look at all records asks memory for ahead.
const AHEAD: u32 = 16;
/// A look at all records pays after so many changes, however few records there are.
const CHANGES_MIN: u64 = 32_768;
/// Answers kept, and their bytes.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 32 << 20;
/// From one id in so many on, a bit each takes less room than a number each.
const DENSE: u64 = 32;

/// A set of ids, in the form that takes less room.
#[derive(Debug)]
pub enum IdSet {
    Ids(Vec<u32>),
    Bits(Vec<u8>),
}

impl IdSet {
    /// The same as what a query may return.
    pub fn as_allowed(&self) -> Allowed<'_> {
        match self {
            IdSet::Ids(ids) => Allowed::Ids(ids),
            IdSet::Bits(bits) => Allowed::Bits(bits),
        }
    }

    fn new(bitmap: &RoaringBitmap) -> Self {
        let end = bitmap.max().map_or(0, |max| u64::from(max) + 1);
        if bitmap.len() * DENSE <= end {
            return IdSet::Ids(bitmap.iter().collect());
        }
        let mut bits = vec![0; end.div_ceil(8) as usize];
        bitmap.iter().for_each(|id| bits[id as usize >> 3] |= 1 << (id & 7));
        IdSet::Bits(bits)
    }

    fn bytes(&self) -> usize {
        match self {
            IdSet::Ids(ids) => 4 * ids.len(),
            IdSet::Bits(bits) => bits.len(),
        }
    }
}

/// What a query wants.
pub struct Answer {
    pub set: IdSet,
    pub place: Arc<Place>,
}

/// See the module's first line.
#[derive(Default)]
pub struct TagIndex {
    /// Copies of what scans of its answers read. They are forgotten with the answers, when any record is published: its slot
    /// may be that of one that was copied.
    pub copies: Copies,
    state: RwLock<State>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// What the answers are true for.
    version: u64,
    limit: u32,
    /// With the number of the last use of each.
    answers: HashMap<TagQuery, (Arc<Answer>, u64)>,
    uses: u64,
    bytes: usize,
}

impl Kept {
    fn get(&mut self, query: &TagQuery) -> Option<Arc<Answer>> {
        self.uses += 1;
        let (answer, used) = self.answers.get_mut(query)?;
        *used = self.uses;
        Some(Arc::clone(answer))
    }

    fn put(&mut self, query: &TagQuery, answer: &Arc<Answer>) {
        let bytes = answer.set.bytes();
        while self.answers.len() >= KEPT_MAX || self.bytes + bytes > KEPT_BYTES_MAX {
            let Some(oldest) = self.answers.iter().min_by_key(|(_, (_, used))| *used) else { return };
            let oldest = oldest.0.clone();
            self.bytes -= self.answers.remove(&oldest).map_or(0, |(answer, _)| answer.set.bytes());
        }
        // Another thread may have been as quick: its answer is the one that others have by now.
        self.answers.entry(query.clone()).or_insert_with(|| {
            self.bytes += bytes;
            (Arc::clone(answer), self.uses)
        });
    }
}

/// Number of a distinct set of tags; 0 is the empty one.
type SetNumber = u32;

#[derive(Default)]
struct State {
    built: bool,
    /// How much of the log is in here.
    seen: u64,
    /// Grows with each change.
    version: u64,
    /// `SharedState::churn` when all records were last looked at.
    churn: u64,
    /// By tag, as encoded: its number.
    tags: HashMap<Box<[u8]>, u32>,
    /// By number: the records that have the tag.
    bitmaps: Vec<RoaringBitmap>,
    /// By set, as encoded: its number.
    sets: HashMap<Box<[u8]>, SetNumber>,
    /// By number: the tags of a set.
    tags_of: Vec<Box<[u32]>>,
    /// By id: the set that a record has. Shorter than the ids given where the last ones have none.
    set_of: Vec<SetNumber>,
}

impl TagIndex {
    /// The records that a query wants, or nearly: see the module. The caller is pinned.
    pub fn find(&self, store: &Store, query: &TagQuery) -> Arc<Answer> {
        let state = self.state.read().unwrap_or_else(|e| e.into_inner());
        if state.is_current(store) {
            return self.answer(&state, store, query);
        }
        drop(state);
        let mut state = self.write();
        state.catch_up(store);
        self.answer(&state, store, query)
    }

    /// Tells everyone of a record that has just been published, whatever its tags are: its slot may have held one that had
    /// some. The caller is pinned, and has not acknowledged the record yet.
    pub fn note(&self, store: &Store, id: u32) {
        if !is_tagged(store) {
            return;
        }
        // Under the lock, since one thread at a time may append.
        let mut state = self.write();
        store.tag_log().append(id);
        if state.built {
            state.catch_up(store);
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(|e| e.into_inner())
    }

    fn answer(&self, state: &State, store: &Store, query: &TagQuery) -> Arc<Answer> {
        let limit = store.shared().id_high_water.load(Ordering::Acquire);
        {
            let mut kept = lock(&self.kept);
            if (kept.version, kept.limit) != (state.version, limit) {
                *kept = Kept { version: state.version, limit, ..Kept::default() };
            } else if let Some(answer) = kept.get(query) {
                return answer;
            }
        }
        let answer = Arc::new(Answer { set: state.select(query, limit), place: Arc::default() });
        let mut kept = lock(&self.kept);
        if (kept.version, kept.limit) == (state.version, limit) && answer.set.bytes() <= KEPT_BYTES_MAX / 4 {
            kept.put(query, &answer);
        }
        answer
    }
}

/// Whether any record ever had tags.
pub fn is_tagged(store: &Store) -> bool {
    store.shared().flags.load(Ordering::Acquire) & FLAG_TAGGED != 0
}

impl State {
    fn is_current(&self, store: &Store) -> bool {
        self.built && self.seen == store.tag_log().appended() && !self.is_worn(store)
    }

    /// So much has changed that much of what is in here is of removed records, or of sets that nobody has any more.
    fn is_worn(&self, store: &Store) -> bool {
        let shared = store.shared();
        let live = shared.count.load(Ordering::Relaxed).max(0) as u64;
        let changes = shared.churn.load(Ordering::Relaxed).wrapping_sub(self.churn);
        is_tagged(store) && changes > CHANGES_MIN.max(2 * live)
    }

    fn catch_up(&mut self, store: &Store) {
        if self.is_current(store) {
            return;
        }
        let to = store.tag_log().appended();
        let new =
            if self.built && !self.is_worn(store) { store.tag_log().since(self.seen, to) } else { None };
        self.version += 1;
        match new {
            Some(ids) => {
                let _ = store.refresh();
                let slots = store.slots();
                let mut own = Vec::new();
                ids.into_iter().filter_map(|id| Some((id, slots.get(id)?))).for_each(|(id, node)| {
                    self.take(store, id, node, &mut own);
                });
                self.seen = to;
            }
            None => self.build(store),
        }
    }

    /// Looks at all records.
    fn build(&mut self, store: &Store) {
        let version = self.version;
        // The log first: what is published during the look is in the log or is met.
        let seen = store.tag_log().appended();
        let churn = store.shared().churn.load(Ordering::Relaxed);
        *self = State { built: true, seen, version, churn, ..State::default() };
        self.set_number(&[]);
        if !is_tagged(store) {
            return;
        }
        let _ = store.refresh();
        let slots = store.slots().with_limit(store.shared().id_high_water.load(Ordering::Acquire));
        let header = slots.header_bytes() as usize - 1;
        let mut own = Vec::new();
        for id in 0..slots.limit() {
            prefetch(slots.address(id.saturating_add(AHEAD)).wrapping_add(header));
            if let Some(node) = slots.get(id).filter(|node| node.tags() != 0) {
                self.take(store, id, node, &mut own);
            }
        }
    }

    /// Takes in the tags that a record has now.
    fn take(&mut self, store: &Store, id: u32, node: Node<'_>, own: &mut Vec<u8>) {
        let generation = node.generation();
        let read = node.is_live() && tags::read(store, node, own);
        // Otherwise it is gone, and whatever is in its slot by now is in the log as well.
        let same = node.is_live() && node.generation() == generation;
        let set = if read && same { self.set_number(own) } else { 0 };
        let at = id as usize;
        if at >= self.set_of.len() {
            if set == 0 {
                return;
            }
            self.set_of.resize(at + 1, 0);
        }
        let old = std::mem::replace(&mut self.set_of[at], set);
        if old != set {
            for tag in &self.tags_of[old as usize] {
                self.bitmaps[*tag as usize].remove(id);
            }
            for tag in &self.tags_of[set as usize] {
                self.bitmaps[*tag as usize].insert(id);
            }
        }
    }

    fn set_number(&mut self, set: &[u8]) -> SetNumber {
        if let Some(number) = self.sets.get(set) {
            return *number;
        }
        let tags: Box<[u32]> = tags::encoded(set).map(|tag| self.tag_number(tag)).collect();
        let number = self.tags_of.len() as SetNumber;
        self.tags_of.push(tags);
        self.sets.insert(set.into(), number);
        number
    }

    fn tag_number(&mut self, tag: &[u8]) -> u32 {
        if let Some(number) = self.tags.get(tag) {
            return *number;
        }
        let number = self.bitmaps.len() as u32;
        self.bitmaps.push(RoaringBitmap::new());
        self.tags.insert(tag.into(), number);
        number
    }

    fn bitmap(&self, tag: &[u8]) -> Option<&RoaringBitmap> {
        self.tags.get(tag).map(|number| &self.bitmaps[*number as usize])
    }

    /// The records that a query wants, below `limit` where it says "all but".
    fn select(&self, query: &TagQuery, limit: u32) -> IdSet {
        let union = |set: &[u8]| {
            let mut bitmaps = tags::encoded(set).filter_map(|tag| self.bitmap(tag));
            let first = bitmaps.next().cloned().unwrap_or_default();
            bitmaps.fold(first, |all, one| all | one)
        };
        let mut wanted = query.any_of.as_ref().map(|any| union(any.as_bytes()));
        let mut all: Vec<_> = tags::encoded(query.all_of.as_bytes()).map(|tag| self.bitmap(tag)).collect();
        all.sort_by_key(|bitmap| bitmap.map_or(0, RoaringBitmap::len));
        for bitmap in all {
            wanted = Some(match (wanted, bitmap) {
                (_, None) => RoaringBitmap::new(),
                (None, Some(bitmap)) => bitmap.clone(),
                (Some(wanted), Some(bitmap)) => wanted & bitmap,
            });
        }
        let none_of = tags::encoded(query.none_of.as_bytes()).filter_map(|tag| self.bitmap(tag));
        let Some(mut wanted) = wanted else {
            let mut bits = vec![0xFF; limit.div_ceil(8) as usize];
            for id in none_of.flatten().filter(|id| *id < limit) {
                bits[id as usize >> 3] &= !(1 << (id & 7));
            }
            return IdSet::Bits(bits);
        };
        none_of.for_each(|bitmap| wanted -= bitmap);
        IdSet::new(&wanted)
    }
}
