//! Traversal and final distances against their definitions, over every magnitude that f32 has.

use proptest::prelude::*;

use crate::codec::{self, Encoded};
use crate::distance::{CodeRow, DotRows, ExactQuery, ExactRow, Query, kernels};
use crate::options::{Metric, Precision, Rerank};

const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];

struct Row {
    codes: Vec<u8>,
    terms: Encoded,
    decoded: Vec<f32>,
}

fn encode(precision: Precision, metric: Metric, vector: &[f32]) -> Row {
    let mut codes = vec![0; codec::code_bytes(precision, vector.len())];
    let norm = codec::checked_norm(vector).unwrap();
    let terms = codec::encode(precision, metric, vector, norm, &mut codes);
    let mut decoded = vec![0.0; vector.len()];
    codec::decode(precision, terms.scale, &codes, &mut decoded);
    Row { codes, terms, decoded }
}

fn traversal_kernel(precision: Precision) -> DotRows {
    match precision {
        Precision::Int8 => kernels().dot_int8,
        Precision::Int16 => kernels().dot_int16,
        Precision::F16 => kernels().dot_f16,
        Precision::F32 => kernels().dot_f32,
    }
}

fn traverse(precision: Precision, query: &Query, row: &Row) -> f32 {
    let mut dot = [0.0];
    // SAFETY: the row was encoded with this precision from a vector as long as the query.
    unsafe { traversal_kernel(precision)(query, &[row.codes.as_ptr()], &mut dot) };
    query.distance(row.terms.factor, row.terms.bias, dot[0])
}

fn as_query(precision: Precision, metric: Metric, row: &Row) -> Query {
    let Encoded { factor, bias, scale, .. } = row.terms;
    let mut query = Query::new();
    // SAFETY: the row was encoded with this precision from a vector of this length.
    unsafe { query.set_row(precision, metric, row.decoded.len(), row.codes.as_ptr(), factor, bias, scale) };
    query
}

fn from_vector(precision: Precision, metric: Metric, vector: &[f32]) -> Query {
    let mut query = Query::new();
    query.set_vector(precision, metric, vector, codec::checked_norm(vector).unwrap());
    query
}

/// The definition, and the magnitude that errors are relative to.
fn define(metric: Metric, a: &[f32], b: &[f32]) -> (f64, f64) {
    let wide = |vector: &[f32]| vector.iter().map(|&component| f64::from(component)).collect::<Vec<_>>();
    let (a, b) = (wide(a), wide(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (aa, bb) = (dot(&a, &a), dot(&b, &b));
    match metric {
        Metric::Cosine if aa == 0.0 || bb == 0.0 => (1.0, 0.0),
        Metric::Cosine => (1.0 - dot(&a, &b) / aa.sqrt() / bb.sqrt(), 1.0),
        Metric::InnerProduct => (-dot(&a, &b), aa.sqrt() * bb.sqrt()),
        Metric::L2 => (a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum(), aa + bb),
    }
}

fn components(dims: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop_oneof![6 => -1.0f32..1.0, 1 => Just(0.0f32)], dims)
}

/// Two vectors of one length and of like magnitude, not too near the ends of f32 for their products.
fn pairs() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    let magnitude = prop_oneof![Just(1.0f32), Just(1e-3), Just(300.0), Just(1e-12), Just(1e15)];
    ((1..150usize).prop_flat_map(|dims| (components(dims), components(dims))), magnitude).prop_map(
        |((a, b), m)| {
            let scale = |vector: Vec<f32>| vector.into_iter().map(|component| component * m).collect();
            (scale(a), scale(b))
        },
    )
}

/// Vectors of any magnitude, to the ends of f32.
fn any_pairs() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    let exponents = (-149..124i32, -149..124i32);
    ((1..100usize).prop_flat_map(|dims| (components(dims), components(dims))), exponents).prop_map(
        |((a, b), (x, y))| {
            let scale = |vector: Vec<f32>, exponent: i32| {
                vector
                    .into_iter()
                    .map(|component| (f64::from(component) * 2.0f64.powi(exponent)) as f32)
                    .collect()
            };
            (scale(a, x), scale(b, y))
        },
    )
}

