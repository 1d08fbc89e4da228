//! The orderings that readers and writers rely on, over words passed in: the engine passes words of the file, a model
//! checker its own. `docs/design.md`, section 4, says what each side may observe.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic word, and the fence of the memory that it is part of.
pub trait Word {
    /// What it holds.
    type Value: Copy;
    /// As of the standard library's atomics, like the next two.
    fn load(&self, order: Ordering) -> Self::Value;
    /// See `load`.
    fn store(&self, value: Self::Value, order: Ordering);
    /// See `load`.
    fn fetch_add(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// A fence among words of this kind.
    fn fence(order: Ordering);
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word for $atomic {
            type Value = $value;

            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order)
            }

            #[inline(always)]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }

            #[inline(always)]
            fn fence(order: Ordering) {
                std::sync::atomic::fence(order)
            }
        }
    };
}
word!(AtomicU32, u32);
word!(AtomicU64, u64);

/// A reader starts: nothing removed from here on is reused until it lets go.
#[inline(always)]
pub fn pin<W: Word<Value = u64>>(epoch: &W, lane: &W) {
    let now = epoch.load(Ordering::Acquire).max(1);
    // Release: what this lane's reader read under an earlier pin was read before whoever sees this one goes on.
    lane.store(now, Ordering::Release);
    // Orders the pin before every load of a state word: either a remover's scan sees the pin, or this thread sees that the
    // slot is no longer live.
    W::fence(Ordering::SeqCst);
}

/// A reader ends.
#[inline(always)]
pub fn unpin<W: Word<Value = u64>>(lane: &W) {
    // Release: what was read under the pin was read before it ends.
    lane.store(0, Ordering::Release);
}

/// The lowest epoch that any of these lanes is pinned at; `u64::MAX` when none is.
pub fn oldest_pin<'a, W: Word<Value = u64> + 'a>(lanes: impl Iterator<Item = &'a W>) -> u64 {
    W::fence(Ordering::SeqCst);
    let pins = lanes.map(|lane| lane.load(Ordering::Acquire));
    pins.filter(|pinned| *pinned != 0).min().unwrap_or(u64::MAX)
}

/// The state word of a slot, before any other byte of it is looked at.
#[inline(always)]
pub fn see<W: Word<Value = u32>>(state: &W) -> u32 {
    state.load(Ordering::Acquire)
}

/// Changes a slot's state: publishes what was written to it before, or takes it from readers to come.
#[inline(always)]
pub fn turn_to<W: Word<Value = u32>>(state: &W, word: u32) {
    // SeqCst, so that a removal is ordered before the epoch's next value.
    state.store(word, Ordering::SeqCst);
}

/// Ends an epoch, for a slot that was just taken from readers; gives the epoch of its removal.
pub fn retire<W: Word<Value = u64>>(epoch: &W) -> u64 {
    epoch.fetch_add(1, Ordering::SeqCst)
}

/// Whether a slot removed at an epoch can be seen by nobody, given the oldest pin.
pub fn is_reusable(removed: u64, oldest_pin: u64) -> bool {
    removed < oldest_pin
}

/// Lets others see that something exists: extents up to a count, slots up to a mark.
pub fn announce<W: Word<Value = u32>>(count: &W, value: u32) {
    // Release: whoever sees the count sees what it counts.
    count.store(value, Ordering::Release);
}

/// What has been announced.
#[inline(always)]
pub fn announced<W: Word<Value = u32>>(count: &W) -> u32 {
    count.load(Ordering::Acquire)
}
