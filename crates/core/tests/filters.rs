//! Filters on real vectors: as many hits as there can be, the right ones, and in how long. The long form prints the table of
//! `docs/tuning.md`:
//!
//!     cargo test --release -p vecplane-core --test filters -- --ignored --nocapture --test-threads 1
//!
//! It builds planes of 100,000 and 200,000 records first, or takes those that an earlier run left in `VECPLANE_PLANES`.

mod common;
#[allow(dead_code)] // Other tests use the rest.
#[path = "common/data.rs"]
mod data;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use common::{Rng, open};
use data::{K, Matrix, Set};
use vecplane_core::{Batch, CreateOptions, Metric, Plane, SearchOptions};

const SHARES: [f64; 5] = [0.5, 0.1, 0.01, 0.001, 0.0001];
const EFS: [usize; 12] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768];
const RECALL: f64 = 0.98;
/// What a filter may cost, in times of the search without one.
const SLOWEST: f64 = 3.0;
/// Rounds that times are medians of.
const ROUNDS: usize = 5;

/// What each query may return.
struct Filter {
    name: String,
    /// One for all queries, or one for each.
    bits: Vec<Vec<u8>>,
}

impl Filter {
    fn of(&self, query: usize) -> &[u8] {
        &self.bits[query % self.bits.len()]
    }
}

fn bits(rows: usize, allowed: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bits = vec![0; rows.div_ceil(8)];
    allowed.for_each(|id| bits[id as usize >> 3] |= 1 << (id & 7));
    bits
}

/// Random shares, and the records that are farthest from the query.
fn filters(set: &Set, plane: &Plane, rng: &mut Rng) -> Vec<Filter> {
    let rows = set.base.rows();
    let random = SHARES.map(|share| {
        let allowed: Vec<u32> = (0..rows as u32).filter(|_| rng.chance(share)).collect();
        Filter { name: format!("{}% at random", share * 100.0), bits: vec![bits(rows, allowed.into_iter())] }
    });
    let nearest = |vector: &[f32], k: usize| plane.search_exact(vector, k, None).unwrap().ids;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for query in 0..set.queries.rows() {
        let ids = nearest(set.queries.row(query), rows);
        far.push(bits(rows, ids[rows - rows / 100..].iter().copied()));
        // One subject that has nothing to do with the query: what is near the farthest record.
        let farthest = set.base.row(ids[rows - 1] as usize);
        near.push(bits(rows, nearest(farthest, rows / 100).into_iter()));
    }
    let opposed = [("the farthest 1%", far), ("1% around the farthest", near)];
    random.into_iter().chain(opposed.map(|(name, bits)| Filter { name: name.into(), bits })).collect()
}

/// Time that this thread has used a processor for, in µs: what else the machine does leaves it alone.
#[cfg(unix)]
fn clock_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

#[cfg(not(unix))]
fn clock_us() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Bench<'a> {
    plane: &'a Plane,
    set: &'a Set,
}

impl Bench<'_> {
    fn search(&self, query: usize, ef: usize, filter: Option<&[u8]>) -> Vec<u32> {
        let options = SearchOptions { ef: Some(ef), filter, ..SearchOptions::new(K) };
        self.plane.search(self.set.queries.row(query), &options).unwrap().ids
    }

    fn truth(&self, filter: Option<&Filter>) -> Vec<HashSet<u32>> {
        let exact = |query| {
            let filter = filter.map(|filter| filter.of(query));
            self.plane.search_exact(self.set.queries.row(query), K, filter).unwrap().ids.into_iter().collect()
        };
        (0..self.set.queries.rows()).map(exact).collect()
    }

    /// Hits that are right, of all that there can be.
    fn recall(&self, ef: usize, filter: Option<&Filter>, truth: &[HashSet<u32>]) -> f64 {
        let (mut right, mut all) = (0, 0);
        for (query, truth) in truth.iter().enumerate() {
            let bits = filter.map(|filter| filter.of(query));
            let ids = self.search(query, ef, bits);
            let allowed = |id: &u32| bits.is_none_or(|bits| bits[*id as usize >> 3] >> (id & 7) & 1 == 1);
            assert!(ids.iter().all(allowed), "an id outside the filter");
            assert_eq!(ids.len(), truth.len(), "hits");
            right += ids.iter().filter(|id| truth.contains(id)).count();
            all += ids.len();
        }
        if all == 0 { 1.0 } else { right as f64 / all as f64 }
    }

    /// For each of these searches the median over the queries of each one's median time in µs. They take turns, so that
    /// what slows the machine down meets them all.
    fn times(&self, searches: &[(usize, Option<&Filter>)]) -> Vec<f64> {
        let mut medians = vec![Vec::new(); searches.len()];
        for query in 0..self.set.queries.rows() {
            let mut times = vec![Vec::new(); searches.len()];
            for _ in 0..ROUNDS {
                for (times, (ef, filter)) in times.iter_mut().zip(searches) {
                    let bits = filter.map(|filter| filter.of(query));
                    let started = clock_us();
                    std::hint::black_box(self.search(query, *ef, bits));
                    times.push(clock_us() - started);
                }
            }
            medians.iter_mut().zip(times).for_each(|(medians, times)| medians.push(median(times)));
        }
        medians.into_iter().map(median).collect()
    }

    /// The first `ef` of the ladder that reaches the recall, or the last one; and its recall.
    fn reach(&self, filter: Option<&Filter>, truth: &[HashSet<u32>]) -> (usize, f64) {
        let ladder = EFS.map(|ef| (ef, filter, truth));
        let mut found = ladder.into_iter().map(|(ef, filter, truth)| (ef, self.recall(ef, filter, truth)));
        let mut last = (0, 0.0);
        found.find(|found| {
            last = *found;
            found.1 >= RECALL
        });
        last
    }
}

