//! A node's slot in the map: head, sketch, codes, header, layer-0 links.
//!
//! The protocol that makes these views sound (F4): header and links are atomics, which any thread may read and write at
//! any time. Codes (and the exact copy and key entry of the same id) are plain bytes. They are written only while the
//! slot's state is `Building`, by the one thread that took the slot off the free list, and are read only by threads
//! that loaded `Live` (writers: or `Linking`) with Acquire from the state word while pinned, before the slot could be
//! handed out again: a slot is reused only after every reader pinned at its removal has left (see `epoch`).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::file::layout::{LEVEL_MAX, Layout, NODE_HEAD_BYTES, NODE_HEADER_BYTES, PAGE_BYTES};
use crate::protocol;
use crate::testing::moment;

/// What a slot holds; the low bits of its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// Never used: all zeros since its extent was allocated.
    Never = 0,
    /// Being written; nobody but its writer looks inside.
    Building = 1,
    /// A record.
    Live = 2,
    /// Removed; readers pinned earlier may still be reading it.
    Limbo = 3,
    /// On the free list.
    Free = 4,
    /// As `Limbo`, for a record that another one replaced: after a power cut it is the key's record still, if the other
    /// one did not reach the disk.
    Replaced = 6,
    /// Taken out by its host, and the host's to write again; on no list.
    Cleared = 7,
    /// Whole, but read by nobody: its host is about to write over it. A kill brings it back.
    Hidden = 8,
    /// Written, and being linked in: writers may read it, readers do not see it yet.
    Linking = 5,
}

/// `NodeHeader::marks`: a record that had few ways in when it was inserted. Lists keep their links to it.
pub const MARK_OUTLIER: u32 = 1;
/// `NodeHeader::marks`: a node that a host has written, with links of its own. It has no parent and is none.
pub const MARK_MIRRORED: u32 = 2;

/// What scoring reads of a node besides its codes. It follows them, or, in planes with sketches, begins the slot, so that one
/// cache line may be all that a walk has to see of a node that is too far.
#[repr(C)]
pub struct NodeHead {
    /// `SlotState` in bits 0 to 7, level in bits 8 to 15; of a replaced record, in bits 16 to 31, the low bits of the number
    /// of the commit that makes what replaced it durable.
    pub state: AtomicU32,
    /// Multiplier of the code dot product, by metric; f32 bits, as is the next.
    pub factor: AtomicU32,
    /// Addend of the distance, by metric.
    pub bias: AtomicU32,
    /// The sketch's terms; in planes without sketches, the scale.
    pub terms: AtomicU32,
}

/// The rest of a node's fixed part.
#[repr(C)]
pub struct NodeHeader {
    /// Euclidean norm of the caller's vector; f32 bits.
    pub norm: AtomicU32,
    /// Over everything that does not change while the record lives.
    pub checksum: AtomicU32,
    /// Number of the record in order of insertion; never given twice.
    pub generation: AtomicU64,
    /// Heap unit of the links above layer 0; 0 when the level is 0.
    pub upper: AtomicU32,
    /// The older node whose link to this one may not be dropped; `NONE` at the root.
    pub parent: AtomicU32,
    /// Power of two that an f16 exact copy is scaled by; f32 bits.
    pub exact_scale: AtomicU32,
    /// Next slot on the free list or in limbo.
    pub next: AtomicU32,
    /// Epoch of the removal.
    pub removed_epoch: AtomicU64,
    /// `MARK_*`.
    pub marks: AtomicU32,
    /// Heap unit of the record's tags; 0 for none.
    pub tags: AtomicU32,
}

const _: () = assert!(std::mem::size_of::<NodeHead>() == NODE_HEAD_BYTES as usize);
const _: () = assert!(std::mem::size_of::<NodeHeader>() == NODE_HEADER_BYTES as usize);

/// Where a slot's parts are.
#[derive(Clone, Copy)]
struct Places {
    head: u32,
    codes: u32,
    scale: u32,
    header: u32,
    links: u32,
}

/// Where slots lie, with everything the address arithmetic needs at hand.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    base: *mut u8,
    limit: u32,
    stride: u32,
    /// Bytes left over at the end of each page; 0 when slots are contiguous.
    page_waste: u32,
    /// `id / slots_per_page == (id * page_magic) >> page_shift` for every 31-bit id.
    page_magic: u64,
    page_shift: u32,
    places: Places,
    code_bytes: u32,
    layer0_cap: u32,
    _map: PhantomData<&'a NodeHeader>,
}

