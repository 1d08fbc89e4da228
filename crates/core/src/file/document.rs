//! Holds the format's constants against the tables of `docs/design.md`.

use std::collections::HashMap;
use std::mem::offset_of;

use super::layout;
use super::shared::{HEAP_CLASSES, SharedState};
use crate::graph::node::{NodeHead, NodeHeader};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design.md"));

/// Rows of the table under a heading: offset, bytes and field name (or part), by name.
fn table(heading: &str) -> HashMap<String, (usize, usize)> {
    let section = DOCUMENT.split(heading).nth(1).unwrap_or_else(|| panic!("no heading {heading:?}"));
    let number = |text: &str| text.trim().replace(',', "").parse::<usize>();
    let rows = section.lines().skip_while(|line| !line.starts_with("| Offset"));
    rows.skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let offset = number(cells[1]).unwrap_or_else(|_| panic!("offset in {line:?}"));
            (cells[3].trim_matches('`').to_owned(), (offset, number(cells[2]).unwrap_or(0)))
        })
        .collect()
}

fn assert_fields(table: &HashMap<String, (usize, usize)>, fields: &[(&str, usize)]) {
    for (name, offset) in fields {
        let (documented, _) = table.get(*name).unwrap_or_else(|| panic!("{name} is not in the document"));
        assert_eq!(documented, offset, "{name}");
    }
    assert_eq!(table.len(), fields.len(), "fields in the document: {:?}", table.keys());
}

macro_rules! offsets {
    ($type:ty: $($field:ident),* $(,)?) => { [$((stringify!($field), offset_of!($type, $field))),*] };
}

#[test]
fn header_parts_are_where_the_document_says() {
    let parts = table("## 1. The file");
    let by_offset: HashMap<usize, usize> = parts.values().copied().collect();
    let sizes = [
        (layout::SHARED_OFFSET, layout::PROCESS_TABLE_OFFSET),
        (layout::PROCESS_TABLE_OFFSET, layout::INTENT_TABLE_OFFSET),
        (layout::INTENT_TABLE_OFFSET, layout::KEY_SHARDS_OFFSET),
        (layout::KEY_SHARDS_OFFSET, layout::CURVES_OFFSET),
        (layout::CURVES_OFFSET, layout::EXTENT_TABLE_OFFSET),
        (layout::EXTENT_TABLE_OFFSET, layout::READER_TABLE_OFFSET),
        (layout::READER_TABLE_OFFSET, layout::HEADER_BYTES),
    ];
    for (start, end) in sizes {
        assert_eq!(by_offset.get(&start), Some(&(end - start)), "part at {start}");
    }
    assert!(by_offset.contains_key(&layout::HEADER_BYTES));
}

#[test]
fn shared_state_is_as_documented() {
    let fields = offsets!(SharedState: epoch, extent_count, id_high_water, entry, root, flags, lane_high_water, replacements, supersessions, renumberings, dirty,
        writer_pid, handover, settled, boot, device, inode, mount, count, generation, watermark, watermark_pending, commits, free_head,
        free_count, limbo_head, limbo_tail, limbo_count, heap_bump, heap_used, long_key_bytes, churn, held_head, held_tail, held_count,
        heap_free);
    let documented = table("### Shared state");
    assert_fields(&documented, &fields);
    assert_eq!(documented["heap_free"].1, 4 * HEAP_CLASSES);
}

#[test]
fn recall_curves_are_as_documented() {
    use super::curves::{CURVE_BYTES, CURVES_AT, CURVES_MAX, TABLE_BYTES};

    let documented = table("### Recall curves");
    let fields = [("checksum", 0), ("sequence", 8), ("curve_count", 16), ("curves", CURVES_AT)];
    assert_fields(&documented, &fields);
    assert_eq!(documented["curves"].1, CURVES_MAX * CURVE_BYTES);
    assert_eq!((CURVES_MAX, TABLE_BYTES), (5, 2048));
    assert_eq!(layout::EXTENT_TABLE_OFFSET - layout::CURVES_OFFSET, 2 * TABLE_BYTES);
}

#[test]
fn node_header_is_as_documented() {
    assert_fields(&table("### Head"), &offsets!(NodeHead: state, factor, bias, terms));
    let fields = offsets!(NodeHeader: norm, checksum, generation, upper, parent, exact_scale, next, removed_epoch, marks, tags);
    assert_fields(&table("### Node header"), &fields);
}

#[test]
fn superblock_is_as_documented() {
    use super::header::Superblock;
    use crate::options::{CreateOptions, Metric, Precision, Rerank};

    let documented = table("### Superblock");
    let options = CreateOptions {
        metric: Metric::L2,
        precision: Precision::Int16,
        rerank: Rerank::F16,
        m: 17,
        layer0_cap: 33,
        ef_construction: 201,
        key_cap: 19,
        unique_keys: true,
        max_nodes: Some(1_000_003),
        key_arena_bytes_per_node: Some(7),
        ..CreateOptions::new(129)
    };
    let mut block = Superblock::new(&options, [0xAB; 16], 0x0102_0304_0506_0708);
    block.commit.number = 77;
    block.commit.watermark = 78;
    block.commit.extent_count = 79;
    block.commit.id_high_water = 80;
    block.commit.count = 81;
    block.commit.generation = 82;
    block.commit.time_ms = 83;
    let bytes = block.encode();
    let field = |name: &str| {
        let (offset, len) = documented[name];
        bytes[offset..offset + len].iter().rev().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte))
    };
    let plane = layout::Layout::new(&block.config);
    let expected: [(&str, u128); 27] = [
        ("format_version", layout::FORMAT_VERSION.into()),
        ("header_bytes", layout::HEADER_BYTES as u128),
        ("commit", 77),
        ("seed", 0x0102_0304_0506_0708),
        ("dims", 129),
        ("metric", 1),
        ("code_kind", 1),
        ("exact_kind", 1),
        ("flags", 1),
        ("m", 17),
        ("layer0_cap", 33),
        ("ef_construction", 201),
        ("key_cap", 19),
        ("max_nodes", 1_000_003),
        ("key_arena_bytes_max", 7_000_021),
        ("slot_bytes", plane.slot_bytes.into()),
        ("slots_per_page", plane.slots_per_page.into()),
        ("links_offset", plane.links_offset.into()),
        ("exact_bytes", plane.exact_bytes.into()),
        ("key_entry_bytes", plane.key_entry_bytes.into()),
        ("code_bytes", plane.code_bytes.into()),
        ("codes_offset", plane.codes_offset.into()),
        ("sketch_bytes", plane.sketch_bytes.into()),
        ("extent_count", 79),
        ("id_high_water", 80),
        ("watermark", 78),
        ("time_ms", 83),
    ];
    for (name, value) in expected {
        assert_eq!(field(name), value, "{name}");
    }
    assert_eq!((field("count"), field("generation"), field("section_count")), (81, 82, 1));
}
