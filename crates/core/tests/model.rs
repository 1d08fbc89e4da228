//! A plane against a model: a map from ids to records, searched by brute force. No ghosts, none lost, right keys.

mod common;

use common::run::{Keys, Run};
use common::{Rng, by_form};
use vecplane_core::{Batch, CreateOptions, Error, Metric, Precision, Rerank, SearchOptions};

const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];
const RERANKS: [Rerank; 3] = [Rerank::F32, Rerank::None, Rerank::F16];
const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
const DIMS: [u32; 4] = [1, 3, 17, 150];

/// What searches with ef 128 find of the records themselves. Two links a node are no graph to speak of: everything can be
/// reached, but not by a narrow beam; and under inner product a few long vectors are everyone's neighbours. A build that
/// looks at 20 candidates sees one tight cluster and no way out of it: an eighth of half the vectors form one (see
/// `Rng::vector`), and a beam of 128 misses a whole one in some plane of a hundred (17 to 27 of 868 records, by the order
/// in which two threads insert them); a beam of 256 finds it.
fn self_recall_min(options: &CreateOptions) -> f64 {
    match (options.metric, options.layer0_cap) {
        (Metric::InnerProduct, 32..) if options.dims > 3 => 0.3,
        (Metric::InnerProduct, _) => 0.0,
        (_, 0..4) => 0.5,
        (_, 4..8) => 0.8,
        (_, 8..) if options.ef_construction <= 20 => 0.8,
        (_, 8..24) => 0.9,
        _ => 0.96,
    }
}

/// `links`: M and layer 0 cap, in turn.
fn options(rng: &mut Rng, case: usize, links: &[(u32, u32)], keys: Keys) -> CreateOptions {
    let (m, layer0_cap) = links[case % links.len()];
    CreateOptions {
        metric: METRICS[case % 3],
        precision: *rng.pick(&PRECISIONS),
        rerank: *rng.pick(&RERANKS),
        m,
        layer0_cap,
        ef_construction: *rng.pick(&[20, 100, 200]),
        key_cap: if keys == Keys::None { 0 } else { *rng.pick(&[1, 12, 64, 500]) },
        unique_keys: keys == Keys::Unique,
        ..CreateOptions::new(DIMS[rng.below(4)])
    }
}

fn life(rng: &mut Rng, case: usize, links: &[(u32, u32)]) {
    let keys = *rng.pick(&[Keys::None, Keys::Repeating, Keys::Unique]);
    let options = options(rng, case, links, keys);
    println!("case {case}: {keys:?} {options:?}");
    let floor = self_recall_min(&options);
    let mut run = Run::new(options, keys, rng.fork());
    run.search();
    run.model.check_plane(run.plane());
    run.steps(by_form(250, 1500), 0.1);
    run.check("growth", floor);
    run.reopen();
    run.steps(by_form(150, 1000), 0.55);
    run.check("churn", floor);
    run.compact();
    run.check("compacted", floor);
    run.snapshot();
    run.remove_all();
    run.check("empty", 1.0);
    run.snapshot();
    run.compact();
    run.search();
    let count = run.rng.range(1..=300);
    run.insert_batch(count, 2);
    run.check("refill", floor);
    run.plane().flush(Some(case as u64)).unwrap();
    run.reopen();
    assert_eq!(run.plane().watermark().unwrap(), case as u64);
    run.steps(by_form(60, 300), 0.4);
    run.check("end", floor);
}

#[test]
fn a_plane_agrees_with_its_model() {
    let mut rng = Rng::for_test("a_plane_agrees_with_its_model");
    for case in 0..by_form(40, 1500) {
        life(&mut rng, case, &[(16, 32), (8, 24)]);
    }
}

#[test]
fn a_plane_with_few_links_agrees_with_its_model() {
    let mut rng = Rng::for_test("a_plane_with_few_links_agrees_with_its_model");
    for case in 0..by_form(40, 1500) {
        life(&mut rng, case, &[(4, 8), (2, 4), (2, 2), (8, 9)]);
    }
}

