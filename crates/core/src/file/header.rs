//! Superblocks: what a plane is and what its last durable commit held, twice, each under a checksum.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::layout::{EXTENT_COUNT_MAX, FORMAT_VERSION, HEADER_BYTES, Layout, MAGIC, SUPERBLOCK_BYTES};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::options::{
    CreateOptions, DIMS_MAX, EF_MAX, KEY_BYTES_MAX, LINKS_MAX, Metric, NODES_MAX, Precision, Rerank,
};

const CHECKSUM_AT: usize = 16;
const SECTIONS_AT: usize = 192;
const SECTION_BYTES: usize = 16;
const SECTIONS_MAX: usize = 32;
const FLAG_UNIQUE_KEYS: u8 = 1;

/// What the last commit says of the plane's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit; the superblock with the higher one counts.
    pub number: u64,
    /// Extents that hold committed data.
    pub extent_count: u32,
    /// One past the highest id given.
    pub id_high_water: u32,
    /// Live records.
    pub count: u64,
    /// The caller's watermark.
    pub watermark: u64,
    /// Highest record generation given.
    pub generation: u64,
    /// Whether a record with tags was stored at some time.
    pub tagged: bool,
    /// Wall clock of the commit, milliseconds since 1970; for people only.
    pub time_ms: u64,
}

/// One decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Tells one plane from another at the same path.
    pub uuid: [u8; 16],
    /// The plane's fixed properties.
    pub config: Config,
    /// State of the last commit.
    pub commit: Commit,
}

/// The section that announces the sharded key index in the heap. Other numbers are reserved in `docs/design.md`.
const SECTION_KEY_INDEX: u16 = 1;
/// The same for records' tags. Required: a reader that does not know them would take their records for damaged.
const SECTION_TAGS: u16 = 2;

impl Superblock {
    /// The first superblock of a new plane.
    pub fn new(options: &CreateOptions, uuid: [u8; 16], seed: u64) -> Self {
        let exact_codes = options.precision == Precision::F32;
        Superblock {
            uuid,
            config: Config {
                dims: options.dims,
                metric: options.metric,
                precision: options.precision,
                rerank: if exact_codes { Rerank::None } else { options.rerank },
                m: options.m,
                layer0_cap: options.layer0_cap,
                ef_construction: options.ef_construction,
                key_cap: options.key_cap,
                unique_keys: options.unique_keys,
                max_nodes: options.max_nodes,
                key_arena_bytes_max: options
                    .key_arena_bytes_per_node
                    .zip(options.max_nodes)
                    .map(|(bytes, nodes)| u64::from(bytes) * u64::from(nodes)),
                seed,
            },
            commit: Commit { number: 1, ..Commit::default() },
        }
    }

