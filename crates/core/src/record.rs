//! A record's parts outside the graph: codes, exact copy, key, tags, and the checksum over what does not change.

use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::codec::{self, Encoded};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::file::layout::{LEVEL_MAX, NONE};
use crate::file::store::Store;
use crate::graph::node::{MARK_MIRRORED, Node};
use crate::heap;
use crate::mirror::RawNode;
use crate::options::KEY_BYTES_MAX;
use crate::sketch;
use crate::tags::{self, TagSet};
use crate::testing::{Planted, is_planted};

/// A checked vector with its norm, ready to be written.
#[derive(Clone, Copy)]
pub struct NewVector<'a> {
    pub vector: &'a [f32],
    pub norm: f64,
}

impl<'a> NewVector<'a> {
    /// Checks length and values.
    pub fn check(config: &Config, vector: &'a [f32]) -> Result<Self> {
        let expected = config.dims as usize;
        if vector.len() != expected {
            return Err(Error::DimensionMismatch { expected, actual: vector.len() });
        }
        Ok(NewVector { vector, norm: codec::checked_norm(vector)? })
    }
}

/// Checks that a key can be stored in this plane.
pub fn check_key(config: &Config, key: &[u8]) -> Result<()> {
    let reason = match config.key_cap {
        0 if !key.is_empty() => "the plane keeps no keys (keyCap is 0)",
        _ if key.len() > KEY_BYTES_MAX => "a key may have at most 65535 bytes",
        _ if config.unique_keys && key.is_empty() => "an empty key cannot be unique",
        _ => return Ok(()),
    };
    Err(Error::KeyUnstorable { bytes: key.len(), reason })
}

/// Takes heap room for a key that does not fit its entry; 0 when it does. The caller holds the allocation lock.
pub fn allocate_key(store: &Store, key: &[u8]) -> Result<u32> {
    if key.len() <= store.layout.key_inline as usize {
        return Ok(0);
    }
    let shared = store.shared();
    if let Some(bytes_max) = store.config.key_arena_bytes_max
        && shared.long_key_bytes.load(Ordering::Relaxed).saturating_add(key.len() as u64) > bytes_max
    {
        return Err(Error::KeysFull { bytes_max });
    }
    let unit = heap::allocate(store, key.len())?;
    shared.long_key_bytes.fetch_add(key.len() as u64, Ordering::Relaxed);
    Ok(unit)
}

/// Gives back what `allocate_key` took. The caller holds the allocation lock.
pub fn release_key(store: &Store, unit: u32, bytes: usize) {
    if unit != 0 {
        heap::release(store, unit, bytes);
        let total = &store.shared().long_key_bytes;
        let _ = total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(bytes as u64)));
    }
}

/// A record's room in the heap, as units; 0 where it takes none.
pub struct HeapRoom {
    pub key: u32,
    pub upper: u32,
    pub tags: u32,
}

/// Takes heap room for everything of a record that lies there, or nothing at all, and writes the tags to theirs. The caller holds
/// the allocation lock.
pub fn allocate_heap(store: &Store, key: &[u8], tags: &TagSet, level: u8) -> Result<HeapRoom> {
    let mut room = HeapRoom { key: allocate_key(store, key)?, upper: 0, tags: 0 };
    let upper = upper_bytes(store, level);
    let rest = |room: &mut HeapRoom| {
        if level > 0 {
            room.upper = heap::allocate(store, upper)?;
        }
        room.tags = tags::store(store, tags.as_bytes())?;
        Ok(())
    };
    rest(&mut room).inspect_err(|_| {
        release_key(store, room.key, key.len());
        if room.upper != 0 {
            heap::release(store, room.upper, upper);
        }
    })?;
    Ok(room)
}

/// Gives back what a dead record holds in the heap. The caller holds the allocation lock, and nobody reads the record.
pub fn release_heap(store: &Store, id: u32, node: Node<'_>) {
    let upper = node.header().upper.swap(0, Ordering::Relaxed);
    let level = node.level();
    if upper != 0 && level > 0 {
        heap::release(store, upper, upper_bytes(store, level));
    }
    tags::release(store, node);
    if store.layout.key_entry_bytes > 0 {
        let (len, unit) = read_key_entry(store, id);
        if len <= KEY_BYTES_MAX {
            release_key(store, unit, len);
        }
        write_key_entry(store, id, &[], 0);
    }
}

/// Heap bytes of the links above layer 0.
pub fn upper_bytes(store: &Store, level: u8) -> usize {
    usize::from(level.min(LEVEL_MAX)) * store.config.m as usize * 4
}

