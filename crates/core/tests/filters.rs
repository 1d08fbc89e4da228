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

use common::clock::{median, thread_us};
use common::{Rng, TagColumn, open};
use data::{K, Set};
use vecplane_core::{Batch, CreateOptions, Metric, Plane, SearchOptions, Tag, TagQuery, TagSet};

const SHARES: [f64; 5] = [0.5, 0.1, 0.01, 0.001, 0.0001];
/// Percent of all records.
const FARTHEST: [usize; 3] = [50, 10, 1];
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
    /// So much is allowed that a walk is tried, and none of it anywhere near the query: a scan of it has to answer.
    in_vain: bool,
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
        Filter {
            name: format!("{}% at random", share * 100.0),
            bits: vec![bits(rows, allowed.into_iter())],
            in_vain: false,
        }
    });
    let nearest = |vector: &[f32], k: usize| plane.search_exact(vector, k, None).unwrap().ids;
    let (mut near, mut far) = (Vec::new(), FARTHEST.map(|_| Vec::new()));
    for query in 0..set.queries.rows() {
        let ids = nearest(set.queries.row(query), rows);
        for (far, percent) in far.iter_mut().zip(FARTHEST) {
            far.push(bits(rows, ids[rows - rows * percent / 100..].iter().copied()));
        }
        // One subject that has nothing to do with the query: what is near the farthest record.
        let farthest = set.base.row(ids[rows - 1] as usize);
        near.push(bits(rows, nearest(farthest, rows / 100).into_iter()));
    }
    let far = FARTHEST.iter().zip(far).map(|(percent, bits)| Filter {
        name: format!("the farthest {percent}%"),
        bits,
        in_vain: *percent > 1,
    });
    let near = Filter { name: "1% around the farthest".into(), bits: near, in_vain: false };
    random.into_iter().chain(far).chain([near]).collect()
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
                    let started = thread_us();
                    std::hint::black_box(self.search(query, *ef, bits));
                    times.push(thread_us() - started);
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
    let sets: Vec<TagSet> = (0..set.base.rows() as u32).map(tags_of).collect();
    let outcome = plane.insert_batch_tagged(batch, TagColumn::new(&sets).as_tags(), 1, &|_| true).unwrap();
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
        if !filter.in_vain {
            slowest = slowest.max(ratio);
        }
        println!(
            "| {} | {least} | {found:.4} | {:.0} | {:.0} | {ratio:.2} | {wide:.4} | {:.0} |",
            filter.name, times[0], times[1], times[2]
        );
        assert!(found >= RECALL, "{}: recall {found}", filter.name);
        // A walk that comes by few of what is allowed must not pass for an answer.
        assert!(wide >= RECALL || !filter.in_vain, "{}: recall {wide} at ef 128", filter.name);
    }
    slowest
}

/// One in so many records has each tag of a kind.
const TAG_SHARES: [u32; 2] = [100, 1000];
/// Tags that are asked for in turn.
const TAGS_IN_TURN: [u32; 2] = [1, 20];

/// The number of a record's tag of the kind that one in `share` has.
fn tag_number(id: u32, share: u32) -> u32 {
    Rng::new(u64::from(share) << 32 | u64::from(id)).below(share as usize) as u32
}

fn tag_text(share: u32, number: u32) -> String {
    format!("{share}:{number}")
}

fn tags_of(id: u32) -> TagSet {
    let texts = TAG_SHARES.map(|share| tag_text(share, tag_number(id, share)));
    TagSet::new(texts.iter().map(|text| Tag::Text(text))).unwrap()
}