// SAFETY: `Slots` is an address and some numbers; what may be done through it is governed by the protocol above.
unsafe impl Send for Slots<'_> {}
// SAFETY: as above.
unsafe impl Sync for Slots<'_> {}

impl<'a> Slots<'a> {
    /// # Safety
    /// `base` points to at least `limit` slots of this layout that stay mapped for 'a.
    pub unsafe fn new(base: *mut u8, limit: u32, layout: &Layout, layer0_cap: u32) -> Self {
        let per_page = layout.slots_per_page;
        let (page_waste, page_magic, page_shift) = if per_page == 0 {
            (0, 0, 0)
        } else {
            // With shift = 31 + ceil(log2 n) and magic = ceil(2^shift / n), the product's error stays below one for
            // ids below 2^31, and magic below 2^32, so the product fits 63 bits.
            let shift = 31 + per_page.next_power_of_two().trailing_zeros();
            (PAGE_BYTES - per_page * layout.slot_bytes, (1u64 << shift).div_ceil(u64::from(per_page)), shift)
        };
        Slots {
            base,
            limit,
            stride: layout.slot_bytes,
            page_waste,
            page_magic,
            page_shift,
            places: Places {
                head: layout.head_offset,
                codes: layout.codes_offset,
                scale: layout.scale_offset,
                header: layout.header_offset,
                links: layout.links_offset,
            },
            code_bytes: layout.code_bytes,
            layer0_cap,
            _map: PhantomData,
        }
    }

    /// Ids below this have a slot.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Slots at most `limit`.
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = self.limit.min(limit);
        self
    }

    /// Address of a slot; only valid memory for ids below `limit`.
    #[inline(always)]
    pub fn address(&self, id: u32) -> *mut u8 {
        let page = (u64::from(id) * self.page_magic) >> self.page_shift;
        let offset = u64::from(id) * u64::from(self.stride) + page * u64::from(self.page_waste);
        self.base.wrapping_add(offset as usize)
    }

    /// The node with this id, `None` past the limit.
    #[inline(always)]
    pub fn get(&self, id: u32) -> Option<Node<'a>> {
        (id < self.limit).then(|| Node {
            slot: self.address(id),
            places: self.places,
            layer0_cap: self.layer0_cap,
            _map: PhantomData,
        })
    }

    /// Whether records have sketches.
    pub fn have_sketches(&self) -> bool {
        self.places.codes > 0
    }

    /// Bytes from a slot's start that scoring reads.
    pub fn score_bytes(&self) -> u32 {
        if self.have_sketches() { self.places.codes + self.code_bytes } else { self.places.head + 12 }
    }

    /// Bytes from a slot's start that a first look reads: head and sketch, or all that scoring reads.
    pub fn look_bytes(&self) -> u32 {
        if self.have_sketches() { self.places.codes } else { self.score_bytes() }
    }

    /// Bytes from a slot's start through the header.
    pub fn header_bytes(&self) -> u32 {
        self.places.header + NODE_HEADER_BYTES
    }

    /// Where layer-0 links start in a slot, and how many bytes they take.
    pub fn links_range(&self) -> (u32, u32) {
        (self.places.links, 4 * self.layer0_cap)
    }
}

/// One slot.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    slot: *mut u8,
    places: Places,
    layer0_cap: u32,
    _map: PhantomData<&'a NodeHeader>,
}

