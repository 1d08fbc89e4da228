//! Tags: small sets of numbers and strings that a record carries, and how they lie in the file.
//!
//! A record's tags are a block of the heap that its header names: the bytes of the set as one word, then the tags, ascending,
//! each once. A number is 0 and four bytes, little-endian; a string is 1, its length as one byte, and its UTF-8. So equal sets
//! have equal bytes. They change as little as the rest of a record: never while it lives.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::file::store::Store;
use crate::graph::node::Node;
use crate::heap;

/// Most tags of one record.
pub const TAGS_MAX: usize = 64;
/// Most bytes of a string tag.
pub const TAG_BYTES_MAX: usize = 255;
/// Most bytes of a set, as encoded.
pub const TAG_SET_BYTES_MAX: usize = TAGS_MAX * (2 + TAG_BYTES_MAX);

const NUMBER: u8 = 0;
const TEXT: u8 = 1;

/// One tag. A number and its spelling are different tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag<'a> {
    /// Any u32.
    Number(u32),
    /// 1 to 255 bytes.
    Text(&'a str),
}

impl<'a> Tag<'a> {
    fn check(self) -> Result<()> {
        let reason = match self {
            Tag::Text("") => "a tag must not be empty",
            Tag::Text(text) if text.len() > TAG_BYTES_MAX => "a tag may have at most 255 bytes",
            _ => return Ok(()),
        };
        Err(Error::TagInvalid { reason })
    }

    /// The first tag of encoded bytes, and what follows it; `None` where they make no sense.
    fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        match bytes {
            [NUMBER, rest @ ..] => {
                let (number, rest) = rest.split_first_chunk()?;
                Some((Tag::Number(u32::from_le_bytes(*number)), rest))
            }
            [TEXT, length, rest @ ..] => {
                let (text, rest) = rest.split_at_checked(usize::from(*length))?;
                Some((Tag::Text(std::str::from_utf8(text).ok()?), rest)).filter(|_| *length > 0)
            }
            _ => None,
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Tag::Number(number) => {
                out.push(NUMBER);
                out.extend(number.to_le_bytes());
            }
            Tag::Text(text) => {
                out.extend([TEXT, text.len() as u8]);
                out.extend(text.as_bytes());
            }
        }
    }
}

/// A set of tags that can be stored, or looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagSet {
    bytes: Vec<u8>,
}

impl TagSet {
    /// Puts tags in order and drops repetitions. Fails with `Error::TagInvalid`.
    pub fn new<'a>(tags: impl IntoIterator<Item = Tag<'a>>) -> Result<Self> {
        let set = Self::of_any_size(tags)?;
        if set.iter().count() > TAGS_MAX {
            return Err(Error::TagInvalid { reason: "a record may have at most 64 tags" });
        }
        Ok(set)
    }

    /// As `new`, for tags that are looked for.
    pub fn of_any_size<'a>(tags: impl IntoIterator<Item = Tag<'a>>) -> Result<Self> {
        let mut tags: Vec<Tag<'a>> = tags.into_iter().collect();
        tags.sort_unstable();
        tags.dedup();
        let mut bytes = Vec::new();
        for tag in tags {
            tag.check()?;
            tag.encode(&mut bytes);
        }
        Ok(TagSet { bytes })
    }

    /// One that a record had.
    pub(crate) fn from_file(bytes: Vec<u8>) -> Self {
        TagSet { bytes }
    }

    /// Its tags: numbers first, then strings by their bytes.
    pub fn iter(&self) -> impl Iterator<Item = Tag<'_>> {
        tags(&self.bytes)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// As it lies in the file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The tags in encoded bytes, as far as they make sense.
pub fn tags(mut bytes: &[u8]) -> impl Iterator<Item = Tag<'_>> {
    std::iter::from_fn(move || {
        let (tag, rest) = Tag::decode(bytes)?;
        bytes = rest;
        Some(tag)
    })
}

/// The same, each as encoded.
pub fn encoded(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (_, rest) = Tag::decode(bytes)?;
        let (tag, _) = bytes.split_at(bytes.len() - rest.len());
        bytes = rest;
        Some(tag)
    })
}

/// Whether encoded bytes are a set that `TagSet` could have made.
pub fn are_sound(bytes: &[u8]) -> bool {
    let encoded: usize = tags(bytes).map(|tag| encoded_bytes(tag)).sum();
    encoded == bytes.len() && tags(bytes).is_sorted_by(|a, b| a < b) && tags(bytes).count() <= TAGS_MAX
}

fn encoded_bytes(tag: Tag<'_>) -> usize {
    match tag {
        Tag::Number(_) => 5,
        Tag::Text(text) => 2 + text.len(),
    }
}

/// Which records a query wants, by their tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagQuery {
    /// At least one of these; `None`: any, or none at all.
    pub any_of: Option<TagSet>,
    /// Every one of these.
    pub all_of: TagSet,
    /// Not one of these.
    pub none_of: TagSet,
}

impl TagQuery {
    /// Whether a record with these tags, as they lie in the file, is wanted.
    pub fn accepts(&self, own: &[u8]) -> bool {
        let has = |wanted: Tag<'_>| tags(own).any(|tag| tag == wanted);
        self.any_of.as_ref().is_none_or(|any| any.iter().any(has))
            && self.all_of.iter().all(has)
            && !self.none_of.iter().any(has)
    }
}

/// Heap bytes of a set; 0 for the empty one, which takes no block.
pub fn block_bytes(set_bytes: usize) -> usize {
    if set_bytes == 0 { 0 } else { 4 + set_bytes }
}

