//! The parts of the header that running processes share: words outside all checksums, read and written in place.
//!
//! Every word is an atomic, since any process may change it at any time. Values found here are never trusted: each
//! user checks what it reads against ranges that it knows.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use super::layout::{
    CURVES_OFFSET, EXTENT_TABLE_OFFSET, HEADER_BYTES, INTENT_TABLE_OFFSET, KEY_SHARDS_OFFSET,
};
use super::layout::{EXTENT_COUNT_MAX, INTENT_COUNT, KEY_SHARD_COUNT, PROCESS_COUNT};
use super::layout::{PROCESS_TABLE_OFFSET, READER_COUNT, READER_TABLE_OFFSET, SHARED_OFFSET, TAG_LOG_OFFSET};

/// Every flag that a version may set.
pub const FLAGS_KNOWN: u32 = FLAG_INVALIDATED | FLAG_SYNC_FAILED | FLAG_TAGGED;

/// Size classes of the heap's free lists.
pub const HEAP_CLASSES: usize = 96;

/// `SharedState::flags`: its host declared the plane invalid. Nothing takes it away again.
pub const FLAG_INVALIDATED: u32 = 4;

/// `SharedState::flags`: a record with tags was stored at some time.
pub const FLAG_TAGGED: u32 = 16;

/// `SharedState::flags`: a sync failed, so nobody knows what reached the disk.
pub const FLAG_SYNC_FAILED: u32 = 8;

/// The shared-state page. Groups that different threads write often have cache lines of their own.
#[repr(C, align(64))]
pub struct SharedState {
    /// Grows by one with each removal; readers pin themselves at it.
    pub epoch: AtomicU64,
    _pad0: [u64; 7],

    /// Extents published; entries below it are complete.
    pub extent_count: AtomicU32,
    /// One past the highest id given.
    pub id_high_water: AtomicU32,
    /// Entry point: level in the upper half, id in the lower; all ones when there is none.
    pub entry: AtomicU64,
    /// Oldest live record: root of the parent tree. `NONE` when there is none.
    pub root: AtomicU32,
    /// `FLAG_*`.
    pub flags: AtomicU32,
    /// Lanes ever used in the reader table: scans stop here.
    pub lane_high_water: AtomicU32,
    /// How often `create` has put another plane at a path of this file: handles from before such a moment are stale.
    pub replacements: AtomicU32,
    /// One more before a compaction puts another file in the place of this one, and one more after: odd while it does. Who
    /// sees another number than before looks at the path again.
    pub supersessions: AtomicU32,
    /// How often a compaction has given the records new ids.
    pub renumberings: AtomicU32,
    _pad1: [u32; 6],

    /// 1 from before the first change until after the flush of a clean close.
    pub dirty: AtomicU32,
    /// Pid of the process whose turn it is; 0 between turns. Not zero with the lock free means that it died.
    pub writer_pid: AtomicU32,
    /// When another process last asked for the turn: milliseconds of the wall clock, wrapping; 0 for never.
    pub handover: AtomicU32,
    /// 1 when a flush has ended and nothing was written since: the disk has all that the file says.
    pub settled: AtomicU32,
    /// Boot id of the machine that last wrote.
    pub boot: [AtomicU64; 2],
    /// Device and inode of the file that was last written.
    pub device: AtomicU64,
    /// See `device`.
    pub inode: AtomicU64,
    /// The mount through which it was written; 0 where the system does not tell.
    pub mount: AtomicU64,
    _pad3: u64,

    /// Live records.
    pub count: AtomicI64,
    /// Last record generation given.
    pub generation: AtomicU64,
    /// The caller's watermark as last committed.
    pub watermark: AtomicU64,
    /// The watermark that the next flush commits.
    pub watermark_pending: AtomicU64,
    /// Number of the last durable commit.
    pub commits: AtomicU64,
    _pad4: [u64; 3],

