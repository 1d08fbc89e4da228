//! Recall on real vectors, for every precision and metric; in the long form the tables of `docs/accuracy.md` and
//! `docs/tuning.md`.

mod common;
#[path = "common/data.rs"]
mod data;

use std::collections::HashSet;

use common::clock::{median, process_us, thread_us};
use common::long;
use data::{K, Set, Truth};
use vecplane_core::{Batch, CreateOptions, Hits, Metric, Plane, Precision, Rerank, SearchOptions};

const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];
const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
const EFS: [usize; 4] = [40, 80, 160, 320];
/// Processor times are medians of this many rounds, in which what is compared takes turns.
const ROUNDS: usize = 7;
/// Builds that the processor time of an insert is the median of.
const BUILDS: usize = 3;

/// A set's vectors in a plane, row i under the id `i` of `rows`.
struct Built {
    plane: Plane,
    /// The row of each id.
    rows: Vec<u32>,
    insert_us: f64,
    /// Goes with the plane.
    _dir: Box<dyn std::any::Any>,
}

/// Inserts on as many threads as the processor has, into memory.
fn build(set: &Set, options: &CreateOptions) -> Built {
    let dir = common::image::memory_dir();
    let plane = Plane::create(&dir.path().join("plane"), options).unwrap();
    let batch = Batch { vectors: &set.base.data, keys: &[], key_ends: &[] };
    let started = process_us();
    let outcome = plane.insert_batch(batch, 0, &|_| true).unwrap();
    let insert_us = (process_us() - started) / set.base.rows() as f64;
    assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
    let mut rows = vec![u32::MAX; outcome.ids.len()];
    for (row, &id) in outcome.ids.iter().enumerate() {
        assert_eq!(
            std::mem::replace(&mut rows[id as usize], row as u32),
            u32::MAX,
            "id {id} was given twice"
        );
    }
    Built { plane, rows, insert_us, _dir: Box::new(dir) }
}

fn options(set: &Set, metric: Metric, precision: Precision, rerank: Rerank) -> CreateOptions {
    CreateOptions { metric, precision, rerank, ..CreateOptions::new(set.base.dims as u32) }
}

impl Built {
    fn search(&self, query: &[f32], ef: usize, rerank: bool) -> Hits {
        self.plane.search(query, &SearchOptions { ef: Some(ef), rerank, ..SearchOptions::new(K) }).unwrap()
    }

    /// Recall@10 over all queries. Every answer is whole and in order.
    fn recall(&self, truth: &Truth<'_>, set: &Set, ef: usize, rerank: bool) -> f64 {
        let mut right = 0;
        for query in 0..set.queries.rows() {
            let hits = self.search(set.queries.row(query), ef, rerank);
            assert_eq!(hits.len(), K);
            assert!(hits.distances.is_sorted());
            let rows: Vec<u32> = hits.ids.iter().map(|id| self.rows[*id as usize]).collect();
            assert_eq!(rows.iter().collect::<HashSet<_>>().len(), K, "rows repeat: {rows:?}");
            right += truth.right(query, &rows);
        }
        right as f64 / (K * set.queries.rows()) as f64
    }

    /// Processor time of a search, over all queries.
    fn search_us(&self, set: &Set, ef: usize, rerank: bool) -> f64 {
        let queries = set.queries.rows();
        let started = thread_us();
        for query in 0..queries {
            std::hint::black_box(self.search(set.queries.row(query), ef, rerank));
        }
        (thread_us() - started) / queries as f64
    }

    /// Processor time of an exact search, over some queries.
    fn exact_us(&self, set: &Set) -> f64 {
        let queries = set.queries.rows().min(100);
        let started = thread_us();
        for query in 0..queries {
            std::hint::black_box(self.plane.search_exact(set.queries.row(query), K, None).unwrap());
        }
        (thread_us() - started) / queries as f64
    }
}

/// A little under what the shipped vectors give at each `EFS`, over seeds. Int8 codes by themselves have a ceiling.
fn floors(metric: Metric, precision: Precision, rerank: bool) -> [f64; 4] {
    match (precision, rerank, metric) {
        (Precision::Int8, false, Metric::InnerProduct) => [0.970, 0.983, 0.984, 0.984],
        (Precision::Int8, false, _) => [0.973, 0.988, 0.989, 0.989],
        _ => [0.983, 0.997, 0.999, 0.999],
    }
}

#[test]
fn recall_reaches_its_floor_for_every_precision_and_metric() {
    let set = data::shipped_sift();
    for metric in METRICS {
        let truth = Truth::new(&set, metric);
        for precision in PRECISIONS {
            let built = build(&set, &options(&set, metric, precision, Rerank::F32));
            for rerank in [true, false] {
                let found = EFS.map(|ef| built.recall(&truth, &set, ef, rerank));
                println!("{metric:?}, {precision:?}, rerank {rerank}: {found:.4?}");
                let floors = floors(metric, precision, rerank);
                for (i, ef) in EFS.iter().enumerate() {
                    assert!(
                        found[i] >= floors[i],
                        "{metric:?}, {precision:?}, rerank {rerank}, ef {ef}: {found:.4?} for {floors:?}"
                    );
                }
            }
        }
    }
}

