//! Searches that ask which records they may return: against brute force, with any number of batches unanswered, and beside
//! writers that take away or replace what was asked about.

mod common;

use std::collections::{HashSet, VecDeque};

use common::{Model, Rng, by_form};
use vecplane_core::{
    Candidates, CreateOptions, Error, Hits, Metric, Plane, Precision, PredicateOptions, PredicateSearch,
    PredicateStep, Rerank,
};

const DIMS: usize = 12;

/// A caller: which ids it lets in, how many batches it lets wait, and which ids it was asked about.
struct Caller<'a> {
    allows: &'a dyn Fn(u32) -> bool,
    ahead: usize,
    asked: HashSet<u32>,
}

impl Caller<'_> {
    fn verdicts(&mut self, batch: &Candidates) -> Vec<u8> {
        assert_eq!(batch.ids.len(), batch.key_ends.len());
        let mut start = 0;
        for (id, end) in batch.ids.iter().zip(&batch.key_ends) {
            assert!(self.asked.insert(*id), "asked about {id} twice");
            let key = &batch.keys[std::mem::replace(&mut start, *end as usize)..*end as usize];
            assert!(key.starts_with(b"key "), "{key:?}");
        }
        batch.ids.iter().map(|id| u8::from((self.allows)(*id))).collect()
    }

    /// Drives a search to its end; `between` runs before each step.
    fn drive(&mut self, mut search: PredicateSearch, mut between: impl FnMut(usize)) -> (Hits, bool) {
        let mut waiting = VecDeque::new();
        for step in 0..100_000 {
            between(step);
            let must = match search.advance().unwrap() {
                PredicateStep::Done { hits, truncated } => return (hits, truncated),
                PredicateStep::Ask(batch) => {
                    assert!(!batch.ids.is_empty());
                    waiting.push_back(batch);
                    waiting.len() > self.ahead
                }
                PredicateStep::Wait => true,
            };
            if must {
                let batch = waiting.pop_front().expect("a search waits for verdicts on nothing");
                let verdicts = self.verdicts(&batch);
                search.give(&verdicts).unwrap();
            }
        }
        panic!("a search does not end");
    }
}

fn filled(options: &CreateOptions, rng: &mut Rng, count: usize) -> (Plane, Model, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), options).unwrap();
    let mut model = Model::new(options);
    for i in 0..count {
        let vector = rng.vector(DIMS);
        let key = format!("key {i}");
        model.add(plane.insert(&vector, key.as_bytes()).unwrap(), &vector, key.as_bytes());
    }
    (plane, model, dir)
}

/// The model as if the other records were not there.
fn allowed(model: &Model, allows: &dyn Fn(u32) -> bool) -> Model {
    let mut part = model.clone();
    part.records.retain(|id, _| allows(*id));
    part
}

#[test]
fn every_share_gives_k_hits_and_the_true_ones() {
    let mut rng = Rng::for_test("shares");
    for (metric, precision, rerank) in [
        (Metric::Cosine, Precision::Int8, Rerank::F32),
        (Metric::L2, Precision::F32, Rerank::None),
        (Metric::InnerProduct, Precision::Int16, Rerank::F16),
    ] {
        let options =
            CreateOptions { metric, precision, rerank, key_cap: 8, ..CreateOptions::new(DIMS as u32) };
        let count = by_form(2500, 20_000);
        let (plane, model, _dir) = filled(&options, &mut rng, count);
        // Hits that are right, of all there can be: of one hit alone a single miss would decide.
        let (mut right, mut there) = (0.0, 0.0);
        for share in [1.0, 0.5, 0.1, 0.01, 0.001, 0.0] {
            let chosen: HashSet<u32> = (0..count as u32).filter(|_| rng.chance(share)).collect();
            let allows = |id: u32| chosen.contains(&id);
            let part = allowed(&model, &allows);
            for _ in 0..12 {
                let query = rng.gaussian(DIMS);
                let k = *rng.pick(&[1, 10, 40, 300]);
                let mut options = PredicateOptions::new(k);
                options.ef = Some(*rng.pick(&[1, 30, 100]));
                options.filter_expansion = *rng.pick(&[1, 4, 24]);
                let mut caller = Caller { allows: &allows, ahead: rng.below(4), asked: HashSet::new() };
                let search = plane.search_with_predicate(&query, &options).unwrap();
                let (hits, truncated) = caller.drive(search, |_| {});
                assert!(!truncated);
                part.check_hits(&query, &hits, k);
                if options.ef == Some(100) {
                    let most = k.min(part.records.len()) as f64;
                    right += most * part.recall(&query, &hits, k);
                    there += most;
                }
            }
        }
        // Inner products are led by a few long vectors, which graphs are worse at.
        let floor = if metric == Metric::InnerProduct { 0.85 } else { 0.95 };
        assert!(right >= floor * there, "{right} of {there} found, {metric:?}");
    }
}