fn build(path: &Path, set: &Set, metric: Metric) -> Plane {
    let options = CreateOptions { metric, ..CreateOptions::new(set.base.dims as u32) };
    let plane = Plane::create(path, &options).unwrap();
    let batch = Batch { vectors: &set.base.data, keys: &[], key_ends: &[] };
    let outcome = plane.insert_batch(batch, 1, &|_| true).unwrap();
    // Row i has the id i, since one thread took them in turn.
    assert!(outcome.fault.is_none() && outcome.ids.into_iter().eq(0..set.base.rows() as u32));
    plane.flush(None).unwrap();
    plane
}

/// A row of the table for each filter; returns what the slowest took, in times of the search without.
fn table(set: &Set, metric: Metric, plane: &Plane, rng: &mut Rng) -> f64 {
    let bench = Bench { plane, set };
    let (ef, recall) = bench.reach(None, &bench.truth(None));
    let (name, rows, dims) = (set.name, set.base.rows(), set.base.dims);
    println!("\n{name} {rows} x {dims}, {metric:?}: without a filter ef {ef} finds {recall:.4}\n");
    println!("| Filter | ef | Recall | Median us | Without a filter | Ratio | At ef 128: recall | us |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut slowest: f64 = 0.0;
    for filter in filters(set, plane, rng) {
        let truth = bench.truth(Some(&filter));
        let (least, found) = bench.reach(Some(&filter), &truth);
        let wide = bench.recall(128, Some(&filter), &truth);
        let times = bench.times(&[(least, Some(&filter)), (ef, None), (128, Some(&filter))]);
        let ratio = times[0] / times[1];
        slowest = slowest.max(ratio);
        println!(
            "| {} | {least} | {found:.4} | {:.0} | {:.0} | {ratio:.2} | {wide:.4} | {:.0} |",
            filter.name, times[0], times[1], times[2]
        );
        assert!(found >= RECALL, "{}: recall {found}", filter.name);
    }
    slowest
}

/// What a copy of often asked-for vectors, one behind the other, would gain: a hundredth of the records where they are, and
/// alone in a plane of their own.
fn scans(set: &Set, metric: Metric, plane: &Plane, rng: &mut Rng) {
    let rows = set.base.rows();
    let allowed: Vec<u32> = (0..rows as u32).filter(|_| rng.chance(0.01)).collect();
    let dims = set.base.dims;
    let data: Vec<f32> = allowed.iter().flat_map(|id| set.base.row(*id as usize)).copied().collect();
    let base = Matrix { dims, data };
    let queries = Matrix { dims, data: set.queries.data.clone() };
    let alone = set.like(base, queries);
    let dir = tempfile::tempdir().unwrap();
    let contiguous = build(&dir.path().join("plane"), &alone, metric);
    let scattered = Filter { name: String::new(), bits: vec![bits(rows, allowed.iter().copied())] };
    let all =
        Filter { name: String::new(), bits: vec![bits(alone.base.rows(), 0..alone.base.rows() as u32)] };
    for round in 0..3 {
        let there = Bench { plane, set }.times(&[(128, Some(&scattered))])[0];
        let alone = Bench { plane: &contiguous, set: &alone }.times(&[(128, Some(&all))])[0];
        let count = allowed.len();
        println!(
            "round {round}: a scan of {count} scattered records {there:.0} us, of contiguous ones {alone:.0} us"
        );
    }
}

#[test]
fn filters_find_the_nearest_that_are_allowed_on_shipped_vectors() {
    let mut rng = Rng::for_test("filters_find_the_nearest_that_are_allowed_on_shipped_vectors");
    let set = data::shipped_sift().ask(if common::long() { 200 } else { 40 });
    let dir = tempfile::tempdir().unwrap();
    let plane = build(&dir.path().join("plane"), &set, Metric::L2);
    table(&set, Metric::L2, &plane, &mut rng);
}

/// The table of a full set, from a plane that an earlier run kept or a new one.
fn full_table(set: Set, metric: Metric) {
    let kept = std::env::var_os("VECPLANE_PLANES").map(PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let folder = kept.unwrap_or_else(|| dir.path().to_path_buf());
    let set = set.ask(200);
    let path = folder.join(format!("{}-{}", set.name, set.base.rows()));
    let plane = if path.exists() { open(&path) } else { build(&path, &set, metric) };
    let mut rng = Rng::new(20_240_607);
    let slowest = table(&set, metric, &plane, &mut rng);
    println!("\nslowest: {slowest:.2} times the search without a filter");
    scans(&set, metric, &plane, &mut rng);
    assert!(slowest <= SLOWEST, "{slowest:.2} times the search without a filter");
}

#[test]
#[ignore = "builds a plane of 100,000 records"]
fn filters_cost_at_most_three_times_the_search_without_on_minilm() {
    let Some(full) = data::full() else { return };
    full_table(data::minilm(&full, 100_000), Metric::Cosine);
}

#[test]
#[ignore = "builds a plane of 200,000 records"]
fn filters_cost_at_most_three_times_the_search_without_on_sift() {
    let Some(full) = data::full() else { return };
    full_table(data::sift(&full, 200_000), Metric::L2);
}