impl<'a> Node<'a> {
    /// The words that scoring reads.
    #[inline(always)]
    pub fn head(&self) -> &'a NodeHead {
        // SAFETY: `Slots::new`'s caller vouched for the slot's memory for 'a; the head starts at a multiple of 8 inside a
        // 64-byte aligned slot; all of it is atomics, for which every bit pattern is a value.
        unsafe { &*self.slot.add(self.places.head as usize).cast::<NodeHead>() }
    }

    /// The rest of the fixed part.
    #[inline(always)]
    pub fn header(&self) -> &'a NodeHeader {
        // SAFETY: as for `head`.
        unsafe { &*self.slot.add(self.places.header as usize).cast::<NodeHeader>() }
    }

    /// Component = code * scale; f32 bits.
    #[inline(always)]
    pub fn scale_word(&self) -> &'a AtomicU32 {
        // SAFETY: as for `head`, at a multiple of 4.
        unsafe { &*self.slot.add(self.places.scale as usize).cast::<AtomicU32>() }
    }

    /// Links on layer 0: ids up to the first `NONE`.
    #[inline(always)]
    pub fn links(&self) -> &'a [AtomicU32] {
        // SAFETY: as for `header`; the layout has `layer0_cap` words behind the header, inside the slot.
        unsafe {
            std::slice::from_raw_parts(
                self.slot.add(self.places.links as usize).cast(),
                self.layer0_cap as usize,
            )
        }
    }

    /// First byte of the codes. Reading through it asks for a pinned reader that has seen `Live`, writing for the
    /// slot's builder.
    #[inline(always)]
    pub fn codes(&self) -> *mut u8 {
        self.slot.wrapping_add(self.places.codes as usize)
    }

    /// First byte of the sketch, in planes that have them. The same asks for the same.
    #[inline(always)]
    pub fn sketch(&self) -> *mut u8 {
        self.slot.wrapping_add(NODE_HEAD_BYTES as usize)
    }

    /// The state word, before anything else of the record is looked at.
    #[inline(always)]
    pub fn state_word(&self) -> u32 {
        protocol::see(&self.head().state)
    }

    /// Whether the slot holds a record.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.state_word() & 0xFF == SlotState::Live as u32
    }

    /// Whether the slot holds a complete record, visible or about to be: links to it are kept.
    pub fn is_linked(&self) -> bool {
        let state = self.state_word() & 0xFF;
        state == SlotState::Live as u32 || state == SlotState::Linking as u32
    }

    /// What the slot holds; `None` for a value that no version writes.
    pub fn state(&self) -> Option<SlotState> {
        Some(match self.state_word() & 0xFF {
            0 => SlotState::Never,
            1 => SlotState::Building,
            2 => SlotState::Live,
            3 => SlotState::Limbo,
            4 => SlotState::Free,
            5 => SlotState::Linking,
            6 => SlotState::Replaced,
            7 => SlotState::Cleared,
            8 => SlotState::Hidden,
            _ => return None,
        })
    }

    /// Highest layer the node is on; bounded, whatever the file says.
    pub fn level(&self) -> u8 {
        ((self.state_word() >> 8) as u8).min(LEVEL_MAX)
    }

    /// Changes state and level in one store.
    pub fn set_state(&self, state: SlotState, level: u8) {
        protocol::turn_to(&self.head().state, state as u32 | u32::from(level) << 8);
        moment();
    }

    /// Marks a record as replaced by another, which the commit of this number makes durable. In one word: a torn write
    /// must not part the state from the number.
    pub fn set_replaced(&self, commit: u64) {
        let word = SlotState::Replaced as u32 | u32::from(self.level()) << 8 | (commit as u32) << 16;
        protocol::turn_to(&self.head().state, word);
        moment();
    }

    /// Whether what replaced this record is not durable yet, given the last commit's number.
    pub fn is_held_at(&self, commit: u64) -> bool {
        let word = self.state_word();
        // A replaced record is at most a commit or two old, so the distance of the low bits tells the order.
        let ahead = ((word >> 16) as u16).wrapping_sub(commit as u16) as i16;
        word & 0xFF == SlotState::Replaced as u32 && ahead > 0
    }

    /// See `NodeHead::factor`.
    #[inline(always)]
    pub fn factor(&self) -> f32 {
        f32::from_bits(self.head().factor.load(Ordering::Relaxed))
    }

    /// See `NodeHead::bias`.
    #[inline(always)]
    pub fn bias(&self) -> f32 {
        f32::from_bits(self.head().bias.load(Ordering::Relaxed))
    }

    /// See `NodeHead::terms`.
    #[inline(always)]
    pub fn terms(&self) -> u32 {
        self.head().terms.load(Ordering::Relaxed)
    }

    /// See `scale_word`.
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_word().load(Ordering::Relaxed))
    }

    /// First byte, and how many there are, of what a record keeps of its vector in its slot: the sketch with its terms, where
    /// there is one, and the codes.
    pub fn vector_bytes(&self, layout: &Layout) -> (*mut u8, usize) {
        let codes = layout.code_bytes as usize;
        match layout.sketch_bytes {
            0 => (self.codes(), codes),
            sketch => (self.sketch().wrapping_sub(4), 4 + sketch as usize + codes),
        }
    }

    /// See `NodeHeader::norm`.
    pub fn norm(&self) -> f32 {
        f32::from_bits(self.header().norm.load(Ordering::Relaxed))
    }

    /// See `NodeHeader::exact_scale`.
    pub fn exact_scale(&self) -> f32 {
        f32::from_bits(self.header().exact_scale.load(Ordering::Relaxed))
    }

    /// See `NodeHeader::generation`.
    pub fn generation(&self) -> u64 {
        self.header().generation.load(Ordering::Relaxed)
    }

    /// See `NodeHeader::parent`.
    pub fn parent(&self) -> u32 {
        self.header().parent.load(Ordering::Relaxed)
    }

    /// See `NodeHeader::parent`.
    pub fn set_parent(&self, id: u32) {
        self.header().parent.store(id, Ordering::Relaxed);
    }

    /// See `MARK_OUTLIER`.
    pub fn is_outlier(&self) -> bool {
        self.header().marks.load(Ordering::Relaxed) & MARK_OUTLIER != 0
    }

    /// See `MARK_MIRRORED`.
    pub fn is_mirrored(&self) -> bool {
        self.header().marks.load(Ordering::Relaxed) & MARK_MIRRORED != 0
    }

    /// Whether the slot holds a complete record that nobody reads for the moment.
    pub fn is_hidden(&self) -> bool {
        self.state_word() & 0xFF == SlotState::Hidden as u32
    }

    /// See `NodeHeader::tags`.
    pub fn tags(&self) -> u32 {
        self.header().tags.load(Ordering::Relaxed)
    }

    /// See `NodeHeader::upper`.
    pub fn upper(&self) -> u32 {
        self.header().upper.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::header::Superblock;
    use crate::options::CreateOptions;

    /// Views over plain memory, threads included: what miri can look at.
    #[test]
    fn a_record_written_through_a_view_is_read_through_others() {
        // Lines of 64 bytes, as a map aligns them.
        #[derive(Clone)]
        #[repr(align(64))]
        struct Line([u8; 64]);
        const COUNT: u32 = 40;
        let options = CreateOptions { m: 2, layer0_cap: 4, ..CreateOptions::new(20) };
        let config = Superblock::new(&options, [0; 16], 0).config;
        let layout = Layout::new(&config);
        let pages = COUNT.div_ceil(layout.slots_per_page) as usize;
        let mut memory = vec![Line([0; 64]); pages * PAGE_BYTES as usize / 64];
        assert_eq!(size_of_val(&memory[0].0), 64);
        // SAFETY: the memory holds that many slots of this layout and outlives the view.
        let slots = unsafe { Slots::new(memory.as_mut_ptr().cast(), COUNT, &layout, config.layer0_cap) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..COUNT {
                    let node = slots.get(id).unwrap();
                    node.set_state(SlotState::Building, 0);
                    // SAFETY: this thread is building the record.
                    unsafe { node.codes().write_bytes(id as u8 + 1, layout.code_bytes as usize) };
                    node.links().iter().for_each(|link| link.store(id, Ordering::Relaxed));
                    node.header().generation.store(u64::from(id), Ordering::Relaxed);
                    node.set_state(SlotState::Live, (id % 3) as u8);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    for id in (0..COUNT).cycle().take(3 * COUNT as usize) {
                        let node = slots.get(id).unwrap();
                        if !node.is_live() {
                            std::thread::yield_now();
                            continue;
                        }
                        // SAFETY: seen live, and nothing is removed here.
                        let codes =
                            unsafe { std::slice::from_raw_parts(node.codes(), layout.code_bytes as usize) };
                        assert!(codes.iter().all(|code| *code == id as u8 + 1));
                        assert!(node.links().iter().all(|link| link.load(Ordering::Relaxed) == id));
                        assert_eq!((node.generation(), node.level()), (u64::from(id), (id % 3) as u8));
                    }
                });
            }
        });
        assert!(slots.get(COUNT).is_none());
        assert!((0..COUNT).all(|id| slots.get(id).unwrap().is_live()));
    }

    #[test]
    fn page_division_is_exact_for_every_slot_count() {
        for per_page in 1..=64u32 {
            let layout = Layout {
                code_bytes: 0,
                sketch_bytes: 0,
                head_offset: 0,
                codes_offset: 0,
                scale_offset: 12,
                header_offset: 16,
                links_offset: 64,
                slot_bytes: PAGE_BYTES / per_page / 64 * 64,
                slots_per_page: per_page,
                exact_bytes: 0,
                key_entry_bytes: 0,
                key_inline: 0,
            };
            // SAFETY: no slot is touched, only addresses are computed.
            let slots = unsafe { Slots::new(std::ptr::null_mut(), u32::MAX, &layout, 0) };
            let around = |n: u32| [n.saturating_sub(1), n, n + 1];
            let ids = (0..200).chain(around(per_page * 1_000_003)).chain(around(0x7FFF_FFFE - per_page));
            for id in ids.chain([0x7FFF_FFFE]) {
                let expected = u64::from(id / per_page) * u64::from(PAGE_BYTES)
                    + u64::from(id % per_page) * u64::from(layout.slot_bytes);
                assert_eq!(slots.address(id) as u64, expected, "{id} by {per_page}");
            }
        }
    }
}