/// How long searches by tags take whose scans are answered from copies, beside the same by bits, which are not; median processor
/// time of this thread. Every answer is the same by either.
fn copies(set: &Set, plane: &Plane) {
    println!("\n| Share | Tags in turn | Where they lie: us | In copies: us | Ratio | Copies: KiB |");
    println!("|---|---|---|---|---|---|");
    for share in TAG_SHARES {
        for in_turn in TAGS_IN_TURN {
            let with = |number| {
                bits(
                    set.base.rows(),
                    (0..set.base.rows() as u32).filter(|id| tag_number(*id, share) == number),
                )
            };
            let by_bits: Vec<Vec<u8>> = (0..in_turn).map(with).collect();
            let query = |number| {
                let any_of = TagSet::new([Tag::Text(&tag_text(share, number))]).unwrap();
                TagQuery { any_of: Some(any_of), ..TagQuery::default() }
            };
            let by_tags: Vec<TagQuery> = (0..in_turn).map(query).collect();
            let mut times = [vec![], vec![]];
            for at in 0..set.queries.rows() * ROUNDS {
                let (vector, which) = (set.queries.row(at % set.queries.rows()), at % by_tags.len());
                let plain = SearchOptions { ef: Some(128), ..SearchOptions::new(K) };
                let bits = SearchOptions { filter: Some(&by_bits[which]), ..plain };
                let tags = SearchOptions { tags: Some(&by_tags[which]), ..plain };
                let hits = [bits, tags].map(|options| {
                    let started = thread_us();
                    let hits = plane.search(vector, &options).unwrap();
                    (thread_us() - started, hits)
                });
                assert_eq!(hits[0].1, hits[1].1);
                // By the second round all that are going to be have been copied.
                if at >= set.queries.rows() {
                    times.iter_mut().zip(&hits).for_each(|(times, (time, _))| times.push(*time));
                }
            }
            let [there, copied] = times.map(median);
            let (ratio, bytes) = (there / copied, plane.stats().unwrap().tag_copy_bytes >> 10);
            println!("| 1 in {share} | {in_turn} | {there:.0} | {copied:.0} | {ratio:.2} | {bytes} |");
        }
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

/// Thousands of records between which int8 codes hardly see a difference: the scan of a filter finds the nearest all the same.
#[test]
fn a_scan_tells_records_apart_that_codes_do_not() {
    let mut rng = Rng::for_test("a_scan_tells_records_apart_that_codes_do_not");
    let (dims, rows) = (16, 4_000);
    let centre = rng.gaussian(dims);
    let near = |rng: &mut Rng| centre.iter().map(|x| x + 1e-4 * rng.gauss()).collect::<Vec<f32>>();
    let data: Vec<f32> = (0..rows).flat_map(|_| near(&mut rng)).collect();
    let tag = TagSet::new([Tag::Text("some")]).unwrap();
    let sets: Vec<TagSet> =
        (0..rows).map(|id| if id % 2 == 0 { TagSet::default() } else { tag.clone() }).collect();
    let tags = TagQuery { any_of: Some(tag), ..TagQuery::default() };
    let some = bits(rows, (0..rows as u32).filter(|id| id % 2 != 0));
    for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions { metric, m: 4, ef_construction: 20, ..CreateOptions::new(dims as u32) };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        let batch = Batch { vectors: &data, keys: &[], key_ends: &[] };
        plane.insert_batch_tagged(batch, TagColumn::new(&sets).as_tags(), 1, &|_| true).unwrap();
        let (mut right, mut all) = (0, 0);
        for _ in 0..20 {
            let query = rng.gaussian(dims);
            let exact = plane.search_exact(&query, K, Some(&some)).unwrap();
            let by_bits = SearchOptions { filter: Some(&some), ..SearchOptions::new(K) };
            let by_tags = SearchOptions { tags: Some(&tags), ..SearchOptions::new(K) };
            let hits = plane.search(&query, &by_bits).unwrap();
            assert_eq!(plane.search(&query, &by_tags).unwrap(), hits, "{metric:?}, by tags");
            right += hits.ids.iter().filter(|id| exact.ids.contains(id)).count();
            all += exact.len();
        }
        // One in a thousand may be off by more than any that were looked at.
        assert!(right as f64 >= 0.97 * all as f64, "{metric:?}: {right} of {all}");
        assert!(plane.stats().unwrap().tag_copy_bytes > 0, "by tags from a copy");
    }
}

/// The table of a full set, from a plane that an earlier run kept or a new one.
fn full_table(set: Set, metric: Metric) {
    let kept = std::env::var_os("VECPLANE_PLANES").map(PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let folder = kept.unwrap_or_else(|| dir.path().to_path_buf());
    let set = set.ask(200);
    let path = folder.join(format!("{}-{}-tagged", set.name, set.base.rows()));
    let plane = if path.exists() { open(&path) } else { build(&path, &set, metric) };
    let mut rng = Rng::new(20_240_607);
    copies(&set, &plane);
    let slowest = table(&set, metric, &plane, &mut rng);
    println!("\nslowest: {slowest:.2} times the search without a filter");
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
