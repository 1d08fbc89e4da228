//! Final distances: of exact copies, or of decoded codes where a plane keeps no copy.

use super::{Kernels, Query, kernels};
use crate::codec;
use crate::options::{Metric, Precision, Rerank};

/// Rows handed to a kernel at once.
const BATCH: usize = 16;
/// Rows that kernels score side by side, or a multiple of it.
const GROUP: usize = 4;

/// Below this a row's f32 dot with a unit vector loses digits to gradual underflow: 65,536 products, each off by up to
/// 2^-150, are then more than 1e-7 of the norm. Such rows are scored in f64.
const NORM_MIN: f32 = 1e-33;

/// A record's exact copy.
#[derive(Clone, Copy)]
pub struct ExactRow {
    /// The copy, as `codec::write_exact` made it.
    pub bytes: *const u8,
    /// What `codec::write_exact` returned.
    pub scale: f32,
    /// The copy's norm: `codec::exact_norm`.
    pub norm: f32,
}

/// A record's codes.
#[derive(Clone, Copy)]
pub struct CodeRow {
    /// The codes, as `codec::encode` made them.
    pub codes: *const u8,
    /// `Encoded::scale`.
    pub scale: f32,
    /// `Encoded::factor`.
    pub factor: f32,
}

/// A query for final distances. Filling it again reuses its buffers.
pub struct ExactQuery {
    query: Query,
    metric: Metric,
    decoded: Vec<f32>,
}

impl ExactQuery {
    /// An empty query.
    pub fn new() -> Self {
        ExactQuery { query: Query::new(), metric: Metric::Cosine, decoded: Vec::new() }
    }

    /// Prepares a caller's vector whose norm `codec::checked_norm` gave.
    pub fn set(&mut self, metric: Metric, vector: &[f32], norm: f64) {
        self.query.set_values(metric, vector, norm);
        self.metric = metric;
        self.decoded.resize(vector.len(), 0.0);
    }

    /// Distances of exact copies. Always finite, however large or small the vectors.
    ///
    /// # Safety
    /// As `DotRows` for the rows' `bytes`, which are copies of kind `rerank` with the query's number of components.
    ///
    /// # Panics
    /// When `distances` is shorter than `rows`, or `rerank` is `None`: there is no copy to read.
    pub unsafe fn score(&mut self, rerank: Rerank, rows: &[ExactRow], distances: &mut [f32]) {
        let Kernels { dot_f32, dot_f16, l2_f32, l2_f16, .. } = *kernels();
        let kernel = match (rerank, self.metric) {
            (Rerank::F32, Metric::L2) => l2_f32,
            (Rerank::F32, _) => dot_f32,
            (Rerank::F16, Metric::L2) => l2_f16,
            (Rerank::F16, _) => dot_f16,
            (Rerank::None, _) => panic!("a plane without exact copies has none to score"),
        };
        let distances = &mut distances[..rows.len()];
        for (rows, distances) in rows.chunks(BATCH).zip(distances.chunks_mut(BATCH)) {
            // Whole groups, the last one filled up with its last row: kernels sum a row that is left over in another order,
            // and a distance shall be the same to the last bit in every answer.
            let (mut pointers, mut results) = ([rows[rows.len() - 1].bytes; BATCH], [0.0; BATCH]);
            pointers.iter_mut().zip(rows).for_each(|(pointer, row)| *pointer = row.bytes);
            let filled = rows.len().next_multiple_of(GROUP);
            // SAFETY: the caller's promise about the rows; the kernel is that of their format.
            unsafe { kernel(&self.query, &pointers[..filled], &mut results) };
            distances.copy_from_slice(&results[..rows.len()]);
            for (row, result) in rows.iter().zip(distances) {
                // A squared distance in the row's own units is none in the query's, and a tiny or overflowing dot has
                // lost its digits: all rare.
                let scaled_l2 = self.metric == Metric::L2 && row.scale != 1.0;
                *result = if scaled_l2 || !result.is_finite() || row.norm < NORM_MIN {
                    // SAFETY: the caller's promise about the rows.
                    unsafe { self.decode_exact(rerank, row) };
                    self.distance_decoded(codec::norm(&self.decoded))
                } else {
                    distance(self.metric, f64::from(*result) * f64::from(row.scale), f64::from(row.norm))
                };
            }
        }
    }

