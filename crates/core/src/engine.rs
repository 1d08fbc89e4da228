//! An open plane inside one process: file, locks, sessions. All handles on the same file share one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;

use crate::calibration::Calibration;
use crate::epoch::{Pin, Readers};
use crate::error::{Error, Result};
use crate::file::curves::Curves;
use crate::file::header::{Commit, Superblock};
use crate::file::identity::Identity;
use crate::file::layout::{INTENT_COUNT, SUPERBLOCK_BYTES};
use crate::file::shared::{FLAG_SYNC_FAILED, Intent};
use crate::file::store::Store;
use crate::graph::links::LinkLocks;
use crate::graph::{Graph, Scratch};
use crate::ids;
use crate::key_index::ShardLocks;
use crate::recover::{self, Progress};
use crate::storage::LOCK_WRITER;
use crate::tag_index::{self, TagIndex};
use crate::testing::{Planted, is_planted, moment};
use crate::turn::{Patience, Purpose, Turn, TurnGuard};

/// Sessions kept for reuse; more threads than this at once make new ones.
const SESSIONS_KEPT: usize = 256;

/// What one thread at work needs: a lane in the reader table, and scratch memory.
pub struct Session {
    lane: Option<u32>,
    pub scratch: Scratch,
}

/// Which superblock is durable, and what it says.
struct Committed {
    superblock: Superblock,
    /// The one of the two that must stay as it is until a newer one is durable.
    slot: usize,
}

/// See the module's first line.
pub struct Engine {
    pub store: Store,
    pub readers: Readers,
    pub links: LinkLocks,
    pub shards: ShardLocks,
    pub curves: Curves,
    /// Serialises slot and heap allocation.
    pub allocation: Mutex<()>,
    /// Serialises changes of entry point and root, and the first insert.
    pub entry: Mutex<()>,
    /// Serialises removals.
    pub removal: Mutex<()>,
    /// Serialises writes of raw nodes.
    pub raw: Mutex<()>,
    pub tag_index: TagIndex,
    turn: Turn,
    committed: Mutex<Committed>,
    sessions: ArrayQueue<Box<Session>>,
    intents: ArrayQueue<u32>,
    /// Entries whose threads panicked.
    abandoned: ArrayQueue<u32>,
    identity: Identity,
    /// As the file had it when this process opened it.
    replacements: u32,
    /// The same for `SharedState::supersessions`, without a swap that was under way.
    supersessions: AtomicU32,
    opened_clean: AtomicBool,
    /// What the file needed at open has been done: until then nobody may call it clean.
    opened: AtomicBool,
    /// A dead writer's work was repaired by this process.
    pub repaired: AtomicBool,
}

/// A pinned session; gives both back when dropped.
pub struct Pinned<'a> {
    engine: &'a Engine,
    pin: Option<Pin<'a>>,
    session: Option<Box<Session>>,
}

impl<'a> Pinned<'a> {
    /// The graph as it is now, and scratch memory to walk it with.
    pub fn parts(&mut self) -> (Graph<'a>, &mut Scratch) {
        let engine = self.engine;
        let session = self.session.as_mut().expect("a session until dropped");
        (Graph::new(&engine.store, &engine.links), &mut session.scratch)
    }

    /// Whether removed slots are held back for this reader.
    pub fn protects(&self) -> bool {
        self.pin.as_ref().is_some_and(Pin::protects)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // The pin ends before another thread can take the lane.
        self.pin = None;
        if let Some(mut session) = self.session.take() {
            if std::thread::panicking() {
                // Half a walk may be in it.
                session.scratch = Scratch::default();
            }
            self.engine.put_back(session);
        }
    }
}

/// An entry of the intent table in use; cleared when dropped, unless the thread is panicking.
pub struct IntentGuard<'a> {
    engine: &'a Engine,
    index: u32,
}

impl IntentGuard<'_> {
    fn entry(&self) -> &Intent {
        &self.engine.store.intents()[self.index as usize]
    }

    /// Announces what is about to change, before anything of it does.
    pub fn announce(&self, operation: Operation, id: u32, old_id: u32) {
        self.entry().id.store(id, Ordering::Relaxed);
        self.entry().old_id.store(old_id, Ordering::Relaxed);
        self.entry().operation.store(operation as u32, Ordering::SeqCst);
        moment();
    }
}