proptest! {
    #[test]
    fn traversal_distances_are_those_of_the_decoded_vectors((a, b) in pairs()) {
        for (metric, precision) in METRICS.into_iter().flat_map(|m| PRECISIONS.map(|p| (m, p))) {
            let (row_a, row_b) = (encode(precision, metric, &a), encode(precision, metric, &b));
            let forth = traverse(precision, &as_query(precision, metric, &row_a), &row_b);
            let back = traverse(precision, &as_query(precision, metric, &row_b), &row_a);
            let (expected, magnitude) = define(metric, &row_a.decoded, &row_b.decoded);
            let bound = 4e-6 * magnitude;
            prop_assert!((f64::from(forth) - expected).abs() <= bound, "{metric:?} {precision:?}: {forth} {expected}");
            prop_assert!((f64::from(forth) - f64::from(back)).abs() <= bound);
            if precision == Precision::Int8 {
                prop_assert_eq!(forth, back);
            }
            // A caller's query is quantised for int8 alone.
            let query = from_vector(precision, metric, &a);
            let used = if precision == Precision::Int8 { &row_a.decoded } else { &a };
            let (expected, magnitude) = define(metric, used, &row_b.decoded);
            let found = traverse(precision, &query, &row_b);
            prop_assert!((f64::from(found) - expected).abs() <= 4e-6 * magnitude, "{metric:?} {precision:?}");
        }
    }

    #[test]
    fn rows_are_at_distance_zero_from_themselves((a, _) in any_pairs()) {
        for precision in PRECISIONS {
            let row = encode(precision, Metric::Cosine, &a);
            // Traversal may misjudge f32 codes whose norm has no reciprocal in f32; see `codec::reciprocal`.
            if precision == Precision::F32 && row.terms.factor > 1e30 {
                continue;
            }
            let found = traverse(precision, &as_query(precision, Metric::Cosine, &row), &row);
            prop_assert!(found >= 0.0);
            let expected = if row.terms.norm == 0.0 { 1.0 } else { 0.0 };
            prop_assert!((found - expected).abs() < 4e-6, "{precision:?} {found}");
        }
    }

    #[test]
    fn every_distance_is_a_finite_number((a, b) in any_pairs()) {
        for (metric, precision) in METRICS.into_iter().flat_map(|m| PRECISIONS.map(|p| (m, p))) {
            let (row_a, row_b) = (encode(precision, metric, &a), encode(precision, metric, &b));
            for query in [as_query(precision, metric, &row_a), from_vector(precision, metric, &a)] {
                let found = traverse(precision, &query, &row_b);
                prop_assert!(found.is_finite() && (metric == Metric::InnerProduct || found >= 0.0));
            }
        }
    }

    #[test]
    fn exact_scores_are_the_distances_of_the_copies((a, b) in any_pairs(), count in 0..40usize) {
        let norm = codec::checked_norm(&a).unwrap();
        let mut query = ExactQuery::new();
        for (metric, rerank) in METRICS.into_iter().flat_map(|m| [Rerank::F16, Rerank::F32].map(|r| (m, r))) {
            query.set(metric, &a, norm);
            let mut bytes = vec![0; codec::exact_bytes(rerank, b.len())];
            let scale = codec::write_exact(rerank, &b, &mut bytes);
            let mut copy = vec![0.0; b.len()];
            codec::read_exact(rerank, scale, &bytes, &mut copy);
            let norm = codec::exact_norm(rerank, scale, &bytes);
            let rows = vec![ExactRow { bytes: bytes.as_ptr(), scale, norm }; count];
            let mut found = vec![f32::NAN; count];
            // SAFETY: the copies are of this kind and of a vector as long as the query.
            unsafe { query.score(rerank, &rows, &mut found) };
            check_final(metric, &a, &copy, &found)?;
        }
    }

    #[test]
    fn refined_distances_are_those_of_the_decoded_codes((a, b) in any_pairs()) {
        let norm = codec::checked_norm(&a).unwrap();
        let mut query = ExactQuery::new();
        for (metric, precision) in METRICS.into_iter().flat_map(|m| PRECISIONS.map(|p| (m, p))) {
            query.set(metric, &a, norm);
            let row = encode(precision, metric, &b);
            let code_row = CodeRow {
                codes: row.codes.as_ptr(),
                scale: row.terms.scale,
                factor: row.terms.factor,
            };
            let mut found = [f32::NAN; 2];
            // SAFETY: the codes are of this precision and of a vector as long as the query.
            unsafe { query.refine(precision, &[code_row; 2], &mut found) };
            // The decoded vector is rounded to f32, which subnormal components feel.
            if codec::norm(&row.decoded) > 1e-36 || precision == Precision::F32 {
                check_final(metric, &a, &row.decoded, &found)?;
            }
        }
    }
}