/// Writes codes, header fields, exact copy and key of a slot that the caller is building.
pub fn write(store: &Store, id: u32, node: Node<'_>, new: NewVector<'_>, key: &[u8], key_unit: u32) {
    // SAFETY: the slot is in state Building and belongs to this thread, so nobody else reads or writes its codes; the
    // slice has the length that the layout gives them.
    let codes = unsafe { std::slice::from_raw_parts_mut(node.codes(), store.layout.code_bytes as usize) };
    let encoded = codec::encode(store.config.precision, store.config.metric, new.vector, new.norm, codes);
    write_head(store, node, codes, &encoded);
    let (mut exact_scale, mut norm) = (1.0, encoded.norm);
    if store.layout.exact_bytes > 0 {
        // SAFETY: as for the codes; an exact copy follows its slot's state.
        let exact =
            unsafe { std::slice::from_raw_parts_mut(store.exact(id), store.layout.exact_bytes as usize) };
        exact_scale = codec::write_exact(store.config.rerank, new.vector, exact);
        // That of the copy as it is: a cosine divided by another norm would carry the copy's rounding.
        norm = codec::exact_norm(store.config.rerank, exact_scale, exact);
    }
    if store.layout.key_entry_bytes > 0 {
        write_key_entry(store, id, key, key_unit);
    }
    let header = node.header();
    header.norm.store(norm.to_bits(), Ordering::Relaxed);
    header.exact_scale.store(exact_scale.to_bits(), Ordering::Relaxed);
    header.parent.store(NONE, Ordering::Relaxed);
    header.removed_epoch.store(0, Ordering::Relaxed);
    header.marks.store(0, Ordering::Relaxed);
    node.links().iter().for_each(|link| link.store(NONE, Ordering::Relaxed));
}

/// Writes the words of the head, the scale and, where the plane has sketches, that of codes just written. The caller is
/// building the slot.
fn write_head(store: &Store, node: Node<'_>, codes: &[u8], encoded: &Encoded) {
    let head = node.head();
    head.factor.store(encoded.factor.to_bits(), Ordering::Relaxed);
    head.bias.store(encoded.bias.to_bits(), Ordering::Relaxed);
    node.scale_word().store(encoded.scale.to_bits(), Ordering::Relaxed);
    if store.layout.sketch_bytes > 0 {
        // SAFETY: as for the codes: the slot is this thread's, and its layout has that many bytes before them.
        let levels =
            unsafe { std::slice::from_raw_parts_mut(node.sketch(), store.layout.sketch_bytes as usize) };
        head.terms.store(sketch::write(codes, levels).encode(), Ordering::Relaxed);
    }
}

/// Writes codes, header fields and key of a node that a host gives, but for its links, into a slot that the caller is
/// building.
pub fn write_raw(store: &Store, id: u32, node: Node<'_>, raw: &RawNode<'_>, key: &[u8], key_unit: u32) {
    // SAFETY: as in `write`.
    let codes = unsafe { std::slice::from_raw_parts_mut(node.codes(), store.layout.code_bytes as usize) };
    let config = &store.config;
    let encoded = codec::encode_raw(config.precision, config.metric, raw.codes, raw.scale, codes);
    write_head(store, node, codes, &encoded);
    if store.layout.key_entry_bytes > 0 {
        write_key_entry(store, id, key, key_unit);
    }
    let norm =
        if raw.inverse_norm > 0.0 { codec::saturate(f64::from(raw.inverse_norm).recip()) } else { 0.0 };
    let header = node.header();
    header.norm.store(norm.to_bits(), Ordering::Relaxed);
    header.exact_scale.store(1.0f32.to_bits(), Ordering::Relaxed);
    header.parent.store(NONE, Ordering::Relaxed);
    header.removed_epoch.store(0, Ordering::Relaxed);
    header.marks.store(MARK_MIRRORED, Ordering::Relaxed);
}