impl Drop for IntentGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Left as it is, and to nobody, until the repair that is due before the next write.
            let _ = self.engine.abandoned.push(self.index);
            return;
        }
        self.entry().operation.store(0, Ordering::Release);
        let _ = self.engine.intents.push(self.index);
    }
}

/// What a writer announces before it changes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    Insert = 1,
    Remove = 2,
    Upsert = 3,
    Raw = 4,
}

impl Engine {
    /// An engine over a mapped file, registered with it. `slot` is the superblock that `superblock` was read from.
    pub fn new(store: Store, superblock: Superblock, slot: usize) -> Result<Self> {
        let readers = Readers::register(&store)?;
        let intents = ArrayQueue::new(INTENT_COUNT);
        for i in 0..INTENT_COUNT as u32 {
            // The queue is exactly as long as the table.
            let _ = intents.push(i);
        }
        let identity = Identity::current(store.file_id()?, store.storage().mount());
        store.opened_at(superblock.commit.generation);
        let replacements = store.shared().replacements.load(Ordering::Relaxed);
        let supersessions = AtomicU32::new(store.shared().supersessions.load(Ordering::Acquire) & !1);
        Ok(Engine {
            store,
            replacements,
            supersessions,
            readers,
            links: LinkLocks::default(),
            shards: ShardLocks::default(),
            curves: Curves::default(),
            allocation: Mutex::new(()),
            entry: Mutex::new(()),
            removal: Mutex::new(()),
            raw: Mutex::new(()),
            tag_index: TagIndex::default(),
            turn: Turn::default(),
            committed: Mutex::new(Committed { superblock, slot }),
            sessions: ArrayQueue::new(SESSIONS_KEPT),
            intents,
            abandoned: ArrayQueue::new(INTENT_COUNT),
            identity,
            opened_clean: AtomicBool::new(true),
            opened: AtomicBool::new(false),
            repaired: AtomicBool::new(false),
        })
    }

    /// Whether no recovery ran when this process opened the plane.
    pub fn opened_clean(&self) -> bool {
        self.opened_clean.load(Ordering::Relaxed)
    }

    /// Whether something was written since the last flush, here or in another process.
    pub fn needs_flush(&self) -> bool {
        let shared = self.store.shared();
        shared.dirty.load(Ordering::Acquire) != 0 && shared.settled.load(Ordering::Acquire) == 0
    }

    /// Marks the file clean when the disk has all that it says. The mark itself need not be durable: without it the next
    /// open looks closer, that is all.
    fn mark_clean(&self) {
        let (storage, shared) = (self.store.storage(), self.store.shared());
        let settled = || shared.settled.load(Ordering::Acquire) != 0;
        let opened = self.opened.load(Ordering::Relaxed);
        if opened && !storage.read_only() && settled() && storage.try_lock(LOCK_WRITER).unwrap_or(false) {
            if settled() && shared.writer_pid.load(Ordering::Acquire) == 0 {
                shared.dirty.store(0, Ordering::SeqCst);
            }
            storage.unlock(LOCK_WRITER);
        }
    }

    /// Refuses to work on a file that is not at its path any more.
    pub fn check_current(&self) -> Result<()> {
        if self.store.shared().replacements.load(Ordering::Relaxed) == self.replacements {
            return Ok(());
        }
        Err(Error::Replaced { path: self.path().to_path_buf() })
    }

    /// Whether a compaction may have put another file in the place of this one: one load while none has.
    #[inline]
    pub fn is_superseded(&self) -> bool {
        self.store.shared().supersessions.load(Ordering::Acquire)
            != self.supersessions.load(Ordering::Relaxed)
    }

    /// `SharedState::supersessions` as it is now.
    pub fn swaps(&self) -> u32 {
        self.store.shared().supersessions.load(Ordering::Acquire)
    }

    /// For a file that was still at its path after it had this many `swaps`.
    pub fn stay(&self, swaps: u32) {
        self.supersessions.store(swaps, Ordering::Relaxed);
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.store.storage().path()
    }