/// Copies are each other's nearest neighbours, so that a few nodes become parents of all the others; when such a one is
/// removed, its children must find new parents among nodes that have no link to spare.
#[test]
fn copies_stay_reachable_while_old_records_give_way_to_new_ones() {
    let mut rng = Rng::for_test("copies_stay_reachable_while_old_records_give_way_to_new_ones");
    for distinct in [1, 5, 40] {
        let originals: Vec<Vec<f32>> = (0..distinct).map(|_| rng.gaussian(8)).collect();
        let mut run = Run::new(CreateOptions::new(8), Keys::None, rng.fork());
        let mut oldest_first = Vec::new();
        for step in 0..by_form(6000, 100_000) {
            if oldest_first.len() > 50 && run.rng.chance(0.47) {
                let at =
                    if run.rng.chance(0.3) { run.rng.below(oldest_first.len()) } else { run.rng.below(10) };
                run.remove(oldest_first.remove(at));
            } else {
                let vector = run.rng.pick(&originals).clone();
                let id = run.plane().insert(&vector, b"").unwrap();
                run.freed.remove(&id);
                run.model.add(id, &vector, b"");
                oldest_first.push(id);
            }
            if step % 100 == 0 {
                common::check_verified(run.plane());
            }
        }
        run.check("churned", 0.98);
    }
}

#[test]
fn larger_planes_keep_every_record_and_their_recall() {
    let mut rng = Rng::for_test("larger_planes_keep_every_record_and_their_recall");
    for (case, precision) in PRECISIONS.iter().enumerate() {
        let options =
            CreateOptions { precision: *precision, key_cap: 8, unique_keys: true, ..CreateOptions::new(24) };
        let mut run = Run::new(options, Keys::Unique, rng.fork());
        run.insert_batch(by_form(2500, 30_000), 2);
        run.check("built", 0.999);
        let mut recall = 0.0;
        for _ in 0..50 {
            let query = run.query();
            let hits = run
                .plane()
                .search(&query, &SearchOptions { ef: Some(128), ..SearchOptions::new(10) })
                .unwrap();
            run.model.check_hits(&query, &hits, 10);
            recall += run.model.recall(&query, &hits, 10) / 50.0;
        }
        assert!(recall >= 0.99, "{precision:?}: recall {recall}");
        for id in 0..run.model.records.len() as u32 {
            if id % 10 != case as u32 {
                run.remove(id);
            }
        }
        run.check("a tenth left", 0.95);
        run.reopen();
        run.insert_batch(500, 2);
        run.check("grown again", 0.95);
    }
}

/// Removals mend the graph around them; when nine in ten are gone, nothing but such mends is left.
#[test]
fn survivors_of_many_removals_find_themselves() {
    let (mut tried, mut missed) = (0, 0);
    for seed in 0..by_form(8, 80) {
        // In tight clusters a group that is cut off is not met by chance.
        let mut rng = Rng::new(77 * seed + 5);
        let centres: Vec<Vec<f32>> = (0..8).map(|_| rng.gaussian(24)).collect();
        let mut run = Run::new(CreateOptions::new(24), Keys::None, rng.fork());
        for _ in 0..2500 {
            let vector: Vec<f32> = run.rng.pick(&centres).clone();
            let vector: Vec<f32> = vector.iter().map(|x| x + 0.2 * run.rng.gauss()).collect();
            let id = run.plane().insert(&vector, b"").unwrap();
            run.model.add(id, &vector, b"");
        }
        (0..2500).filter(|id| id % 10 != 3).for_each(|id| run.remove(id));
        run.model.check_plane(run.plane());
        let options = SearchOptions { ef: Some(128), ..SearchOptions::new(10) };
        for (id, record) in &run.model.records {
            tried += 1;
            missed += usize::from(!run.plane().search(&record.vector, &options).unwrap().ids.contains(id));
        }
    }
    assert!(
        missed * 2000 <= tried,
        "{missed} of {tried} survivors are not found by their own vectors at ef 128"
    );
}

