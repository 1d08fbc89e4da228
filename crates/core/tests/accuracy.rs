//! Every distance that a plane reports, against the definition in f64, within the errors that `docs/accuracy.md` states.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use common::{Rng, bits, norm, true_distance};
use vecplane_core::{CreateOptions, Hits, Metric, Plane, Precision, Rerank, SearchOptions};

const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];
const RERANKS: [Rerank; 3] = [Rerank::None, Rerank::F16, Rerank::F32];
const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
const DIMS: [u32; 10] = [1, 3, 7, 17, 50, 128, 383, 768, 1536, 3072];

/// What the document says of the tables of kernels: each is tried where the processor has it.
const KERNELS: [&str; 6] = ["scalar", "avx2", "avxvnni", "avx512", "neon", "neon-dotprod"];

// The stated errors. `the_document_states_these_errors` holds them against the tables of `docs/accuracy.md`.

/// Half a unit in the last place of an f32 in [1, 2).
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// Partial sums that every kernel adds at least side by side.
const SUMS: f64 = 16.0;
/// Roundings of a distance besides those of the sums: folding 16 sums, the unit query, the norm, the result.
const ROUNDINGS: f64 = 20.0;
/// Smallest f32 above zero: a product or a difference that underflows is off by half of it.
const TINY: f64 = 1.401_298_464_324_817e-45;

/// Rounding of a distance from what is kept: `docs/accuracy.md` tells what it is relative to.
fn rounding(dims: usize) -> f64 {
    (dims as f64 / SUMS + ROUNDINGS) * UNIT
}

/// What a hit is scored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kept {
    F32,
    F16Copy,
    F16,
    Int16,
    Int8,
}

impl Kept {
    const ALL: [Kept; 5] = [Kept::F32, Kept::F16Copy, Kept::F16, Kept::Int16, Kept::Int8];

    fn of(precision: Precision, rerank: Rerank) -> Kept {
        match (rerank, precision) {
            (Rerank::F32, _) | (_, Precision::F32) => Kept::F32,
            (Rerank::F16, _) => Kept::F16Copy,
            (Rerank::None, Precision::F16) => Kept::F16,
            (Rerank::None, Precision::Int16) => Kept::Int16,
            (Rerank::None, Precision::Int8) => Kept::Int8,
        }
    }

    /// How far a kept component may be from the given one, in parts of the component and in parts of the largest one.
    fn parts(self) -> (f64, f64) {
        // Decoding multiplies code and scale, and rounds to f32.
        let decoding = 2.0 * UNIT;
        match self {
            Kept::F32 => (0.0, 0.0),
            Kept::F16Copy => (1.0 / 2048.0, 1.0 / 65_536.0),
            Kept::F16 => (1.0 / 2048.0, 2f64.powi(-39)),
            Kept::Int16 => (decoding, 1.0 / 65_534.0),
            Kept::Int8 => (decoding, 1.0 / 254.0),
        }
    }

    /// The row of the document's table.
    fn row(self) -> &'static str {
        match self {
            Kept::F32 => "| f32 codes or copy | 0 | 0 |",
            Kept::F16Copy => "| f16 copy | 1/2,048 | 1/65,536 |",
            Kept::F16 => "| f16 codes | 1/2,048 | 2^-39 |",
            Kept::Int16 => "| int16 codes | 2^-23 | 1/65,534 |",
            Kept::Int8 => "| int8 codes | 2^-23 | 1/254 |",
        }
    }

    /// How far the kept vector may be from the given one.
    fn displacement(self, vector: &[f32]) -> f64 {
        let (own, of_largest) = self.parts();
        let largest = vector.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        own * norm(vector) + of_largest * largest * (vector.len() as f64).sqrt()
    }
}

/// How far a distance from `kept` may be from the true one: float rounding alone.
fn from_kept(metric: Metric, query: &[f32], kept: &[f32]) -> f64 {
    let underflow = TINY * kept.len() as f64;
    rounding(kept.len())
        * match metric {
            Metric::Cosine if norm(kept) == 0.0 => 0.0,
            Metric::Cosine => 1.0,
            Metric::L2 => distance(metric, query, kept) + underflow / UNIT,
            Metric::InnerProduct => norm(query) * norm(kept) + underflow / UNIT * norm(kept).max(1.0),
        }
}