    /// A session, pinned: what is read from here on stays until it is dropped.
    pub fn pin(&self) -> Result<Pinned<'_>> {
        self.check_current()?;
        self.store.refresh()?;
        let session = match self.sessions.pop() {
            Some(session) => session,
            None => {
                Box::new(Session { lane: self.readers.claim_lane(&self.store), scratch: Scratch::default() })
            }
        };
        let pin = self.readers.pin(&self.store, session.lane);
        Ok(Pinned { engine: self, pin: Some(pin), session: Some(session) })
    }

    fn put_back(&self, session: Box<Session>) {
        let lane = session.lane;
        if self.sessions.push(session).is_err()
            && let Some(lane) = lane
        {
            self.store.lanes()[lane as usize].owner.store(0, Ordering::Release);
        }
    }

    /// Starts a write: takes or shares the turn.
    pub fn begin_write(&self, patience: Patience<'_>) -> Result<TurnGuard<'_>> {
        self.check_writable()?;
        self.turn.begin(&self.store, Purpose::Write, patience, |died| self.take_turn(died))
    }

    /// Makes the plane stand still: until the guard is dropped nobody writes, and nothing is half done. Leaves no trace in
    /// the file.
    pub fn stand_still(&self, patience: Patience<'_>) -> Result<TurnGuard<'_>> {
        self.check_writable()?;
        self.turn.begin(&self.store, Purpose::StandStill, patience, |died| {
            if died {
                return self.take_turn(died);
            }
            self.check_in_place()?;
            self.store.refresh()
        })
    }

    fn check_writable(&self) -> Result<()> {
        self.check_current()?;
        if self.store.storage().read_only() {
            return Err(Error::ReadOnly);
        }
        if self.store.shared().flags.load(Ordering::Relaxed) & FLAG_SYNC_FAILED != 0 {
            return Err(Error::SyncFailed);
        }
        Ok(())
    }

    /// With the turn just taken: whether this is still the file to write to.
    fn check_in_place(&self) -> Result<()> {
        self.check_current()?;
        let swaps = &self.store.shared().supersessions;
        let seen = swaps.load(Ordering::Acquire);
        if seen % 2 == 1 {
            // Whoever began to swap files had the turn, so it is dead. Everyone looks at its path again: that tells how far it
            // came.
            swaps.store(seen.wrapping_add(1), Ordering::SeqCst);
        }
        if self.is_superseded() { Err(Error::Superseded { path: self.path().to_path_buf() }) } else { Ok(()) }
    }

    /// Runs when this process has just got the turn.
    fn take_turn(&self, died: bool) -> Result<()> {
        self.check_in_place()?;
        self.store.refresh()?;
        let shared = self.store.shared();
        if shared.dirty.load(Ordering::Acquire) == 0 {
            self.identity.write(shared);
            shared.dirty.store(1, Ordering::SeqCst);
            // On the disk before any change is: a machine crash must find the mark wherever it finds half a change.
            self.sync_data()?;
        }
        if died {
            // What the repair changes is not on the disk, also when nobody writes afterwards.
            shared.settled.store(0, Ordering::SeqCst);
            recover::repair_intents(self)?;
            self.repaired.store(true, Ordering::Relaxed);
            while let Some(index) = self.abandoned.pop() {
                let _ = self.intents.push(index);
            }
        }
        Ok(())
    }

    /// Takes an entry of the intent table for one write.
    pub fn intent(&self) -> IntentGuard<'_> {
        loop {
            match self.intents.pop() {
                Some(index) => return IntentGuard { engine: self, index },
                // More writing threads than entries: they take turns.
                None => std::thread::yield_now(),
            }
        }
    }

    /// Makes everything acknowledged so far durable, and with it the watermark.
    pub fn flush(&self, patience: Patience<'_>, watermark: Option<u64>) -> Result<()> {
        let turn = self.begin_write(patience)?;
        self.commit(watermark)?;
        turn.settle();
        Ok(())
    }

    /// The flush itself, for whoever has the turn.
    pub fn commit(&self, watermark: Option<u64>) -> Result<()> {
        let mut committed = lock(&self.committed);
        let held = {
            let _allocation = lock(&self.allocation);
            ids::held_mark(&self.store)
        };
        let shared = self.store.shared();
        if let Some(watermark) = watermark {
            shared.watermark_pending.store(watermark, Ordering::Relaxed);
        }
        self.catch_up(&mut committed)?;
        let commit = self.next_commit(&committed.superblock);
        let (watermark, generation) = (commit.watermark, commit.generation);
        let next = Superblock { commit, ..committed.superblock.clone() };
        let other = 1 - committed.slot;
        // Data first, then the block that speaks of it (D1): until the second sync returns, the old block counts.
        if !is_planted(Planted::SuperblockFirst) {
            self.sync_data()?;
        }
        let written = self.store.storage().write_header((other * SUPERBLOCK_BYTES) as u64, &next.encode());
        written.inspect_err(|_| self.stop_writers())?;
        self.sync_data()?;
        self.store.flushed_at(generation);
        *committed = Committed { superblock: next, slot: other };
        shared.watermark.store(watermark, Ordering::Release);
        shared.commits.store(commit.number, Ordering::Release);
        let _allocation = lock(&self.allocation);
        ids::release_held(&self.store, held);
        Ok(())
    }

    /// Another process may have committed since this one last did.
    fn catch_up(&self, committed: &mut Committed) -> Result<()> {
        let header = self.store.storage().read_header(2 * SUPERBLOCK_BYTES)?;
        let (latest, slot) = Superblock::choose(&header, self.path())?;
        if latest.commit.number > committed.superblock.commit.number {
            *committed = Committed { superblock: latest, slot };
        }
        Ok(())
    }

    fn next_commit(&self, last: &Superblock) -> Commit {
        let shared = self.store.shared();
        Commit {
            number: last.commit.number + 1,
            extent_count: shared.extent_count.load(Ordering::Acquire),
            id_high_water: shared.id_high_water.load(Ordering::Acquire),
            count: shared.count.load(Ordering::Relaxed).max(0) as u64,
            watermark: if self.is_invalidated() {
                0
            } else {
                shared.watermark_pending.load(Ordering::Relaxed)
            },
            generation: shared.generation.load(Ordering::Relaxed),
            tagged: last.commit.tagged || tag_index::is_tagged(&self.store),
            time_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
        }
    }

    /// The superblock that a flush would write now. The caller made the plane stand still.
    pub fn next_superblock(&self) -> Result<Superblock> {
        let mut committed = lock(&self.committed);
        self.catch_up(&mut committed)?;
        let commit = self.next_commit(&committed.superblock);
        Ok(Superblock { commit, ..committed.superblock.clone() })
    }

    /// Syncs; after a failure writers stop.
    pub fn sync_data(&self) -> Result<()> {
        self.store.sync().inspect_err(|_| self.stop_writers())
    }

    /// After a sync or a write that failed: nobody knows what reached the disk, and the kernel may have dropped it (D7).
    fn stop_writers(&self) {
        self.store.shared().flags.fetch_or(FLAG_SYNC_FAILED, Ordering::SeqCst);
    }

    /// Recovers what the last writers left, if they left anything, and says whether something had to be done.
    pub fn recover_if_needed(&self, timeout: Duration, progress: &Progress<'_>) -> Result<()> {
        let superblock = lock(&self.committed).superblock.clone();
        let recovered = recover::at_open(self, &self.identity, &superblock, timeout, progress)?;
        self.readers.vouch(&self.store)?;
        self.opened_clean.store(!recovered, Ordering::Relaxed);
        self.opened.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the plane has changed so much since this measurement that it may be off.
    pub fn is_stale(&self, curve: &Calibration) -> bool {
        let shared = self.store.shared();
        let count = shared.count.load(Ordering::Relaxed).max(0) as u64;
        curve.is_stale(count, shared.churn.load(Ordering::Relaxed))
    }

    /// Whether writes of this process wait for a copy or a compaction that it makes.
    pub fn stands_still(&self) -> bool {
        self.turn.stands_still()
    }

    /// Whether this process has the writer's turn.
    pub fn is_writing(&self) -> bool {
        self.turn.is_held()
    }
}

/// A lock that a panicking thread does not spoil: what it guards is checked wherever it is used.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.mark_clean();
        self.readers.deregister(&self.store);
    }
}
