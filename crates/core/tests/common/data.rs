//! Real vectors with exact neighbours: those that ship in `fixtures/`, and the full sets where they are at hand.
//! Formats: `fixtures/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use half::f16;
use vecplane_core::Metric;

/// Neighbours that the measurements ask for.
pub const K: usize = 10;

/// Row-major vectors of one length.
pub struct Matrix {
    pub dims: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    pub fn rows(&self) -> usize {
        self.data.len() / self.dims
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.dims..][..self.dims]
    }

    /// The first `rows` rows.
    pub fn first(mut self, rows: usize) -> Self {
        assert!(rows <= self.rows(), "{rows} rows of {}", self.rows());
        self.data.truncate(rows * self.dims);
        self
    }
}

/// Vectors to index and vectors to ask for.
pub struct Set {
    pub name: &'static str,
    pub base: Matrix,
    pub queries: Matrix,
    folder: PathBuf,
}

impl Set {
    /// The first `queries` queries only.
    pub fn ask(mut self, queries: usize) -> Self {
        let rows = self.queries.rows().min(queries);
        self.queries = self.queries.first(rows);
        self
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The 10,000 SIFT rows and 200 queries that ship with the project.
pub fn shipped_sift() -> Set {
    let folder = repository().join("fixtures/sift");
    let base = bvecs(&folder.join("sift_base.bvecs"), usize::MAX);
    Set { name: "SIFT", base, queries: bvecs(&folder.join("sift_query.bvecs"), usize::MAX), folder }
}

/// The folder of the full sets: `VECTOR_DATA_DIR`, or `../shared/data` beside the repository. Says so when there is none.
pub fn full() -> Option<PathBuf> {
    let named = std::env::var_os("VECTOR_DATA_DIR").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| repository().join("../shared/data"));
    if !folder.is_dir() {
        println!("skipped: the full data sets are not at hand (VECTOR_DATA_DIR)");
        return None;
    }
    Some(folder)
}

/// The first rows of the full SIFT set, and its 1,000 queries.
pub fn sift(full: &Path, rows: usize) -> Set {
    let folder = full.join("sift");
    let base = bvecs(&folder.join("sift_base_200k.bvecs"), rows).first(rows);
    Set { name: "SIFT", base, queries: bvecs(&folder.join("sift_query.bvecs"), usize::MAX), folder }
}

/// The first rows of the minilm set, and its 1,000 queries.
pub fn minilm(full: &Path, rows: usize) -> Set {
    let folder = full.join("minilm");
    let mut base = halves(&folder.join("minilm_base_part1.f16"), 384);
    if rows > base.rows() {
        base.data.extend(halves(&folder.join("minilm_base_part2.f16"), 384).data);
    }
    let queries = halves(&folder.join("minilm_query.f16"), 384);
    Set { name: "minilm", base: base.first(rows), queries, folder }
}

/// The first rows of the GloVe set, whose vectors have any length, and its 1,000 queries.
pub fn glove(full: &Path, rows: usize) -> Set {
    let folder = full.join("glove50");
    let queries = halves(&folder.join("glove50_query.f16"), 50);
    Set { name: "glove50", base: halves(&folder.join("glove50_base.f16"), 50).first(rows), queries, folder }
}

fn read(file: &Path) -> Vec<u8> {
    fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn bvecs(file: &Path, rows: usize) -> Matrix {
    let bytes = read(file);
    let dims = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let rows = bytes.chunks_exact(4 + dims).take(rows);
    Matrix { dims, data: rows.flat_map(|row| &row[4..]).map(|byte| f32::from(*byte)).collect() }
}

fn halves(file: &Path, dims: usize) -> Matrix {
    let bytes = read(file);
    let (values, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty() && values.len() % dims == 0, "{}: whole rows of {dims} halves", file.display());
    Matrix { dims, data: values.iter().map(|value| f16::from_le_bytes(*value).to_f32()).collect() }
}

/// Rows of row numbers, nearest first.
fn ivecs(file: &Path) -> Vec<Vec<u32>> {
    let bytes = read(file);
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    words.chunks_exact(1 + words[0] as usize).map(|row| row[1..].to_vec()).collect()
}

/// Squared norms, so that a distance takes one dot.
fn squares(matrix: &Matrix) -> Vec<f64> {
    (0..matrix.rows()).map(|i| dot(matrix.row(i), matrix.row(i))).collect()
}

/// In sixteen partial sums, so that it vectorises.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0f64; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    rest + sums.iter().sum::<f64>()
}

/// How far the nearest rows of each query are, in f64.
pub struct Truth<'a> {
    set: &'a Set,
    metric: Metric,
    base_squares: Vec<f64>,
    query_squares: Vec<f64>,
    /// Distances of the nearest rows, nearest first.
    nearest: Vec<Vec<f64>>,
}