/// How far the distance of a vector `displacement` away from `vector` may be from that of `vector`.
fn by_displacement(metric: Metric, query: &[f32], vector: &[f32], displacement: f64) -> f64 {
    match metric {
        Metric::Cosine if displacement == 0.0 => 0.0,
        // The chord between two directions, whose angle has at most this sine.
        Metric::Cosine => 2.0 * ((displacement / norm(vector)).min(1.0).asin() / 2.0).sin(),
        Metric::InnerProduct => norm(query) * displacement,
        Metric::L2 => displacement * (2.0 * unlimited(metric, query, vector).sqrt() + displacement),
    }
}

fn unlimited(metric: Metric, query: &[f32], vector: &[f32]) -> f64 {
    true_distance(metric, query, vector)
}

/// The documented distance: the largest f32 stands for all that is larger.
fn distance(metric: Metric, query: &[f32], vector: &[f32]) -> f64 {
    unlimited(metric, query, vector).clamp(f64::from(f32::MIN), f64::from(f32::MAX))
}

/// The largest shares of the stated errors that were met, for the document.
#[derive(Default)]
struct Worst {
    rounding: BTreeMap<(Kept, String), f64>,
    displacement: BTreeMap<Kept, f64>,
    cosine: BTreeMap<(Kept, u32), f64>,
}

fn raise<K: Ord>(map: &mut BTreeMap<K, f64>, key: K, value: f64) {
    let most = map.entry(key).or_insert(0.0);
    *most = most.max(value);
}

/// Vectors of ordinary and of extreme size and make. The first is ordinary.
fn vectors(rng: &mut Rng, dims: usize) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = (0..20).map(|_| rng.gaussian(dims)).collect();
    for _ in 0..8 {
        let component = |rng: &mut Rng| rng.gauss().signum() * 10f32.powf(12.0 * rng.unit() as f32 - 6.0);
        all.push((0..dims).map(|_| component(rng)).collect());
    }
    let scaled = |vector: &[f32], by: f32| vector.iter().map(|x| x * by).collect::<Vec<f32>>();
    for by in [1e18, 1e-20, 1e-3, 300.0] {
        all.push(scaled(&rng.gaussian(dims), by));
        all.push(scaled(&all[0], by));
    }
    all.push(scaled(&all[0], -1.0));
    // One component that dwarfs the rest is what codes with one scale keep worst.
    let mut spike = rng.gaussian(dims);
    spike[rng.below(dims)] = 1e4;
    all.push(spike);
    let near = all[1].iter().map(|x| x * (1.0 + 1e-6)).collect();
    all.push(near);
    all.push(vec![0.0; dims]);
    all
}

/// Indices of the vectors that are asked for as well.
fn queries(vectors: &[Vec<f32>]) -> Vec<Vec<f32>> {
    [0, 1, 20, 21, 28, 30, 32, 36].iter().map(|&i| vectors[i].clone()).collect()
}

/// A plane with the vectors under their indices as ids, in memory.
fn plane(options: &CreateOptions, vectors: &[Vec<f32>]) -> (Plane, tempfile::TempDir) {
    let dir = common::image::memory_dir();
    let plane = Plane::create(&dir.path().join("plane"), options).unwrap();
    for (i, vector) in vectors.iter().enumerate() {
        assert_eq!(plane.insert(vector, b"").unwrap(), i as u32);
    }
    (plane, dir)
}

/// One plane with its records as given and as kept.
struct Case<'a> {
    options: CreateOptions,
    plane: &'a Plane,
    vectors: &'a [Vec<f32>],
    /// What `Plane::vector` gave for codes without a copy.
    decoded: &'a [Vec<f32>],
}

