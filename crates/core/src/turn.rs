//! Whose turn it is to write. One process at a time changes a plane; within it, any number of threads do.
//!
//! The turn is a kernel lock, so it goes with its owner however that one ends. It is taken by a process's first write
//! and given back when none of its writes is in flight any more; while writes follow each other without a gap it stays,
//! until another process has asked for it and ten milliseconds have passed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::file::store::Store;
use crate::storage::LOCK_WRITER;

/// Shortest time a process keeps the turn when others wait.
const TENURE: Duration = Duration::from_millis(10);
/// How long a request counts.
const REQUEST_MS: u32 = 20;
/// How often a waiting process tries again.
const POLL: Duration = Duration::from_millis(1);
/// How often one that waits for another thread asks whether it still should.
const LOOK: Duration = Duration::from_millis(10);

/// What a turn is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To write, beside this process's other writes.
    Write,
    /// To read a plane that stands still: no write is in flight anywhere, and none is noted as begun.
    StandStill,
}

/// How long a call waits for the turn.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    timeout: Duration,
    /// What this process itself does with the plane standing still is waited for however long it takes.
    own: bool,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    /// Waits so long for other processes, and for this one's copies and compactions until they end.
    pub fn new(timeout: Duration) -> Self {
        Patience { timeout, own: true, goes_on: &|| true }
    }

    /// Waits no longer than `most`, whoever has the turn.
    pub fn at_most(self, most: Duration) -> Self {
        Patience { timeout: self.timeout.min(most), own: false, ..self }
    }

    /// How long it waits for other processes.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Gives up as soon as `goes_on` says no; it is asked every few milliseconds while the call waits.
    pub fn while_it<'b>(self, goes_on: &'b dyn Fn() -> bool) -> Patience<'b> {
        Patience { goes_on, timeout: self.timeout, own: self.own }
    }
}

#[derive(Default)]
struct State {
    held: bool,
    acquiring: bool,
    /// The thread that is acquiring has the kernel lock, and makes the plane ready to be written.
    preparing: bool,
    /// The turn was taken to make the plane stand still.
    alone: bool,
    /// Threads that wait for that. No write begins meanwhile, or they would wait for ever.
    waiting_alone: u32,
    in_flight: u32,
    /// Writes begun so far.
    begun: u64,
    since: Option<Instant>,
}

/// This process's side of the turn.
#[derive(Default)]
pub struct Turn {
    state: Mutex<State>,
    changed: Condvar,
    /// A writing thread panicked: its intent is repaired before the next write, like a dead process's.
    panicked: AtomicBool,
}

/// One write in flight.
pub struct TurnGuard<'a> {
    turn: &'a Turn,
    store: &'a Store,
    begun: u64,
    alone: bool,
}

