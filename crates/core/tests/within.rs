//! Searches within a distance on real vectors: how much of what is there they find, and in how long. The long form prints the table of
//! `docs/tuning.md`:
//!
//!     cargo test --release -p vecplane-core --test within -- --ignored --nocapture
//!
//! It builds planes of 100,000 and 200,000 records first, or takes those that an earlier run left in `VECPLANE_PLANES`.

mod common;
#[allow(dead_code)] // Other tests use the rest.
#[path = "common/data.rs"]
mod data;

use std::path::{Path, PathBuf};

use common::clock::{median, thread_us};
use common::open;
use data::Set;
use vecplane_core::{Batch, CreateOptions, Metric, Plane, SearchOptions};

/// How many records are within reach.
const COUNTS: [usize; 3] = [10, 100, 1_000];
const EFS: [usize; 3] = [40, 160, 640];
/// What a search with the default `ef`, 160, finds at least.
const RECALL: f64 = 0.95;
const LIMIT: usize = 10_000;

fn build(path: &Path, set: &Set, metric: Metric) -> Plane {
    let options = CreateOptions { metric, ..CreateOptions::new(set.base.dims as u32) };
    let plane = Plane::create(path, &options).unwrap();
    let batch = Batch { vectors: &set.base.data, keys: &[], key_ends: &[] };
    let outcome = plane.insert_batch(batch, 1, &|_| true).unwrap();
    assert!(outcome.fault.is_none());
    plane.flush(None).unwrap();
    plane
}

/// A row for each count and `ef`; returns the lowest recall with the default `ef`.
fn table(set: &Set, plane: &Plane) -> f64 {
    let queries = set.queries.rows();
    // The distance of each query's nearest so many, and everything within it: more than so many where some are equally far.
    let exact = |query: usize, options: &SearchOptions<'_>| {
        plane.search_exact_with(set.queries.row(query), options).unwrap()
    };
    let reaches: Vec<Vec<f64>> = (0..queries)
        .map(|query| {
            let hits = exact(query, &SearchOptions::new(COUNTS[2]));
            COUNTS.map(|count| f64::from(hits.distances[count - 1])).to_vec()
        })
        .collect();
    println!("\n{} {} x {}\n", set.name, set.base.rows(), set.base.dims);
    println!("| Within reach | ef | Found | Median us | searchExact us |");
    println!("|---|---|---|---|---|");
    let mut lowest = 1.0;
    for (at, count) in COUNTS.into_iter().enumerate() {
        let mut found = [0; EFS.len()];
        let (mut times, mut scans) = (vec![Vec::new(); EFS.len()], Vec::new());
        let mut all = 0;
        for (query, reaches) in reaches.iter().enumerate() {
            let within = SearchOptions { within: Some(reaches[at]), ..SearchOptions::new(LIMIT) };
            let before = thread_us();
            let truth = exact(query, &within).ids;
            scans.push(thread_us() - before);
            all += truth.len();
            for (ef, (found, times)) in EFS.into_iter().zip(found.iter_mut().zip(&mut times)) {
                let options = SearchOptions { ef: Some(ef), ..within.clone() };
                let before = thread_us();
                let hits = plane.search(set.queries.row(query), &options).unwrap();
                times.push(thread_us() - before);
                assert!(hits.distances.iter().all(|distance| f64::from(*distance) <= reaches[at]));
                let right: std::collections::HashSet<u32> = truth.iter().copied().collect();
                assert!(hits.ids.iter().all(|id| right.contains(id)), "what no scan finds");
                *found += hits.len();
            }
        }
        let scan = median(scans);
        for (ef, (found, times)) in EFS.into_iter().zip(found.into_iter().zip(times)) {
            let recall = found as f64 / all as f64;
            println!("| {count} | {ef} | {recall:.4} | {:.0} | {scan:.0} |", median(times));
            if ef == 160 {
                lowest = f64::min(lowest, recall);
            }
        }
    }
    lowest
}

#[test]
fn a_search_within_a_distance_finds_nearly_all_on_shipped_vectors() {
    let set = data::shipped_sift().ask(if common::long() { 200 } else { 50 });
    let dir = tempfile::tempdir().unwrap();
    let plane = build(&dir.path().join("plane"), &set, Metric::L2);
    let lowest = table(&set, &plane);
    assert!(lowest >= RECALL, "recall {lowest}");
}

/// The table of a full set, from a plane that an earlier run kept or a new one.
fn full_table(set: Set, metric: Metric) {
    let kept = std::env::var_os("VECPLANE_PLANES").map(PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let set = set.ask(200);
    let name = format!("{}-{}-{metric:?}", set.name, set.base.rows());
    let path = kept.unwrap_or_else(|| dir.path().to_path_buf()).join(name);
    let plane = if path.exists() { open(&path) } else { build(&path, &set, metric) };
    let lowest = table(&set, &plane);
    assert!(lowest >= RECALL, "recall {lowest}");
}

#[test]
#[ignore = "builds planes of 100,000 and 200,000 records"]
fn a_search_within_a_distance_finds_nearly_all_on_full_sets() {
    let Some(full) = data::full() else { return };
    full_table(data::minilm(&full, 100_000), Metric::Cosine);
    full_table(data::sift(&full, 200_000), Metric::L2);
    full_table(data::glove(&full, 200_000), Metric::Cosine);
}