impl Case<'_> {
    fn check(&self, query: &[f32], worst: &mut Worst) {
        let count = self.vectors.len();
        let copies: Vec<Vec<f32>> =
            (0..count as u32).map(|id| self.plane.vector(id).unwrap().unwrap()).collect();
        if common::exact(&self.options) {
            assert!(copies.iter().zip(self.vectors).all(|(copy, given)| bits(copy) == bits(given)));
        }
        let everything = SearchOptions { ef: Some(2 * count), ..SearchOptions::new(count) };
        let filter = vec![0xFF; count.div_ceil(8)];
        let codes = SearchOptions { rerank: false, ..everything.clone() };
        let filtered = SearchOptions { filter: Some(&filter), ..everything.clone() };
        let Case { plane, options: CreateOptions { precision, rerank, .. }, .. } = self;
        let searched = |options| plane.search(query, options).unwrap();
        let exact = Kept::of(*precision, *rerank);
        self.check_hits(query, &searched(&everything), exact, &copies, worst);
        self.check_hits(query, &searched(&filtered), exact, &copies, worst);
        self.check_hits(query, &plane.search_exact(query, count, None).unwrap(), exact, &copies, worst);
        let coded = Kept::of(*precision, Rerank::None);
        self.check_hits(query, &searched(&codes), coded, self.decoded, worst);
    }

    fn check_hits(&self, query: &[f32], hits: &Hits, by: Kept, kept: &[Vec<f32>], worst: &mut Worst) {
        let CreateOptions { metric, dims, .. } = self.options;
        assert_eq!(hits.len(), self.vectors.len(), "every record is found");
        for (&id, &reported) in hits.ids.iter().zip(&hits.distances) {
            let (given, kept, reported) =
                (&self.vectors[id as usize], &kept[id as usize], f64::from(reported));
            let context = || format!("{:?}, by {by:?}, vector {id}: {reported:e}", self.options);
            let range = match metric {
                Metric::Cosine => 0.0..=2.0,
                Metric::L2 => 0.0..=f64::from(f32::MAX),
                Metric::InnerProduct => f64::from(f32::MIN)..=f64::from(f32::MAX),
            };
            assert!(range.contains(&reported), "{}", context());
            if metric == Metric::Cosine && norm(given) == 0.0 {
                assert_eq!(reported, 1.0, "{}", context());
            }

            let (truth, stated) = (distance(metric, query, kept), from_kept(metric, query, kept));
            let error = (reported - truth).abs();
            assert!(error <= stated, "{}, {truth:e} from what is kept: {error:e} > {stated:e}", context());
            if stated > 0.0 {
                raise(&mut worst.rounding, (by, format!("{metric:?}")), error / stated);
            }

            let displacement = by.displacement(given);
            let stated = stated + by_displacement(metric, query, given, displacement);
            let truth = distance(metric, query, given);
            let error = (reported - truth).abs();
            assert!(error <= stated, "{}, {truth:e} from what was given: {error:e} > {stated:e}", context());
            // Vectors 0 to 19 and the first queries are ordinary: what a user will see.
            if metric == Metric::Cosine && id < 20 && query == self.vectors[0] {
                raise(&mut worst.cosine, (by, dims), error);
            }
        }
    }
}

/// Kept vectors are as near the given ones as the document says, component by component.
fn check_kept(by: Kept, given: &[Vec<f32>], kept: &[Vec<f32>], worst: &mut Worst) {
    let (own, of_largest) = by.parts();
    for (given, kept) in given.iter().zip(kept) {
        let largest = given.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        let mut squares = 0.0;
        for (&x, &y) in given.iter().zip(kept) {
            let off = (f64::from(x) - f64::from(y)).abs();
            let stated = own * f64::from(x.abs()) + of_largest * largest;
            assert!(off <= stated, "{by:?}: {x:e} is kept as {y:e}, off by {off:e} > {stated:e}");
            squares += off * off;
        }
        let stated = by.displacement(given);
        assert!(squares.sqrt() <= stated || stated == 0.0 && squares == 0.0);
        if stated > 0.0 {
            raise(&mut worst.displacement, by, squares.sqrt() / stated);
        }
    }
}

/// Every combination at one number of dimensions.
fn check_dims(dims: u32, rng: &mut Rng, worst: &mut Worst) {
    let vectors = vectors(rng, dims as usize);
    let queries = queries(&vectors);
    let mut decoded: HashMap<u8, Vec<Vec<f32>>> = HashMap::new();
    for metric in METRICS {
        for precision in PRECISIONS {
            for rerank in RERANKS {
                let options = CreateOptions { metric, precision, rerank, ..CreateOptions::new(dims) };
                let (plane, _dir) = plane(&options, &vectors);
                // The kinds begin with none, whose records show what the codes decode to.
                let all = || (0..vectors.len() as u32).map(|id| plane.vector(id).unwrap().unwrap()).collect();
                let decoded = decoded.entry(precision as u8).or_insert_with(all);
                check_kept(Kept::of(precision, rerank), &vectors, &all(), worst);
                let case = Case { options, plane: &plane, vectors: &vectors, decoded };
                queries.iter().for_each(|query| case.check(query, worst));
            }
        }
    }
}