/// The neighbours that ship for cosine are those that the definition gives, and no others count as right.
#[test]
fn shipped_neighbours_are_the_nearest() {
    let set = data::shipped_sift().ask(20);
    let truth = Truth::new(&set, Metric::Cosine);
    let computed = truth.computed();
    for (query, nearest) in computed.iter().enumerate() {
        let last = nearest[K - 1];
        let (near, far): (Vec<u32>, Vec<u32>) =
            (0..set.base.rows() as u32).partition(|row| truth.distance(query, *row) <= last);
        assert_eq!((near.len(), truth.right(query, &near)), (K, K), "query {query}");
        assert!(far.chunks(K).all(|rows| truth.right(query, rows) == 0), "query {query}");
    }
}

/// Beam widths, each with the answers in a thousand that may differ from the exact one: the graph is drawn anew for every
/// run, and at ten times `K` one answer of 200 may miss a neighbour now and then.
const DIFFERENT_PER_MILLE: [(usize, usize); 2] = [(10 * K, 5), (40 * K, 0)];

/// Where the walk keeps the caller's own components, an answer is the exact one but for equal distances, once the beam is
/// ten times as wide as the answer.
#[test]
fn f32_without_rerank_answers_as_the_exact_search_does() {
    let set = data::shipped_sift();
    let queries = set.queries.rows();
    for metric in METRICS {
        let built = build(&set, &options(&set, metric, Precision::F32, Rerank::None));
        for (ef, per_mille) in DIFFERENT_PER_MILLE {
            let same = |query: &usize| same_as_exact(&built, set.queries.row(*query), ef);
            let different = queries - (0..queries).filter(same).count();
            println!("{metric:?}, ef {ef}: {different} of {queries} answers differ");
            assert!(
                1000 * different <= per_mille * queries,
                "{metric:?}, ef {ef}: {different} answers differ"
            );
        }
    }
}

/// Whether an answer has the distances of the exact one. Which of several equally near records it has is left open.
fn same_as_exact(built: &Built, query: &[f32], ef: usize) -> bool {
    let exact = built.plane.search_exact(query, K, None).unwrap();
    let hits = built.search(query, ef, false);
    // The same record has the same distance to the last bit, so what the walk found is in exact order.
    for (id, distance) in hits.ids.iter().zip(&hits.distances) {
        if let Some(at) = exact.ids.iter().position(|other| other == id) {
            assert_eq!(exact.distances[at].to_bits(), distance.to_bits());
        }
    }
    hits.distances == exact.distances
}

/// The long forms take minutes and want `cargo test --release`.
fn long_form(name: &str) -> Option<std::path::PathBuf> {
    if !long() {
        println!("{name}: skipped (VECPLANE_LONG=1)");
        return None;
    }
    data::full()
}

/// The name that the public surface has for it.
fn name(of: impl std::fmt::Debug) -> String {
    match format!("{of:?}").as_str() {
        "InnerProduct" => "inner product".into(),
        "L2" => "L2".into(),
        other => other.to_lowercase(),
    }
}

fn heading(set: &Set) {
    let (rows, dims, queries) = (set.base.rows(), set.base.dims, set.queries.rows());
    println!("\n{} {rows} x {dims}, {queries} queries, k {K}\n", set.name);
}

fn recall_table(set: &Set, metrics: &[Metric]) {
    heading(set);
    println!("| Metric | Precision | Scored with | ef 40 | ef 80 | ef 160 | ef 320 |");
    println!("|---|---|---|---|---|---|---|");
    for &metric in metrics {
        let truth = Truth::new(set, metric);
        for precision in PRECISIONS {
            let built = build(set, &options(set, metric, precision, Rerank::F32));
            let ways: &[bool] = if precision == Precision::F32 { &[false] } else { &[true, false] };
            for &rerank in ways {
                let cells = EFS.map(|ef| format!("{:.4}", built.recall(&truth, set, ef, rerank)));
                let by = if rerank { "f32 copy" } else { "codes" };
                println!("| {} | {} | {by} | {} |", name(metric), name(precision), cells.join(" | "));
            }
        }
    }
}

#[test]
fn long_recall_tables() {
    let Some(full) = long_form("long_recall_tables") else { return };
    recall_table(&data::sift(&full, 20_000), &METRICS);
    recall_table(&data::glove(&full, 20_000), &METRICS);
    recall_table(&data::minilm(&full, 100_000), &METRICS);
}