#[test]
fn a_freed_id_is_the_next_one_given() {
    let mut rng = Rng::for_test("a_freed_id_is_the_next_one_given");
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    run.insert_batch(200, 1);
    for step in 0..500 {
        let id = run.model.some_id(&mut run.rng).unwrap();
        run.remove(id);
        if step % 7 == 0 {
            run.search();
        }
        if step % 50 == 0 {
            run.reopen();
        }
        assert_eq!(run.insert(), id);
    }
    // Also when the whole plane is one record, which is entry point and root at once.
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    let id = run.insert();
    for _ in 0..20 {
        run.remove(id);
        assert_eq!(run.insert(), id);
        run.model.check_plane(run.plane());
    }
}

#[test]
fn a_freed_id_is_the_next_one_given_after_many_removals_too() {
    let mut rng = Rng::for_test("a_freed_id_is_the_next_one_given_after_many_removals_too");
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    run.insert_batch(500, 1);
    (0..400).for_each(|id| run.remove(id));
    for _ in 0..50 {
        let id = run.model.some_id(&mut run.rng).unwrap();
        run.remove(id);
        assert_eq!(run.insert(), id);
    }
}

#[test]
fn a_full_plane_says_so_and_takes_what_a_removal_frees() {
    let mut rng = Rng::for_test("a_full_plane_says_so_and_takes_what_a_removal_frees");
    for most in [1u32, 2, 100, 700] {
        let keyed = rng.chance(0.5);
        let options = CreateOptions {
            max_nodes: Some(most),
            key_cap: if keyed { 8 } else { 0 },
            ..CreateOptions::new(16)
        };
        let mut run = Run::new(options, if keyed { Keys::Repeating } else { Keys::None }, rng.fork());
        for round in 0..3 {
            run.insert_batch(most as usize - run.model.records.len(), 2);
            let (vector, key) = (run.vector(), run.key());
            let full = run.plane().insert(&vector, &key);
            assert!(
                matches!(full, Err(Error::Full { max_nodes }) if max_nodes == u64::from(most)),
                "{full:?}"
            );
            run.check("full", 0.99);
            let id = run.model.some_id(&mut run.rng).unwrap();
            run.remove(id);
            assert_eq!(run.insert(), id);
            // A batch into too little room: what it says has landed has, and nothing else.
            let room = run.rng.below(most as usize) / 2;
            for _ in 0..room {
                let id = run.model.some_id(&mut run.rng).unwrap();
                run.remove(id);
            }
            let vectors: Vec<f32> = (0..room + 5).flat_map(|_| run.rng.gaussian(16)).collect();
            let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
            let outcome = run.plane().insert_batch(batch, 2, &|_| true).unwrap();
            assert!(matches!(outcome.fault, Some(Error::Full { .. })), "{:?}", outcome.fault);
            let landed = outcome.ids.iter().filter(|id| **id != u32::MAX).count();
            assert_eq!(landed, room, "round {round} of {most}");
            for (id, vector) in outcome.ids.iter().zip(vectors.chunks(16)).filter(|(id, _)| **id != u32::MAX)
            {
                run.freed.remove(id);
                run.model.add(*id, vector, b"");
            }
            run.check("full by batch", 0.99);
            run.reopen();
            assert!(matches!(run.plane().insert(&[1.0; 16], b""), Err(Error::Full { .. })));
            let ids: Vec<u32> = run.model.records.keys().copied().collect();
            let keep = run.rng.below(most as usize);
            ids[keep..].iter().for_each(|id| run.remove(*id));
        }
    }
}