/// Writes a key entry, and a key that does not fit it to its heap block.
pub fn write_key_entry(store: &Store, id: u32, key: &[u8], key_unit: u32) {
    let inline = store.layout.key_inline as usize;
    // SAFETY: the entry follows its slot's state, which makes this thread its only user; it is 4 + `key_inline` long.
    let entry = unsafe { std::slice::from_raw_parts_mut(store.key_entry(id), 4 + inline) };
    entry[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
    entry[4..].fill(0);
    if key.len() <= inline {
        entry[4..4 + key.len()].copy_from_slice(key);
    } else if let Some(at) = store.heap(key_unit, key.len()) {
        entry[4..8].copy_from_slice(&key_unit.to_le_bytes());
        // SAFETY: the block was allocated for this key and nobody else knows it.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), at, key.len()) };
    }
}

/// Length of a record's key and its heap unit (0 when it is in the entry), as the file has them.
pub fn read_key_entry(store: &Store, id: u32) -> (usize, u32) {
    let at = store.key_entry(id);
    // SAFETY: entries have at least 12 bytes, at a multiple of 4; the caller reads under the record's protocol.
    let (len, unit) = unsafe { (at.cast::<u32>().read(), at.add(4).cast::<u32>().read()) };
    (len as usize, if len > store.layout.key_inline { unit } else { 0 })
}

/// A record's key, borrowed from the file; `None` where the file's length or place of it makes no sense.
///
/// # Safety
/// The caller is pinned and has seen the record live (or is its only user), and drops the key before it lets go.
pub unsafe fn key(store: &Store, id: u32) -> Option<&[u8]> {
    if store.layout.key_entry_bytes == 0 {
        return Some(&[]);
    }
    let (len, unit) = read_key_entry(store, id);
    let at = if len <= store.layout.key_inline as usize {
        store.key_entry(id).wrapping_add(4)
    } else if len <= KEY_BYTES_MAX {
        // The record may be younger than what this handle has mapped: the heap can have grown for its key.
        store.heap(unit, len).or_else(|| {
            store.refresh().ok()?;
            store.heap(unit, len)
        })?
    } else {
        return None;
    };
    // SAFETY: both branches checked the range; the contents do not change while the caller keeps the record.
    Some(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Checksum over everything of a record that does not change while it lives.
///
/// # Safety
/// As `key`.
pub unsafe fn checksum(store: &Store, id: u32, node: Node<'_>, level: u8) -> Option<u32> {
    let (head, header) = (node.head(), node.header());
    let mut fields = [0u8; 48];
    let words = [
        id,
        u32::from(level),
        head.factor.load(Ordering::Relaxed),
        head.bias.load(Ordering::Relaxed),
        node.scale_word().load(Ordering::Relaxed),
        header.norm.load(Ordering::Relaxed),
        header.exact_scale.load(Ordering::Relaxed),
        header.upper.load(Ordering::Relaxed),
    ];
    for (at, word) in words.iter().enumerate() {
        fields[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    fields[32..40].copy_from_slice(&header.generation.load(Ordering::Relaxed).to_le_bytes());
    // SAFETY: the caller's promise; the slices have the lengths of the layout.
    let (codes, exact, key) = unsafe {
        let (start, bytes) = node.vector_bytes(&store.layout);
        let codes = std::slice::from_raw_parts(start, bytes);
        let exact = match store.layout.exact_bytes {
            0 => &[][..],
            bytes => std::slice::from_raw_parts(store.exact(id), bytes as usize),
        };
        (codes, exact, key(store, id)?)
    };
    fields[40..48].copy_from_slice(&(key.len() as u64).to_le_bytes());
    let key = if is_planted(Planted::ChecksumSkipsKey) { &[] } else { key };
    let sum = [codes, exact, key]
        .iter()
        .fold(xxh3_64_with_seed(&fields, 0), |seed, part| xxh3_64_with_seed(part, seed));
    if node.tags() == 0 {
        return Some(sum as u32);
    }
    let mut own = Vec::new();
    tags::read(store, node, &mut own).then(|| xxh3_64_with_seed(&own, sum) as u32)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::options::CreateOptions;
    use crate::plane::Plane;
    use crate::registry;

    use super::*;

    /// A reader looks at what is mapped when it begins. A slot from before may come to hold a record whose key lies in a part of
    /// the heap that came after.
    #[test]
    fn a_key_younger_than_the_readers_map_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plane");
        let plane = Plane::create(&path, &CreateOptions { key_cap: 8, ..CreateOptions::new(2) }).unwrap();
        let reused = plane.insert(&[1.0, 0.0], b"short").unwrap();
        plane.insert(&[0.0, 1.0], b"other").unwrap();
        let reader = registry::open(&path, true, Duration::from_secs(5), &|_, _| true, None).unwrap();
        let pinned = reader.pin().unwrap();
        let before = reader.store.heap_mapped();
        let key = vec![b'x'; KEY_BYTES_MAX];
        while plane.engine().unwrap().store.heap_mapped() < before + 4 * KEY_BYTES_MAX as u64 {
            plane.insert(&[1.0, 1.0], &key).unwrap();
        }
        assert!(plane.remove(reused).unwrap());
        assert_eq!(plane.insert(&[2.0, 0.0], &key).unwrap(), reused);
        assert_eq!(reader.store.heap_mapped(), before, "the reader lags");
        // SAFETY: the record is live, and nobody removes it here.
        assert_eq!(unsafe { super::key(&reader.store, reused) }, Some(&key[..]));
        drop(pinned);
    }

    /// A sketch that says the wrong thing would hide its record from searches, and nothing else would look wrong.
    #[test]
    fn damage_to_a_sketch_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let plane = Plane::create(&dir.path().join("plane"), &CreateOptions::new(150)).unwrap();
        for i in 0..3 {
            plane.insert(&[i as f32; 150], b"").unwrap();
        }
        assert!(plane.verify().unwrap().ok());
        let engine = plane.engine().unwrap();
        let node = engine.store.node(1).unwrap();
        let damages: [&dyn Fn(); 2] = [
            // SAFETY: nobody else has the plane.
            &|| unsafe { *node.sketch().add(7) ^= 4 },
            &|| {
                node.head().terms.fetch_xor(1 << 20, Ordering::Relaxed);
            },
        ];
        for damage in damages {
            damage();
            assert!(!plane.verify().unwrap().ok());
            damage();
            assert!(plane.verify().unwrap().ok());
        }
    }
}