    /// Top of the stack of free slots.
    pub free_head: AtomicU32,
    /// Slots on that stack.
    pub free_count: AtomicU32,
    /// Oldest slot in limbo.
    pub limbo_head: AtomicU32,
    /// Newest slot in limbo.
    pub limbo_tail: AtomicU32,
    /// Slots in limbo.
    pub limbo_count: AtomicU32,
    /// Heap units handed out so far, from the start of the heap.
    pub heap_bump: AtomicU32,
    /// Heap units in use.
    pub heap_used: AtomicU64,
    /// Bytes of keys in the heap.
    pub long_key_bytes: AtomicU64,
    /// Inserts and removals since creation; wraps. For judging whether a calibration has aged.
    pub churn: AtomicU64,
    /// Oldest slot whose record was replaced since the last commit; it goes to limbo with the next one.
    pub held_head: AtomicU32,
    /// Newest of them.
    pub held_tail: AtomicU32,
    /// How many there are.
    pub held_count: AtomicU32,
    _pad5: u32,

    /// First free block of each heap size class, as a unit.
    pub heap_free: [AtomicU32; HEAP_CLASSES],
}

/// A registered process. It owns entry i while it holds the kernel lock on byte `PROCESS_LOCK + i`.
#[repr(C, align(64))]
pub struct ProcessEntry {
    /// For messages only; whether the process lives is read off the lock.
    pub pid: AtomicU32,
    _pad: [u32; 15],
}

/// What a writing thread is changing, for whoever repairs after it.
#[repr(C, align(64))]
pub struct Intent {
    /// 0 none, 1 insert, 2 remove, 3 upsert, 4 raw node.
    pub operation: AtomicU32,
    /// The record being written or removed.
    pub id: AtomicU32,
    /// The record that an upsert replaces.
    pub old_id: AtomicU32,
    _pad: [u32; 13],
}

/// A reading thread's place in the epoch protocol.
#[repr(C, align(64))]
pub struct ReaderLane {
    /// Epoch the reader is pinned at; 0 when it is not.
    pub pinned: AtomicU64,
    /// Process entry + 1 of the owner; 0 when free.
    pub owner: AtomicU32,
    _pad: [u32; 13],
}

/// One extent. Written once, complete before `extent_count` names it, never changed after.
#[repr(C)]
pub struct ExtentEntry {
    /// Where it starts in the file.
    pub offset: AtomicU64,
    /// How long it is.
    pub bytes: AtomicU64,
    /// Region in the low half, position in the table in the high half.
    pub region_and_index: AtomicU64,
    /// Checksum over the three words above and the plane's uuid.
    pub checksum: AtomicU64,
}

/// One shard of the key index.
#[repr(C)]
pub struct KeyShard {
    /// Heap unit of its table in the low half, log2 of its slots in the high half; 0 when it has no table.
    pub table: AtomicU64,
    /// Entries in use.
    pub used: AtomicU32,
    /// Entries removed but not yet reusable.
    pub removed: AtomicU32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<SharedState>() <= TAG_LOG_OFFSET - SHARED_OFFSET);
    assert!(offset_of!(SharedState, extent_count) == 64);
    assert!(offset_of!(SharedState, dirty) == 128);
    assert!(offset_of!(SharedState, count) == 192);
    assert!(offset_of!(SharedState, free_head) == 256);
    assert!(offset_of!(SharedState, heap_free) == 320);
    assert!(size_of::<ProcessEntry>() * PROCESS_COUNT <= INTENT_TABLE_OFFSET - PROCESS_TABLE_OFFSET);
    assert!(size_of::<Intent>() * INTENT_COUNT <= KEY_SHARDS_OFFSET - INTENT_TABLE_OFFSET);
    assert!(size_of::<KeyShard>() * KEY_SHARD_COUNT <= CURVES_OFFSET - KEY_SHARDS_OFFSET);
    assert!(size_of::<ExtentEntry>() * EXTENT_COUNT_MAX <= READER_TABLE_OFFSET - EXTENT_TABLE_OFFSET);
    assert!(size_of::<ReaderLane>() * READER_COUNT <= HEADER_BYTES - READER_TABLE_OFFSET);
};
