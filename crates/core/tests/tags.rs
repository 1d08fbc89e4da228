//! Tags: what is found by them while records come and go, in this process and in others, and after a writer has died.

mod common;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::{Rng, TagColumn, by_form, check_verified, open};
use vecplane_core::{
    Batch, BatchTags, CompactOptions, CreateOptions, Error, OpenOptions, Plane, SearchOptions, Tag, TagQuery,
    TagSet, testing,
};

const DIMS: usize = 4;

fn create(dir: &tempfile::TempDir) -> Plane {
    let options = CreateOptions {
        key_cap: 8,
        unique_keys: true,
        m: 4,
        ef_construction: 20,
        ..CreateOptions::new(DIMS as u32)
    };
    Plane::create(&dir.path().join("plane"), &options).unwrap()
}

/// A handle with an engine of its own, which learns of this process's writes as another process would.
fn stranger(dir: &tempfile::TempDir) -> Plane {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Plane::open(&dir.path().join("plane"), &options).unwrap()
}

fn set(tags: &[Tag<'_>]) -> TagSet {
    TagSet::new(tags.iter().copied()).unwrap()
}

fn any(tag: Tag<'_>) -> TagQuery {
    TagQuery { any_of: Some(set(&[tag])), ..TagQuery::default() }
}

fn none(tag: Tag<'_>) -> TagQuery {
    TagQuery { none_of: set(&[tag]), ..TagQuery::default() }
}

/// The ids that a query by tags gives, all of them.
fn found(plane: &Plane, tags: &TagQuery) -> BTreeSet<u32> {
    let k = plane.count().unwrap().max(1) as usize;
    let options = SearchOptions { tags: Some(tags), ..SearchOptions::new(k) };
    let hits = plane.search(&[1.0; DIMS], &options).unwrap();
    let exact = plane.search_exact_with(&[1.0; DIMS], &options).unwrap();
    assert_eq!(hits.ids.iter().collect::<BTreeSet<_>>(), exact.ids.iter().collect());
    hits.ids.into_iter().collect()
}

/// The ids whose records have the tag, one by one.
fn having(plane: &Plane, tag: Tag<'_>) -> BTreeSet<u32> {
    let has = |id: &u32| plane.tags(*id).unwrap().is_some_and(|tags| tags.iter().any(|own| own == tag));
    (0..plane.id_high_water().unwrap()).filter(has).collect()
}

fn check(plane: &Plane, tag: Tag<'_>) {
    let live = |id: &u32| plane.key(*id).unwrap().is_some();
    let all: BTreeSet<u32> = (0..plane.id_high_water().unwrap()).filter(live).collect();
    let have = having(plane, tag);
    assert_eq!(found(plane, &any(tag)), have, "any of {tag:?}");
    assert_eq!(found(plane, &none(tag)), all.difference(&have).copied().collect(), "none of {tag:?}");
}

#[test]
fn a_number_and_its_spelling_are_different_tags() {
    let dir = tempfile::tempdir().unwrap();
    let plane = create(&dir);
    let a = plane.insert_tagged(&[1.0; DIMS], b"a", &set(&[Tag::Number(7)])).unwrap();
    let b = plane.insert_tagged(&[1.0; DIMS], b"b", &set(&[Tag::Text("7"), Tag::Number(8)])).unwrap();
    let c = plane.insert(&[1.0; DIMS], b"c").unwrap();
    assert_eq!(found(&plane, &any(Tag::Number(7))), [a].into());
    assert_eq!(found(&plane, &any(Tag::Text("7"))), [b].into());
    assert_eq!(found(&plane, &none(Tag::Text("7"))), [a, c].into());
    assert_eq!(plane.tags(c).unwrap(), Some(TagSet::default()));
    assert_eq!(plane.tags(99).unwrap(), None);
    // The empty query wants everything, one that wants any of nothing wants nothing.
    assert_eq!(found(&plane, &TagQuery::default()), [a, b, c].into());
    assert!(found(&plane, &TagQuery { any_of: Some(TagSet::default()), ..TagQuery::default() }).is_empty());
    // An upsert replaces the tags with the vector.
    let d = plane.upsert(b"a", &[1.0; DIMS]).unwrap();
    assert!(found(&plane, &any(Tag::Number(7))).is_empty());
    assert_eq!(found(&plane, &none(Tag::Number(8))), [c, d].into());
    check_verified(&plane);
}

/// Slots change hands between tagged and untagged records, in few steps and in many at a time, and three handles agree with what
/// the records say: the writer's own, one that hears of the writes by the log, and one that is new.
#[test]
fn what_is_found_is_what_the_records_have_whoever_wrote_them() {
    let mut rng = Rng::for_test("what_is_found_is_what_the_records_have_whoever_wrote_them");
    for case in 0..by_form(4, 40) {
        let dir = tempfile::tempdir().unwrap();
        let plane = create(&dir);
        let other = stranger(&dir);
        let tags = [Tag::Number(1), Tag::Number(2), Tag::Text("2"), Tag::Text("a longer one")];
        let mut next = 0;
        for round in 0..by_form(25, 60) {
            for _ in 0..*rng.pick(&[1, 5, 50, 700]) {
                let chosen: Vec<Tag<'_>> = tags.iter().copied().filter(|_| rng.chance(0.3)).collect();
                let (vector, own) = (rng.gaussian(DIMS), set(&chosen));
                let known = rng.below(next + 1);
                match rng.below(10) {
                    0..5 => {
                        plane.insert_tagged(&vector, format!("{next}").as_bytes(), &own).unwrap();
                        next += 1;
                    }
                    5 | 6 => drop(plane.upsert_tagged(format!("{known}").as_bytes(), &vector, &own)),
                    _ => drop(plane.remove_key(format!("{known}").as_bytes()).unwrap()),
                }
                // Keys of upserts may run ahead of those of inserts.
                next = next.max(known + 1);
            }
            if rng.chance(0.2) {
                plane.flush(None).unwrap();
            }
            if rng.chance(0.1) {
                let renumber = rng.chance(0.5);
                plane.compact(&CompactOptions { renumber, ..Default::default() }, &|_, _| true).unwrap();
            }
            let tag = *rng.pick(&tags);
            for (name, handle) in [("own", &plane), ("other", &other), ("new", &stranger(&dir))] {
                println!("case {case} round {round}: {name}");
                check(handle, tag);
            }
        }
        check_verified(&plane);
        drop((plane, other));
        let again = open(&dir.path().join("plane"));
        tags.iter().for_each(|tag| check(&again, *tag));
    }
}

/// An insert that has returned is found by its tag, by any thread and any process, from then on until it is removed.
#[test]
fn acknowledged_records_are_found_by_tag_while_others_come_and_go() {
    let mut rng = Rng::for_test("acknowledged_records_are_found_by_tag_while_others_come_and_go");
    let dir = tempfile::tempdir().unwrap();
    let plane = create(&dir);
    let other = stranger(&dir);
    let tag = Tag::Text("kept");
    // Records are kept once they are counted here.
    let kept = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (plane, kept, done) = (&plane, &kept, &done);
        for thread in 0..2 {
            let mut rng = rng.fork();
            scope.spawn(move || {
                for i in 0..by_form(1_500, 30_000) {
                    let key = format!("{thread} {i}");
                    let id = plane.insert(&rng.gaussian(DIMS), key.as_bytes()).unwrap();
                    if rng.chance(0.9) {
                        assert!(plane.remove(id).unwrap());
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let mut writer_rng = rng.fork();
        scope.spawn(move || {
            for i in 0..by_form(700, 5_000) {
                let key = format!("kept {i}");
                plane.insert_tagged(&writer_rng.gaussian(DIMS), key.as_bytes(), &set(&[tag])).unwrap();
                kept.fetch_add(1, Ordering::SeqCst);
            }
        });
        while !done.load(Ordering::Relaxed) {
            for handle in [plane, &other] {
                let least = kept.load(Ordering::SeqCst) as usize;
                let query = any(tag);
                let options = SearchOptions { tags: Some(&query), ..SearchOptions::new(100_000) };
                let hits = handle.search_exact_with(&rng.gaussian(DIMS), &options).unwrap();
                assert!(hits.len() >= least, "{} of {least}", hits.len());
                assert!((0..hits.len()).all(|i| hits.key(i).starts_with(b"kept")));
                // What has no tag is not lost either.
                let without = none(tag);
                let options = SearchOptions { tags: Some(&without), ..SearchOptions::new(20) };
                let hits = handle.search(&rng.gaussian(DIMS), &options).unwrap();
                assert!((0..hits.len()).all(|i| !hits.key(i).starts_with(b"kept")));
            }
        }
    });
    check(&plane, tag);
    check(&other, tag);
    check_verified(&plane);
}

/// Wherever a thread dies in the middle of a write, the indexes of those that live on agree with the records.
#[test]
fn a_writer_that_dies_leaves_nothing_that_an_index_does_not_hear_of() {
    let tag = Tag::Text("a");
    std::panic::set_hook(Box::new(|_| {}));
    for moment in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let plane = create(&dir);
        let other = stranger(&dir);
        for i in 0..20 {
            plane.insert_tagged(&[i as f32 + 1.0; DIMS], format!("{i}").as_bytes(), &set(&[tag])).unwrap();
        }
        for id in 0..5 {
            plane.remove(id).unwrap();
        }
        check(&plane, tag);
        check(&other, tag);
        let mut left = moment;
        testing::watch(move || {
            left -= 1;
            assert!(left > 0, "the end");
        });
        let ended = catch_unwind(AssertUnwindSafe(|| {
            plane.insert_tagged(&[0.5; DIMS], b"new", &set(&[tag])).unwrap();
            plane.upsert_tagged(b"7", &[0.7; DIMS], &set(&[Tag::Number(1)])).unwrap();
            plane.upsert_tagged(b"8", &[0.8; DIMS], &set(&[tag])).unwrap();
        }));
        testing::unwatch();
        // Repairs first.
        plane.insert(&[9.0; DIMS], b"later").unwrap();
        check(&plane, tag);
        check(&other, tag);
        check_verified(&plane);
        if ended.is_ok() {
            assert!(moment > 20, "moments: {moment}");
            break;
        }
    }
    let _ = std::panic::take_hook();
}

#[test]
fn bad_tags_are_refused_before_anything_is_touched_and_rejected_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let plane = create(&dir);
    let long = "x".repeat(256);
    assert!(matches!(TagSet::new([Tag::Text(&long)]), Err(Error::TagInvalid { .. })));
    let many: Vec<Result<Tag<'_>, &str>> = (0..65)
        .map(|i| Ok(Tag::Number(i)))
        .chain([Ok(Tag::Text(&long)), Err("not a tag"), Ok(Tag::Text("good"))])
        .collect();
    let refs: Vec<u32> = (0..65).chain([65, 66, 67]).collect();
    let tags = BatchTags { distinct: &many, refs: &refs, ends: &[65, 66, 67, 68, 68] };
    let vectors = [1.0; 5 * DIMS];
    let batch = Batch { vectors: &vectors, keys: b"abcde", key_ends: &[1, 2, 3, 4, 5] };
    let outcome = plane.insert_batch_tagged(batch, tags, 1, &|_| true).unwrap();
    let rejected: Vec<_> =
        outcome.rejected.iter().map(|r| (r.index, r.code.as_str(), r.reason.as_str())).collect();
    assert_eq!(
        rejected.iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(),
        [(0, "tag-invalid"), (1, "tag-invalid"), (2, "tag-invalid")]
    );
    assert_eq!(rejected[2].2, "not a tag");
    assert_eq!(plane.count().unwrap(), 2);
    assert_eq!(found(&plane, &any(Tag::Text("good"))), [outcome.ids[3]].into());
    // Columns that do not fit the batch are no batch.
    for tags in [
        BatchTags { ends: &[65, 66, 67, 68], ..tags },
        BatchTags { ends: &[65, 66, 67, 68, 67], ..tags },
        BatchTags { ends: &[65, 64, 67, 68, 68], ..tags },
        BatchTags { ends: &[], ..tags },
        BatchTags { distinct: &many[..60], ..tags },
    ] {
        let refused = plane.upsert_batch_tagged(batch, tags, 1, &|_| true);
        assert!(matches!(refused, Err(Error::InvalidBatch { .. })), "{refused:?}");
    }
    let sets = vec![set(&[Tag::Number(3)]); 5];
    let column = TagColumn::new(&sets);
    let outcome = plane.upsert_batch_tagged(batch, column.as_tags(), 2, &|_| true).unwrap();
    assert_eq!(found(&plane, &any(Tag::Number(3))), outcome.ids.into_iter().collect());
}

/// Tags' blocks are given back: the heap does not grow with records that come and go.
#[test]
fn room_of_tags_is_used_again() {
    let mut rng = Rng::for_test("room_of_tags_is_used_again");
    let dir = tempfile::tempdir().unwrap();
    let plane = create(&dir);
    let texts: Vec<String> = (0..40).map(|i| format!("{i}{}", "y".repeat(100))).collect();
    let full = set(&texts.iter().map(|text| Tag::Text(text)).collect::<Vec<_>>());
    let mut first = None;
    for round in 0..20 {
        for i in 0..50 {
            let key = format!("{i}");
            plane.upsert_tagged(key.as_bytes(), &rng.gaussian(DIMS), &full).unwrap();
        }
        plane.flush(None).unwrap();
        let bytes = plane.stats().unwrap().file_bytes;
        if round == 3 {
            first = Some(bytes);
        }
        assert!(first.is_none_or(|first| bytes <= first), "round {round}: {bytes} bytes");
    }
    (0..50).for_each(|i| assert!(plane.remove_key(format!("{i}").as_bytes()).unwrap()));
    let key = b"last";
    for _ in 0..20 {
        plane.upsert(key, &rng.gaussian(DIMS)).unwrap();
        plane.flush(None).unwrap();
    }
    let compacted = plane.compact(&CompactOptions::default(), &|_, _| true).unwrap();
    assert!(compacted.bytes_after < compacted.bytes_before);
}

/// How long the first query by tags takes, which looks at every slot; and others. `docs/design.md` quotes what it prints.
#[test]
#[ignore = "makes a million records"]
fn the_first_query_by_tags_of_a_million_records() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { m: 2, layer0_cap: 16, ef_construction: 8, ..CreateOptions::new(128) };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    let mut rng = Rng::new(1);
    let rows = 1_000_000;
    let chunk = 10_000;
    for start in (0..rows).step_by(chunk) {
        let vectors: Vec<f32> = (0..chunk * 128).map(|_| rng.unit() as f32).collect();
        let sets: Vec<TagSet> = (start..start + chunk)
            .map(|i| {
                set(&[
                    Tag::Text("all"),
                    Tag::Number(i as u32 % 10),
                    Tag::Text(&format!("tenant:{}", i % 1000)),
                ])
            })
            .collect();
        let column = TagColumn::new(&sets);
        let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
        plane.insert_batch_tagged(batch, column.as_tags(), 1, &|_| true).unwrap();
    }
    let query: Vec<f32> = (0..128).map(|_| rng.unit() as f32).collect();
    for name in ["first", "second"] {
        for (what, tags) in [
            ("a thousandth", any(Tag::Text("tenant:7"))),
            ("a tenth", any(Tag::Number(7))),
            ("all but a tenth", none(Tag::Number(7))),
            ("all", any(Tag::Text("all"))),
        ] {
            let options = SearchOptions { tags: Some(&tags), ..SearchOptions::new(10) };
            let started = std::time::Instant::now();
            assert_eq!(plane.search(&query, &options).unwrap().len(), 10);
            println!("{name} query, {what}: {:.3} ms", started.elapsed().as_secs_f64() * 1e3);
        }
    }
}