/// How many answers of the f32 walk differ from the exact ones as the beam widens.
#[test]
fn long_table_of_answers_that_differ() {
    let Some(full) = long_form("long_table_of_answers_that_differ") else { return };
    for set in [data::sift(&full, 20_000), data::minilm(&full, 20_000)] {
        heading(&set);
        println!("| Metric | ef 100 | ef 200 | ef 400 | ef 800 |");
        println!("|---|---|---|---|---|");
        for metric in METRICS {
            let built = build(&set, &options(&set, metric, Precision::F32, Rerank::None));
            let cells = [100, 200, 400, 800].map(|ef| {
                let differs = |query: &usize| !same_as_exact(&built, set.queries.row(*query), ef);
                (0..set.queries.rows()).filter(differs).count().to_string()
            });
            println!("| {} | {} |", name(metric), cells.join(" | "));
        }
    }
}

/// What the values of a choice cost and give: build, bytes, and for each `ef` recall with the processor time of a search.
fn tuning_table(set: &Set, choice: &str, values: &[(String, CreateOptions)]) {
    heading(set);
    println!(
        "| {choice} | insert CPU | slot + copy + heap bytes | file bytes | ef 40 | ef 80 | ef 160 | ef 320 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let truth = Truth::new(set, values[0].1.metric);
    let mut built: Vec<Vec<Built>> = values.iter().map(|_| Vec::new()).collect();
    for _ in 0..BUILDS {
        for (built, (_, options)) in built.iter_mut().zip(values) {
            built.push(build(set, options));
        }
    }
    let mut times = vec![[const { Vec::new() }; EFS.len()]; values.len()];
    for round in 0..ROUNDS {
        for (built, times) in built.iter().zip(&mut times) {
            for (times, ef) in times.iter_mut().zip(EFS) {
                times.push(built[round % BUILDS].search_us(set, ef, true));
            }
        }
    }
    for ((built, times), (label, _)) in built.iter().zip(times).zip(values) {
        let plane = &built[0].plane;
        plane.flush(None).unwrap();
        let stats = plane.stats().unwrap();
        let cells: Vec<String> = EFS
            .iter()
            .zip(times)
            .map(|(ef, times)| {
                let recall = built.iter().map(|built| built.recall(&truth, set, *ef, true)).sum::<f64>();
                format!("{:.4}, {:.0} us", recall / BUILDS as f64, median(times))
            })
            .collect();
        println!(
            "| {label} | {:.0} us | {} + {} + {} | {:.0} | {} |",
            median(built.iter().map(|built| built.insert_us).collect()),
            stats.slot_bytes,
            stats.exact_bytes,
            stats.heap_bytes / stats.count,
            stats.file_bytes as f64 / stats.count as f64,
            cells.join(" | ")
        );
    }
}

/// Each choice by itself, everything else at its default, on the first 20,000 rows of two sets.
#[test]
fn long_tuning_tables() {
    let Some(full) = long_form("long_tuning_tables") else { return };
    for set in [data::sift(&full, 20_000), data::minilm(&full, 20_000)] {
        let base = CreateOptions::new(set.base.dims as u32);
        let with = |label: &str, change: &dyn Fn(&mut CreateOptions)| {
            let mut options = base.clone();
            change(&mut options);
            (label.to_owned(), options)
        };
        let caps = [16, 32, 48, 64].map(|cap| with(&cap.to_string(), &|o| o.layer0_cap = cap));
        tuning_table(&set, "layer0Cap", &caps);
        let ms = [8, 12, 16, 24, 32].map(|m| with(&m.to_string(), &|o| (o.m, o.layer0_cap) = (m, 2 * m)));
        tuning_table(&set, "M", &ms);
        let widths = [50, 100, 200, 400].map(|ef| with(&ef.to_string(), &|o| o.ef_construction = ef));
        tuning_table(&set, "efConstruction", &widths);
        let kinds = PRECISIONS.map(|precision| with(&name(precision), &|o| o.precision = precision));
        tuning_table(&set, "precision", &kinds);
        let copies = [Rerank::F32, Rerank::F16, Rerank::None];
        tuning_table(&set, "rerank", &copies.map(|rerank| with(&name(rerank), &|o| o.rerank = rerank)));
    }
}

/// From how many records on a search through the graph costs less than looking at every one.
#[test]
fn long_exact_search_table() {
    let Some(full) = long_form("long_exact_search_table") else { return };
    println!(
        "\n| Set | Records | searchExact, f32 copy | searchExact, int8 codes | search, ef 128 | recall@10 |"
    );
    println!("|---|---|---|---|---|---|");
    for rows in [500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000] {
        for set in [data::sift(&full, rows), data::minilm(&full, rows)] {
            let truth = Truth::new(&set, Metric::Cosine);
            let built = build(&set, &options(&set, Metric::Cosine, Precision::Int8, Rerank::F32));
            let codes = build(&set, &options(&set, Metric::Cosine, Precision::Int8, Rerank::None));
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                times[0].push(built.exact_us(&set));
                times[1].push(codes.exact_us(&set));
                times[2].push(built.search_us(&set, 128, true));
            }
            let times = times.map(|times| format!("{:.0} us", median(times)));
            let recall = built.recall(&truth, &set, 128, true);
            println!("| {} | {rows} | {} | {recall:.4} |", set.name, times.join(" | "));
        }
    }
}