impl TurnGuard<'_> {
    /// For a flush at its end: notes that the disk has all that the file says, if no other write was under way since the
    /// flush began.
    pub fn settle(&self) {
        let state = self.turn.lock();
        if self.alone && state.begun == self.begun {
            self.store.shared().settled.store(1, Ordering::SeqCst);
        }
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the plane stands still for a copy or compaction of this process, or is about to.
    pub fn stands_still(&self) -> bool {
        let state = self.lock();
        state.alone || state.waiting_alone > 0
    }

    /// Whether this process has the turn now.
    pub fn is_held(&self) -> bool {
        self.lock().held
    }

    /// Takes the turn, or shares it. `prepare(died)` runs when the turn has just been taken, with no other write in
    /// flight; `died` tells whether the last owner left without giving it back.
    pub fn begin<'a>(
        &'a self,
        store: &'a Store,
        purpose: Purpose,
        patience: Patience<'_>,
        prepare: impl Fn(bool) -> Result<()>,
    ) -> Result<TurnGuard<'a>> {
        let mut deadline = Instant::now() + patience.timeout;
        let alone = purpose == Purpose::StandStill;
        let mut state = self.lock();
        state.waiting_alone += u32::from(alone);
        let free = loop {
            if !alone && self.admits(&state, store) {
                return Ok(self.enter(store, purpose, &mut state));
            }
            if !state.held && !state.acquiring && (alone || state.waiting_alone == 0) {
                break Ok(());
            }
            let now = Instant::now();
            let own = state.alone || state.preparing || state.waiting_alone > u32::from(alone);
            if patience.own && own {
                deadline = now + patience.timeout;
            }
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                break Err(self.locked(store));
            }
            state = self.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(|e| e.into_inner()).0;
            if !(patience.goes_on)() {
                break Err(Error::Aborted);
            }
        };
        state.waiting_alone -= u32::from(alone);
        if let Err(error) = free {
            self.changed.notify_all();
            return Err(error);
        }
        state.acquiring = true;
        drop(state);
        let acquiring = Acquiring { turn: self, store };
        let taken = acquire(store, deadline, patience.goes_on).and_then(|()| {
            self.lock().preparing = true;
            let died = store.shared().writer_pid.load(Ordering::Acquire) != 0;
            let panicked = self.panicked.swap(false, Ordering::AcqRel);
            store.shared().writer_pid.store(std::process::id(), Ordering::Release);
            prepare(died || panicked).inspect_err(|_| {
                // The repair is still owed: leave the mark for whoever comes next.
                if !died && !panicked {
                    store.shared().writer_pid.store(0, Ordering::Release);
                }
                store.storage().unlock(LOCK_WRITER);
            })
        });
        let mut state = self.lock();
        // Nothing panicked. In one step with what follows: nobody else may take the turn in between.
        std::mem::forget(acquiring);
        (state.acquiring, state.preparing) = (false, false);
        self.changed.notify_all();
        taken?;
        state.held = true;
        state.alone = alone;
        state.since = Some(Instant::now());
        Ok(self.enter(store, purpose, &mut state))
    }

    /// Whether a write may join those that are in flight.
    fn admits(&self, state: &State, store: &Store) -> bool {
        let overstayed = state.in_flight > 0 && state.since.is_some_and(|at| at.elapsed() >= TENURE);
        let yielding = overstayed && is_asked(store);
        let repairing = self.panicked.load(Ordering::Relaxed);
        let open = state.held && !state.alone && !state.acquiring && state.waiting_alone == 0;
        open && !yielding && !repairing
    }

    fn enter<'a>(&'a self, store: &'a Store, purpose: Purpose, state: &mut State) -> TurnGuard<'a> {
        state.in_flight += 1;
        state.begun += 1;
        if purpose == Purpose::Write && store.shared().settled.load(Ordering::Relaxed) != 0 {
            store.shared().settled.store(0, Ordering::SeqCst);
        }
        // A write begun before this one and still in flight would not be seen at the end if it ended in between.
        let alone = state.in_flight == 1;
        TurnGuard { turn: self, store, begun: state.begun, alone }
    }

    fn locked(&self, store: &Store) -> Error {
        let pid = store.shared().writer_pid.load(Ordering::Relaxed);
        Error::Locked { path: store.storage().path().to_path_buf(), pid }
    }
}

/// A thread that takes the turn for all of this process; dropped only when it panics, as a repair might: the others must not
/// wait for it for ever.
struct Acquiring<'a> {
    turn: &'a Turn,
    store: &'a Store,
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        // The mark of a writer stays, so that the repair is tried again.
        self.store.storage().unlock(LOCK_WRITER);
        let mut state = self.turn.lock();
        (state.acquiring, state.preparing) = (false, false);
        self.turn.changed.notify_all();
    }
}

/// Takes the kernel lock, asking the owner to hand over while it waits.
pub fn acquire(store: &Store, deadline: Instant, goes_on: &dyn Fn() -> bool) -> Result<()> {
    if store.storage().try_lock(LOCK_WRITER)? {
        return Ok(());
    }
    loop {
        // Said anew each time: the request of a process that died is forgotten by itself.
        store.shared().handover.store(now_ms(), Ordering::Relaxed);
        match store.storage().try_lock(LOCK_WRITER) {
            Ok(true) => return Ok(()),
            Err(e) => return Err(e),
            Ok(false) if Instant::now() >= deadline => {
                let pid = store.shared().writer_pid.load(Ordering::Relaxed);
                return Err(Error::Locked { path: store.storage().path().to_path_buf(), pid });
            }
            Ok(false) if !goes_on() => return Err(Error::Aborted),
            Ok(false) => std::thread::sleep(POLL),
        }
    }
}

/// Milliseconds on a clock that processes share; never 0.
fn now_ms() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_millis() as u32 | 1)
}

/// Whether another process has lately asked for the turn: one load while nobody does.
fn is_asked(store: &Store) -> bool {
    let asked = store.shared().handover.load(Ordering::Relaxed);
    asked != 0 && now_ms().wrapping_sub(asked) < REQUEST_MS
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.turn.panicked.store(true, Ordering::Release);
        }
        let mut state = self.turn.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            // With a repair owed the mark stays, so that another process would see to it too.
            if !self.turn.panicked.load(Ordering::Acquire) {
                self.store.shared().writer_pid.store(0, Ordering::Release);
            }
            self.store.storage().unlock(LOCK_WRITER);
            state.held = false;
            state.alone = false;
            state.since = None;
            self.turn.changed.notify_all();
            if is_asked(self.store) {
                drop(state);
                // The one who asked polls once a millisecond; this thread would win every race otherwise.
                std::thread::sleep(POLL + POLL / 2);
            }
        }
    }
}