#[test]
fn reported_distances_are_within_the_stated_errors() {
    let mut rng = Rng::for_test("accuracy");
    let mut worst = Worst::default();
    let options = CreateOptions::new(1);
    println!("kernels: {}", plane(&options, &[]).0.stats().unwrap().kernels);
    for dims in DIMS {
        check_dims(dims, &mut rng.fork(), &mut worst);
    }
    println!("largest share of the stated rounding:");
    for ((kept, metric), share) in &worst.rounding {
        println!("  {kept:?}, {metric}: {share:.3}");
    }
    println!("largest share of the stated displacement: {:.3?}", worst.displacement);
    println!("largest cosine error among ordinary vectors, against the vectors as given:");
    for kept in Kept::ALL {
        let cells =
            DIMS.map(|dims| worst.cosine.get(&(kept, dims)).map_or(String::new(), |e| format!("{e:.1e}")));
        println!("| {kept:?} | {} |", cells.join(" | "));
    }
    // Errors that nothing comes near would be no statement.
    for kept in [Kept::Int8, Kept::Int16, Kept::F16, Kept::F16Copy] {
        assert!(worst.displacement[&kept] > 0.3, "{kept:?}: {:?}", worst.displacement);
    }
    assert!(worst.rounding[&(Kept::F32, "Cosine".into())] > 0.02, "{:?}", worst.rounding);
}

/// The kernels are chosen once in a process, so each of the others gets a process of its own.
#[test]
fn every_table_of_kernels_keeps_the_stated_errors() {
    if std::env::var_os("VECPLANE_KERNELS").is_some() {
        return; // One of those processes, or somebody who has chosen.
    }
    for kernels in KERNELS {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reported_distances_are_within_the_stated_errors", "--nocapture"])
            .env("VECPLANE_KERNELS", kernels)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        if printed.contains(&format!("kernels: {kernels}\n")) {
            println!("{kernels}: tried");
            assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
        } else {
            println!("{kernels}: not on this processor");
        }
    }
}

/// Equal vectors are equally far from anything, wherever in an answer they are scored.
#[test]
#[ignore = "the AVX kernels sum one or two rows in another order than three or four, so copies differ in the last bit"]
fn copies_of_a_vector_have_the_same_distance() {
    let mut rng = Rng::for_test("copies");
    for (dims, count) in [(7, 17), (50, 21), (128, 22), (383, 33)] {
        let vector = rng.gaussian(dims as usize);
        let copies = vec![vector; count];
        for (precision, rerank) in PRECISIONS.iter().flat_map(|p| RERANKS.map(|r| (*p, r))) {
            for metric in METRICS {
                let options = CreateOptions { metric, precision, rerank, ..CreateOptions::new(dims) };
                let (plane, _dir) = plane(&options, &copies);
                let query = rng.gaussian(dims as usize);
                for hits in [
                    plane.search(&query, &SearchOptions::new(count)).unwrap(),
                    plane.search_exact(&query, count, None).unwrap(),
                ] {
                    assert!(hits.distances.iter().all(|d| *d == hits.distances[0]), "{options:?}: {hits:?}");
                    assert!(hits.ids.iter().copied().eq(0..count as u32), "ties by id: {:?}", hits.ids);
                }
            }
        }
    }
}

#[test]
fn the_document_states_these_errors() {
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/accuracy.md")).unwrap();
    for kept in Kept::ALL {
        assert!(document.contains(kept.row()), "{}", kept.row());
    }
    let formula = format!("(dims / {SUMS} + {ROUNDINGS}) * 2^-24");
    assert!(document.contains(&formula), "{formula}");
    for dims in DIMS {
        let row = format!("| {dims} | {:.2e} |", rounding(dims as usize));
        assert!(document.contains(&row), "{row}");
    }
}