    /// The superblock's bytes, checksum included.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0u8; SUPERBLOCK_BYTES];
        let layout = Layout::new(&self.config);
        let (config, commit) = (&self.config, &self.commit);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &(HEADER_BYTES as u32).to_le_bytes());
        put(24, &commit.number.to_le_bytes());
        put(32, &self.uuid);
        put(48, &config.seed.to_le_bytes());
        put(56, &config.dims.to_le_bytes());
        let flags = if config.unique_keys { FLAG_UNIQUE_KEYS } else { 0 };
        put(60, &[config.metric as u8, config.precision as u8, config.rerank as u8, flags]);
        put(64, &config.m.to_le_bytes());
        put(68, &config.layer0_cap.to_le_bytes());
        put(72, &config.ef_construction.to_le_bytes());
        put(76, &config.key_cap.to_le_bytes());
        put(80, &config.max_nodes.unwrap_or(0).to_le_bytes());
        put(88, &config.key_arena_bytes_max.unwrap_or(u64::MAX).to_le_bytes());
        put(96, &layout.slot_bytes.to_le_bytes());
        put(100, &layout.slots_per_page.to_le_bytes());
        put(104, &layout.links_offset.to_le_bytes());
        put(108, &layout.exact_bytes.to_le_bytes());
        put(112, &layout.key_entry_bytes.to_le_bytes());
        put(116, &layout.code_bytes.to_le_bytes());
        put(120, &commit.extent_count.to_le_bytes());
        put(124, &commit.id_high_water.to_le_bytes());
        put(128, &commit.count.to_le_bytes());
        put(136, &commit.watermark.to_le_bytes());
        put(144, &commit.generation.to_le_bytes());
        put(152, &layout.codes_offset.to_le_bytes());
        put(156, &layout.sketch_bytes.to_le_bytes());
        put(168, &commit.time_ms.to_le_bytes());
        // Not required: whoever only reads vectors can do without the key index.
        let key_index = config.unique_keys.then_some((SECTION_KEY_INDEX, false));
        let tags = commit.tagged.then_some((SECTION_TAGS, true));
        let mut count = 0u32;
        for (kind, required) in key_index.into_iter().chain(tags) {
            let at = SECTIONS_AT + count as usize * SECTION_BYTES;
            put(at, &kind.to_le_bytes());
            put(at + 2, &[u8::from(required), super::layout::RegionKind::Heap as u8]);
            put(at + 4, &1u32.to_le_bytes());
            count += 1;
        }
        put(176, &count.to_le_bytes());
        let checksum = xxh3_64(&out);
        out[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads one superblock; `None` when its magic or checksum does not match, so that the other one may serve.
    fn decode(bytes: &[u8]) -> Option<Result<Self>> {
        if bytes[..8] != MAGIC {
            return None;
        }
        let mut zeroed = [0u8; SUPERBLOCK_BYTES];
        zeroed.copy_from_slice(bytes);
        zeroed[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
        if xxh3_64(&zeroed) != get_u64(bytes, CHECKSUM_AT) {
            return None;
        }
        Some(Self::decode_checked(bytes))
    }

    fn decode_checked(bytes: &[u8]) -> Result<Self> {
        let version = get_u32(bytes, 8);
        if version == 0 || version > FORMAT_VERSION {
            return Err(Error::UnsupportedVersion { found: version, supported: FORMAT_VERSION });
        }
        let bad = |what, at: usize| Err(Error::Corrupt { what, offset: at as u64 });
        if get_u32(bytes, 12) != HEADER_BYTES as u32 {
            return bad("header size", 12);
        }
        let metric = match bytes[60] {
            0 => Metric::Cosine,
            1 => Metric::L2,
            2 => Metric::InnerProduct,
            _ => return bad("metric", 60),
        };
        let precision = match bytes[61] {
            0 => Precision::Int8,
            1 => Precision::Int16,
            2 => Precision::F16,
            3 => Precision::F32,
            _ => return bad("code kind", 61),
        };
        let rerank = match bytes[62] {
            0 => Rerank::None,
            1 => Rerank::F16,
            2 => Rerank::F32,
            _ => return bad("exact copy kind", 62),
        };
        let ranges = [
            ("dims", 56, 1, DIMS_MAX),
            ("M", 64, 2, LINKS_MAX / 2),
            ("layer 0 cap", 68, 2, LINKS_MAX),
            ("efConstruction", 72, 1, EF_MAX as u32),
            ("key cap", 76, 0, KEY_BYTES_MAX as u32),
            ("max nodes", 80, 0, NODES_MAX),
            ("extent count", 120, 0, EXTENT_COUNT_MAX as u32),
            ("id high water", 124, 0, NODES_MAX + 1),
            ("section count", 176, 0, SECTIONS_MAX as u32),
        ];
        for (what, at, min, max) in ranges {
            if !(min..=max).contains(&get_u32(bytes, at)) {
                return bad(what, at);
            }
        }
        if bytes[63] & !FLAG_UNIQUE_KEYS != 0 {
            return bad("flags", 63);
        }
        let mut tagged = false;
        for i in 0..get_u32(bytes, 176) as usize {
            let at = SECTIONS_AT + i * SECTION_BYTES;
            let kind = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let required = bytes[at + 2] != 0;
            let known = matches!(kind, SECTION_KEY_INDEX | SECTION_TAGS) && get_u32(bytes, at + 4) == 1;
            tagged |= known && kind == SECTION_TAGS;
            if required && !known {
                return Err(Error::UnsupportedVersion { found: version, supported: FORMAT_VERSION });
            }
        }
        let max_nodes = get_u32(bytes, 80);
        let arena = get_u64(bytes, 88);
        let config = Config {
            dims: get_u32(bytes, 56),
            metric,
            precision,
            rerank,
            m: get_u32(bytes, 64),
            layer0_cap: get_u32(bytes, 68),
            ef_construction: get_u32(bytes, 72),
            key_cap: get_u32(bytes, 76),
            unique_keys: bytes[63] & FLAG_UNIQUE_KEYS != 0,
            max_nodes: (max_nodes != 0).then_some(max_nodes),
            key_arena_bytes_max: (arena != u64::MAX).then_some(arena),
            seed: get_u64(bytes, 48),
        };
        if config.unique_keys && config.key_cap == 0 {
            return bad("unique keys without keys", 63);
        }
        let layout = Layout::new(&config);
        let derived = [
            (96, layout.slot_bytes),
            (100, layout.slots_per_page),
            (104, layout.links_offset),
            (108, layout.exact_bytes),
            (112, layout.key_entry_bytes),
            (116, layout.code_bytes),
            (152, layout.codes_offset),
            (156, layout.sketch_bytes),
        ];
        if let Some((at, _)) = derived.iter().find(|(at, value)| get_u32(bytes, *at) != *value) {
            return bad("record layout", *at);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        Ok(Superblock {
            uuid,
            config,
            commit: Commit {
                number: get_u64(bytes, 24),
                extent_count: get_u32(bytes, 120),
                id_high_water: get_u32(bytes, 124),
                count: get_u64(bytes, 128),
                watermark: get_u64(bytes, 136),
                generation: get_u64(bytes, 144),
                tagged,
                time_ms: get_u64(bytes, 168),
            },
        })
    }

    /// The valid superblock with the higher commit number, and which of the two it is.
    pub fn choose(header: &[u8], path: &Path) -> Result<(Self, usize)> {
        let blocks = [&header[..SUPERBLOCK_BYTES], &header[SUPERBLOCK_BYTES..2 * SUPERBLOCK_BYTES]];
        let mut best: Option<(Result<Self>, usize)> = None;
        for (i, bytes) in blocks.iter().enumerate() {
            if let Some(decoded) = Self::decode(bytes) {
                let better = match (&best, &decoded) {
                    (Some((Ok(old), _)), Ok(new)) => new.commit.number > old.commit.number,
                    (Some((Ok(_), _)), Err(_)) => false,
                    _ => true,
                };
                if better {
                    best = Some((decoded, i));
                }
            }
        }
        match best {
            Some((decoded, i)) => Ok((decoded?, i)),
            None if blocks.iter().any(|b| b[..8] == MAGIC) => {
                Err(Error::Corrupt { what: "both superblocks fail their checksums", offset: 0 })
            }
            None => Err(Error::NotAPlane {
                path: path.to_path_buf(),
                reason: "its first bytes are not a plane's",
            }),
        }
    }
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(first: &Superblock, second: &Superblock) -> Vec<u8> {
        [first.encode(), second.encode()].concat()
    }

    fn sample(commit: u64) -> Superblock {
        let options = CreateOptions { key_cap: 16, unique_keys: true, ..CreateOptions::new(128) };
        let mut block = Superblock::new(&options, [7; 16], 42);
        block.commit.number = commit;
        block.commit.watermark = commit * 10;
        block
    }

    #[test]
    fn the_newer_valid_superblock_counts() {
        let path = Path::new("x");
        let bytes = header(&sample(4), &sample(5));
        assert_eq!(Superblock::choose(&bytes, path).unwrap(), (sample(5), 1));
        for at in 0..2 * SUPERBLOCK_BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let expected = if at < SUPERBLOCK_BYTES { 5 } else { 4 };
            assert_eq!(Superblock::choose(&damaged, path).unwrap().0.commit.number, expected, "byte {at}");
        }
    }

    #[test]
    fn unknown_required_sections_and_newer_versions_are_refused_and_optional_ones_ignored() {
        let path = Path::new("x");
        for (at, value, accepted) in [(8, 2, false), (SECTIONS_AT, 77, true), (SECTIONS_AT + 2, 1, true)] {
            let mut block = sample(1).encode();
            block[at] = value;
            block[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
            let sum = xxh3_64(&block);
            block[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Superblock::choose(&[block, block].concat(), path).is_ok(), accepted, "byte {at}");
        }
        let mut block = sample(1).encode();
        block[SECTIONS_AT] = 77;
        block[SECTIONS_AT + 2] = 1;
        block[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
        let sum = xxh3_64(&block);
        block[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        let found = Superblock::choose(&[block, block].concat(), path);
        assert!(matches!(found, Err(Error::UnsupportedVersion { .. })));
    }
}