#[test]
fn a_full_key_arena_refuses_long_keys_and_nothing_else() {
    let mut rng = Rng::for_test("a_full_key_arena_refuses_long_keys_and_nothing_else");
    let options = CreateOptions {
        max_nodes: Some(100),
        key_cap: 8,
        unique_keys: true,
        key_arena_bytes_per_node: Some(40),
        ..CreateOptions::new(4)
    };
    let mut run = Run::new(options, Keys::Unique, rng.fork());
    let long_key = |i: usize| [format!("{i:03}").into_bytes(), vec![b'x'; 197]].concat();
    let mut ids = Vec::new();
    // 100 x 40 bytes hold 20 keys of 200 bytes.
    for i in 0..20 {
        let vector = run.vector();
        let id = run.plane().insert(&vector, &long_key(i)).unwrap();
        run.model.add(id, &vector, &long_key(i));
        ids.push(id);
    }
    assert_eq!(run.plane().stats().unwrap().long_key_bytes, 4000);
    for round in 0..30 {
        let refused = run.plane().insert(&[1.0; 4], &long_key(500 + round));
        assert!(matches!(refused, Err(Error::KeysFull { bytes_max: 4000 })), "{refused:?}");
        assert_eq!(run.plane().stats().unwrap().long_key_bytes, 4000);
    }
    assert_eq!(run.plane().id_of(&long_key(500)).unwrap(), None);
    let vector = run.vector();
    let id = run.plane().insert(&vector, b"short").unwrap();
    run.model.add(id, &vector, b"short");
    run.check("arena full", 0.99);
    for round in 0..50 {
        let at = run.rng.below(ids.len());
        run.remove(ids[at]);
        if round % 10 == 0 {
            run.reopen();
        }
        let (vector, key) = (run.vector(), long_key(100 + round));
        ids[at] = run.plane().insert(&vector, &key).unwrap();
        run.freed.remove(&ids[at]);
        run.model.add(ids[at], &vector, &key);
    }
    run.check("arena churned", 0.99);
}

#[test]
fn long_keys_come_back_whole_and_their_space_is_used_again() {
    let mut rng = Rng::for_test("long_keys_come_back_whole_and_their_space_is_used_again");
    let options = CreateOptions { key_cap: 1, unique_keys: true, ..CreateOptions::new(2) };
    let mut run = Run::new(options, Keys::Unique, rng.fork());
    let lengths = [1, 8, 9, 12, 63, 64, 65, 66, 127, 128, 129, 1000, 4095, 4096, 65_534, 65_535];
    let mut grown = 0;
    for round in 0..20u8 {
        for (i, length) in lengths.iter().enumerate() {
            let mut key = run.rng.bytes(*length);
            key[0] = ((i as u8) << 4) | (round % 16);
            let vector = run.vector();
            let id = run.plane().insert(&vector, &key).unwrap();
            run.freed.remove(&id);
            run.model.add(id, &vector, &key);
        }
        let refused = run.plane().insert(&[1.0; 2], &vec![7; 65_536]);
        assert!(matches!(refused, Err(Error::KeyUnstorable { bytes: 65_536, .. })), "{refused:?}");
        assert!(matches!(run.plane().insert(&[1.0; 2], b""), Err(Error::KeyUnstorable { bytes: 0, .. })));
        run.check("keys of all lengths", 0.9);
        run.reopen();
        let ids: Vec<u32> = run.model.records.keys().copied().collect();
        ids.iter().for_each(|id| run.remove(*id));
        let bytes = run.plane().stats().unwrap().file_bytes;
        // Four rounds settle what lies where; after that no round needs more than the one before.
        if round == 4 {
            grown = bytes;
        } else if round > 4 {
            assert!(bytes <= grown, "round {round}: {bytes} bytes, {grown} before");
        }
    }
    // What the last ones held goes back with the next insert.
    run.plane().insert(&[1.0; 2], b"a").unwrap();
    assert_eq!(run.plane().stats().unwrap().long_key_bytes, 0);
}