    /// Distances of decoded codes. Always finite, however large or small the vectors.
    ///
    /// # Safety
    /// As `DotRows` for the rows' `codes`, which are of `precision` and have the query's number of components.
    ///
    /// # Panics
    /// When `distances` is shorter than `rows`.
    pub unsafe fn refine(&mut self, precision: Precision, rows: &[CodeRow], distances: &mut [f32]) {
        let Kernels { dot_int8_values, dot_int16, dot_f16, dot_f32, .. } = *kernels();
        let kernel = match precision {
            Precision::Int8 => dot_int8_values,
            Precision::Int16 => dot_int16,
            Precision::F16 => dot_f16,
            Precision::F32 => dot_f32,
        };
        for (row, result) in rows.iter().zip(&mut distances[..rows.len()]) {
            let mut dot = [0.0];
            if self.metric != Metric::L2 {
                // SAFETY: the caller's promise about the rows; the kernel is that of their precision.
                unsafe { kernel(&self.query, &[row.codes], &mut dot) };
            }
            let dot = f64::from(dot[0]);
            *result = match self.metric {
                // A large factor means f32 codes with a tiny norm, whose dot has lost its digits.
                Metric::Cosine if dot.is_finite() && row.factor < NORM_MIN.recip() => {
                    (1.0 - dot * f64::from(row.factor)).clamp(0.0, 2.0) as f32
                }
                Metric::InnerProduct if dot.is_finite() => codec::saturate(-dot * f64::from(row.scale)),
                _ => {
                    // SAFETY: the caller's promise about the rows.
                    unsafe { self.decode_codes(precision, row) };
                    self.distance_decoded(codec::norm(&self.decoded))
                }
            };
        }
    }

    /// The distance from `decoded`, in f64 throughout.
    fn distance_decoded(&self, row_norm: f64) -> f32 {
        let pairs =
            self.query.values().iter().zip(&self.decoded).map(|(&q, &v)| (f64::from(q), f64::from(v)));
        let sum: f64 = match self.metric {
            Metric::L2 => pairs.map(|(q, v)| (q - v) * (q - v)).sum(),
            Metric::Cosine | Metric::InnerProduct => pairs.map(|(q, v)| q * v).sum(),
        };
        distance(self.metric, sum, row_norm)
    }

    /// # Safety
    /// As `score`.
    unsafe fn decode_exact(&mut self, rerank: Rerank, row: &ExactRow) {
        let bytes = codec::exact_bytes(rerank, self.decoded.len());
        // SAFETY: the copy is that long and is not written meanwhile, the caller says.
        let bytes = unsafe { std::slice::from_raw_parts(row.bytes, bytes) };
        codec::read_exact(rerank, row.scale, bytes, &mut self.decoded);
    }

    /// # Safety
    /// As `refine`.
    unsafe fn decode_codes(&mut self, precision: Precision, row: &CodeRow) {
        let bytes = codec::code_bytes(precision, self.decoded.len());
        // SAFETY: the codes are that long and are not written meanwhile, the caller says.
        let codes = unsafe { std::slice::from_raw_parts(row.codes, bytes) };
        codec::decode(precision, row.scale, codes, &mut self.decoded);
    }
}

impl Default for ExactQuery {
    fn default() -> Self {
        ExactQuery::new()
    }
}

fn distance(metric: Metric, dot_or_l2: f64, row_norm: f64) -> f32 {
    match metric {
        Metric::Cosine if row_norm > 0.0 => (1.0 - dot_or_l2 / row_norm).clamp(0.0, 2.0) as f32,
        Metric::Cosine => 1.0,
        Metric::InnerProduct => codec::saturate(-dot_or_l2),
        Metric::L2 => codec::saturate(dot_or_l2),
    }
}