#[test]
fn products_of_the_smallest_numbers_are_within_what_is_tolerated() {
    // What random vectors came by once.
    let (a, b) = ([0.0, -6e-45], [767_900.7, 2348.4773]);
    let mut query = ExactQuery::new();
    query.set(Metric::InnerProduct, &a, codec::checked_norm(&a).unwrap());
    let mut bytes = vec![0; codec::exact_bytes(Rerank::F16, 2)];
    let scale = codec::write_exact(Rerank::F16, &b, &mut bytes);
    let mut copy = [0.0; 2];
    codec::read_exact(Rerank::F16, scale, &bytes, &mut copy);
    let norm = codec::exact_norm(Rerank::F16, scale, &bytes);
    let mut found = [f32::NAN];
    // SAFETY: the copy is of this kind and as long as the query.
    unsafe { query.score(Rerank::F16, &[ExactRow { bytes: bytes.as_ptr(), scale, norm }], &mut found) };
    check_final(Metric::InnerProduct, &a, &copy, &found).unwrap();
}

fn check_final(metric: Metric, a: &[f32], b: &[f32], found: &[f32]) -> Result<(), TestCaseError> {
    let (expected, magnitude) = define(metric, a, b);
    let end = f64::from(f32::MAX);
    let largest = b.iter().fold(1.0, |largest, component| f64::max(largest, f64::from(component.abs())));
    for &found in found {
        prop_assert!(found.is_finite());
        // Sums of squares are relative to themselves: final L2 distances do not cancel.
        let magnitude = if metric == Metric::L2 { expected } else { magnitude };
        // Products below the smallest subnormal are lost, whatever one does, and what is left is multiplied by a row's scale,
        // which is no larger than its largest component.
        let bound = 4e-6 * magnitude + 2.0f64.powi(-149) * a.len() as f64 * largest;
        let error = (f64::from(found) - expected.clamp(-end, end)).abs();
        prop_assert!(error <= bound, "{metric:?}: {found:e} for {expected:e}, off by {error:e}");
    }
    Ok(())
}

#[test]
fn a_zero_vector_is_at_cosine_distance_one_from_everything() {
    let zero = [0.0f32; 20];
    let other = [0.5f32; 20];
    for precision in PRECISIONS {
        let (row, zero_row) =
            (encode(precision, Metric::Cosine, &other), encode(precision, Metric::Cosine, &zero));
        let as_zero = as_query(precision, Metric::Cosine, &zero_row);
        assert_eq!(traverse(precision, &as_zero, &row), 1.0);
        assert_eq!(traverse(precision, &as_zero, &zero_row), 1.0);
        assert_eq!(traverse(precision, &as_query(precision, Metric::Cosine, &row), &zero_row), 1.0);
        assert_eq!(traverse(precision, &from_vector(precision, Metric::Cosine, &other), &zero_row), 1.0);
        assert_eq!(traverse(precision, &from_vector(precision, Metric::Cosine, &zero), &row), 1.0);
    }
}

#[test]
fn tiny_and_huge_queries_have_the_distances_of_ordinary_ones() {
    let row = [0.3f32, -0.5, 0.8, 0.1, 0.0];
    let query = [0.2f32, 0.9, -0.4, 0.6, 0.1];
    for precision in PRECISIONS {
        let row = encode(precision, Metric::Cosine, &row);
        let expected = traverse(precision, &from_vector(precision, Metric::Cosine, &query), &row);
        for magnitude in [1e-20f32, 1e18, 1e-35, 2e38] {
            let scaled = query.map(|component| component * magnitude);
            let found = traverse(precision, &from_vector(precision, Metric::Cosine, &scaled), &row);
            assert!((found - expected).abs() < 1e-6, "{precision:?} {magnitude}: {found} {expected}");
        }
    }
}