/// Writes a set to a block of the heap and returns its unit; 0 for the empty one. The caller holds the allocation lock and is
/// building the record.
pub fn store(store: &Store, set: &[u8]) -> Result<u32> {
    if set.is_empty() {
        return Ok(0);
    }
    let unit = heap::allocate(store, block_bytes(set.len()))?;
    let outside = Error::Corrupt { what: "tags outside the heap", offset: 0 };
    let words = store.heap_words(unit, block_bytes(set.len()).div_ceil(4)).ok_or(outside)?;
    words[0].store(set.len() as u32, Ordering::Relaxed);
    for (word, bytes) in words[1..].iter().zip(set.chunks(4)) {
        let mut padded = [0; 4];
        padded[..bytes.len()].copy_from_slice(bytes);
        word.store(u32::from_le_bytes(padded), Ordering::Relaxed);
    }
    Ok(unit)
}

/// The block at a unit: the bytes of its set, and its words with them.
fn block(store: &Store, unit: u32) -> Option<(usize, &[AtomicU32])> {
    let within = |words: usize| store.heap_words(unit, words);
    // The record may be younger than what this handle has mapped: the heap can have grown for its tags.
    let head = within(1).or_else(|| {
        store.refresh().ok()?;
        within(1)
    })?;
    let bytes = head[0].load(Ordering::Relaxed) as usize;
    let words =
        (1..=TAG_SET_BYTES_MAX).contains(&bytes).then(|| within(block_bytes(bytes).div_ceil(4)))??;
    Some((bytes, words))
}

/// A record's tags, encoded, into `out`; false where the file names a block that makes no sense. The caller is pinned and has seen
/// the record live; who is not pinned looks again afterwards whether it is the same record.
pub fn read(store: &Store, node: Node<'_>, out: &mut Vec<u8>) -> bool {
    out.clear();
    let unit = node.tags();
    if unit == 0 {
        return true;
    }
    let Some((bytes, words)) = block(store, unit) else { return false };
    out.extend(words[1..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
    out.truncate(bytes);
    true
}

/// Heap bytes of the block that a record's tags take, as the file has it; 0 for none.
pub fn used_bytes(store: &Store, node: Node<'_>) -> usize {
    if node.tags() == 0 { 0 } else { block(store, node.tags()).map_or(0, |(bytes, _)| block_bytes(bytes)) }
}

/// Gives back the block of a record that nobody reads any more. The caller holds the allocation lock.
pub fn release(store: &Store, node: Node<'_>) {
    let bytes = used_bytes(store, node);
    let unit = node.header().tags.swap(0, Ordering::Relaxed);
    if bytes > 0 {
        heap::release(store, unit, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_set_is_in_order_and_has_each_tag_once() {
        let set =
            TagSet::new([Tag::Text("b"), Tag::Number(9), Tag::Text("b"), Tag::Text("7"), Tag::Number(7)])
                .unwrap();
        let expected = [Tag::Number(7), Tag::Number(9), Tag::Text("7"), Tag::Text("b")];
        assert_eq!(set.iter().collect::<Vec<_>>(), expected);
        assert!(are_sound(set.as_bytes()));
        assert!(TagSet::new([]).unwrap().is_empty());
    }

    #[test]
    fn limits_are_exact() {
        let long = "é".repeat(128);
        assert!(TagSet::new([Tag::Text(&long[..254])]).is_ok() && TagSet::new([Tag::Text(&long)]).is_err());
        assert!(TagSet::new([Tag::Text("")]).is_err());
        assert!(TagSet::new((0..64).chain(0..64).map(Tag::Number)).is_ok());
        assert!(TagSet::new((0..65).map(Tag::Number)).is_err());
        assert!(TagSet::of_any_size((0..65).map(Tag::Number)).is_ok());
        let most: Vec<String> = (0..64).map(|i| format!("{i:0255}")).collect();
        let most = TagSet::new(most.iter().map(|text| Tag::Text(text))).unwrap();
        assert_eq!(most.as_bytes().len(), TAG_SET_BYTES_MAX);
    }

    #[test]
    fn queries_combine_as_they_say() {
        let set = |tags: &[Tag<'_>]| TagSet::new(tags.iter().copied()).unwrap();
        let own = set(&[Tag::Number(7), Tag::Text("a")]);
        let query = |any: Option<TagSet>, all, none| TagQuery { any_of: any, all_of: all, none_of: none };
        let (empty, seven, text) = (set(&[]), set(&[Tag::Number(7)]), set(&[Tag::Text("7")]));
        for (query, accepted) in [
            (TagQuery::default(), true),
            (query(Some(empty.clone()), empty.clone(), empty.clone()), false),
            (query(Some(seven.clone()), empty.clone(), empty.clone()), true),
            (query(Some(text.clone()), empty.clone(), empty.clone()), false),
            (query(Some(set(&[Tag::Text("x"), Tag::Text("a")])), seven.clone(), text.clone()), true),
            (query(None, set(&[Tag::Text("x"), Tag::Text("a")]), empty.clone()), false),
            (query(None, empty.clone(), seven.clone()), false),
            (query(None, empty.clone(), text.clone()), true),
        ] {
            assert_eq!(query.accepts(own.as_bytes()), accepted, "{query:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = tags(&bytes).count();
            if are_sound(&bytes) {
                let again = TagSet::new(tags(&bytes)).unwrap();
                prop_assert_eq!(again.as_bytes(), &bytes);
            }
        }
    }
}