#[test]
fn what_is_removed_or_replaced_between_two_steps_is_not_returned() {
    let mut rng = Rng::for_test("churn between steps");
    let options = CreateOptions { key_cap: 8, unique_keys: true, ..CreateOptions::new(DIMS as u32) };
    let (plane, mut model, _dir) = filled(&options, &mut rng, 1500);
    let mut next = 1500;
    for _ in 0..by_form(40, 400) {
        let query = rng.gaussian(DIMS);
        let share = *rng.pick(&[2, 5, 30]);
        let allows = |id: u32| id.is_multiple_of(share);
        let mut caller = Caller { allows: &allows, ahead: rng.below(3), asked: HashSet::new() };
        let search = plane.search_with_predicate(&query, &PredicateOptions::new(10)).unwrap();
        let (hits, _) = caller.drive(search, |_| {
            for _ in 0..rng.below(12) {
                let Some(id) = model.some_id(&mut rng) else { break };
                let record = model.records.remove(&id).unwrap();
                let vector = rng.vector(DIMS);
                if rng.chance(0.5) {
                    assert!(plane.remove(id).unwrap());
                    next += 1;
                    let key = format!("key {next}");
                    model.add(plane.insert(&vector, key.as_bytes()).unwrap(), &vector, key.as_bytes());
                } else {
                    model.add(plane.upsert(&record.key, &vector).unwrap(), &vector, &record.key);
                }
            }
        });
        assert_eq!(hits.len(), 10);
        for (i, id) in hits.ids.iter().enumerate() {
            assert!(allows(*id));
            let record = model.records.get(id).unwrap_or_else(|| panic!("ghost: {id}"));
            assert_eq!(hits.key(i), record.key);
            let (distance, tolerance) = model.distance(&query, record);
            assert!((f64::from(hits.distances[i]) - distance).abs() <= tolerance);
        }
    }
    common::check_verified(&plane);
}

#[test]
fn a_budget_is_kept_and_told_of() {
    let mut rng = Rng::for_test("budgets");
    let options = CreateOptions { key_cap: 8, ..CreateOptions::new(DIMS as u32) };
    let (plane, model, _dir) = filled(&options, &mut rng, 2000);
    for budget in [1, 7, 50, 300, 1999, 100_000] {
        for share in [1, 3, 200] {
            let allows = |id: u32| id.is_multiple_of(share);
            let mut options = PredicateOptions::new(10);
            options.visit_budget = Some(budget);
            let query = rng.gaussian(DIMS);
            let mut caller = Caller { allows: &allows, ahead: 1, asked: HashSet::new() };
            let search = plane.search_with_predicate(&query, &options).unwrap();
            let (hits, truncated) = caller.drive(search, |_| {});
            assert!(caller.asked.len() <= budget, "{} records for a budget of {budget}", caller.asked.len());
            assert!(hits.len() == 10 || truncated, "{} hits", hits.len());
            assert!(hits.ids.iter().all(|id| allows(*id) && model.records.contains_key(id)));
            assert!(!truncated || budget < 100_000);
        }
    }
}

#[test]
fn verdicts_on_other_than_the_batch_are_refused() {
    let mut rng = Rng::for_test("wrong verdicts");
    let options = CreateOptions { key_cap: 8, ..CreateOptions::new(DIMS as u32) };
    let (plane, _, _dir) = filled(&options, &mut rng, 200);
    let mut search = plane.search_with_predicate(&rng.gaussian(DIMS), &PredicateOptions::new(10)).unwrap();
    assert!(matches!(search.give(&[1]), Err(Error::InvalidBatch { .. })));
    let PredicateStep::Ask(batch) = search.advance().unwrap() else { panic!("nothing is asked") };
    for length in [0, batch.ids.len() - 1, batch.ids.len() + 1] {
        assert!(matches!(search.give(&vec![1; length]), Err(Error::InvalidBatch { .. })));
    }
    assert!(search.give(&vec![1; batch.ids.len()]).unwrap());
    assert!(matches!(search.advance().unwrap(), PredicateStep::Done { hits, .. } if hits.len() == 10));
}