impl<'a> Truth<'a> {
    /// From the neighbours that come with the set, where it has those of this metric for this number of rows, else by
    /// looking at every row.
    pub fn new(set: &'a Set, metric: Metric) -> Self {
        let mut truth = Truth {
            metric,
            base_squares: squares(&set.base),
            query_squares: squares(&set.queries),
            nearest: Vec::new(),
            set,
        };
        truth.nearest = truth.shipped().unwrap_or_else(|| truth.computed());
        truth
    }

    fn shipped(&self) -> Option<Vec<Vec<f64>>> {
        let metric = match self.metric {
            Metric::Cosine => "cosine",
            Metric::L2 => "l2",
            Metric::InnerProduct => return None,
        };
        let file = self.set.folder.join(format!("gt_{}_{metric}.ivecs", self.set.base.rows()));
        let neighbours = file.exists().then(|| ivecs(&file))?;
        let distances = |(query, rows): (usize, &Vec<u32>)| {
            rows[..K].iter().map(|row| self.distance(query, *row)).collect::<Vec<f64>>()
        };
        Some(neighbours.iter().take(self.set.queries.rows()).enumerate().map(distances).collect())
    }

    /// On as many threads as the processor has.
    pub fn computed(&self) -> Vec<Vec<f64>> {
        let queries: Vec<usize> = (0..self.set.queries.rows()).collect();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = queries.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let part = |part| scope.spawn(move || self.nearest_of(part));
            let parts: Vec<_> = queries.chunks(share).map(part).collect();
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        })
    }

    fn nearest_of(&self, queries: &[usize]) -> Vec<Vec<f64>> {
        let of = |query: &usize| {
            let mut all: Vec<f64> =
                (0..self.set.base.rows()).map(|row| self.distance(*query, row as u32)).collect();
            all.select_nth_unstable_by(K - 1, f64::total_cmp);
            all.truncate(K);
            all.sort_unstable_by(f64::total_cmp);
            all
        };
        queries.iter().map(of).collect()
    }

    /// The distance as the documentation defines it.
    pub fn distance(&self, query: usize, row: u32) -> f64 {
        let row = row as usize;
        let dot = dot(self.set.queries.row(query), self.set.base.row(row));
        match self.metric {
            Metric::InnerProduct => -dot,
            Metric::L2 => (self.query_squares[query] + self.base_squares[row] - 2.0 * dot).max(0.0),
            Metric::Cosine => 1.0 - dot / (self.query_squares[query] * self.base_squares[row]).sqrt(),
        }
    }

    /// How many of an answer's rows are as near as the `K` nearest: rows that tie at the last rank are all right.
    pub fn right(&self, query: usize, rows: &[u32]) -> usize {
        let last = self.nearest[query][K - 1];
        // Two f64 sums of the same terms may differ in their last digits.
        let limit = last + 1e-12 * last.abs().max(1.0);
        rows.iter().take(K).filter(|row| self.distance(query, **row) <= limit).count()
    }
}
