//! Sketches: one bit a component, in front of a record's codes.
//!
//! Four of five neighbours that a walk looks at are too far to get into its beam. Their sketches say so, and lie with the
//! head in the first lines of the slot: the codes, many lines with most dimensions, are then never asked for.
//!
//! A sketch stands for the vector `level - zero`, with a level of 0 or 1 a component. Its dot product with a query, times
//! `gain`, estimates that of the codes without bias, and the error is `gain` times the query's length times `error` in the
//! mean: the estimator of RaBitQ (Gao and Long, arXiv:2405.12497), with levels fitted to each vector in the place of a rotation.

use crate::options::Precision;

/// Components of a block; the last one is filled with level 0.
const BLOCK: usize = 128;
/// Vectors with fewer have no sketch: of those with 128, whose codes take two lines, looking at all of them was as fast.
const DIMS_MIN: u32 = 129;
/// `zero` in the file is in steps of this.
const ZERO_STEP: f32 = 1.0 / 16.0;
/// `error` in the file is in steps of this.
const ERROR_STEP: f32 = 1.0 / 256.0;
/// `error` of a sketch that says nothing of its vector.
const ERROR_UNKNOWN: u8 = u8::MAX;
/// `gain` in the file is the top of an f32 less this: 11 bits of fraction, exponents from -15 on.
const GAIN_BASE: u32 = (127 - 15) << 23;
/// Bits of an f32 below those that `gain` has in the file.
const GAIN_SHIFT: u32 = 12;
/// Fits are improved so many times.
const ROUNDS: usize = 4;
/// Partial sums, so that loops vectorise.
const LANES: usize = 8;

/// Bytes of the sketches of a plane's records, without their terms; 0: they have none.
pub fn bytes(precision: Precision, dims: u32) -> u32 {
    match precision {
        Precision::Int8 if dims >= DIMS_MIN => dims.div_ceil(BLOCK as u32) * BLOCK as u32 / 8,
        Precision::Int8 | Precision::Int16 | Precision::F16 | Precision::F32 => 0,
    }
}

/// What an estimate takes besides the dot product of the levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    pub gain: f32,
    pub zero: f32,
    /// Mean error of the dot product before `gain`, over the query's length; infinite when nothing is known.
    pub error: f32,
}

impl Terms {
    /// From the file: `gain` in bits 0 to 15, `zero` in 16 to 23, `error` in 24 to 31.
    #[inline(always)]
    pub fn decode(word: u32) -> Terms {
        let error = (word >> 24) as u8;
        Terms {
            gain: f32::from_bits(((word & 0xFFFF) << GAIN_SHIFT) + GAIN_BASE),
            zero: f32::from((word >> 16) as i8) * ZERO_STEP,
            error: if error == ERROR_UNKNOWN { f32::INFINITY } else { f32::from(error) * ERROR_STEP },
        }
    }

    /// What `decode` reads.
    pub fn encode(self) -> u32 {
        let top = (self.gain.to_bits().saturating_sub(GAIN_BASE) + (1 << (GAIN_SHIFT - 1))) >> GAIN_SHIFT;
        let zero = (self.zero / ZERO_STEP) as i8;
        // Rounded up: an error too small is the one that does harm. Casts saturate.
        let error = (self.error / ERROR_STEP).ceil() as u8;
        top.min(0xFFFF) | u32::from(zero as u8) << 16 | u32::from(error) << 24
    }
}

/// Writes the levels of biased int8 codes to zeroed or used memory, and returns their terms. The same codes give the same
/// sketch on every machine.
///
/// # Panics
/// When `levels` is not `bytes` long.
pub fn write(codes: &[u8], levels: &mut [u8]) -> Terms {
    assert_eq!(levels.len(), codes.len().div_ceil(BLOCK) * BLOCK / 8, "room for exactly the levels");
    let values: Vec<f32> = codes.iter().map(|code| f32::from(*code) - 128.0).collect();
    let fit = Fit::of(&values);
    levels.fill(0);
    // Component `16 * j + i` of a block is bit j of byte i.
    for (block, out) in values.chunks(BLOCK).zip(levels.chunks_mut(BLOCK / 8)) {
        for (j, values) in block.chunks(BLOCK / 8).enumerate() {
            for (byte, value) in out.iter_mut().zip(values) {
                *byte |= u8::from(*value >= fit.threshold) << j;
            }
        }
    }
    fit.terms(values.len())
}

/// Levels for a vector, and how well they stand for it.
#[derive(Clone, Copy)]
struct Fit {
    /// Values from here on have level 1.
    threshold: f32,
    zero: f32,
    /// Length of the vector, and its dot product with the levels less `zero`.
    norm: f32,
    dot: f32,
    cosine: f32,
}

impl Fit {
    /// Begins with the mean for a threshold, and moves it to the middle of the two levels' means (Lloyd's rule).
    fn of(values: &[f32]) -> Fit {
        let count = values.len() as f32;
        let sum = lanes(values, |x| x);
        let norm = lanes(values, |x| x * x).sqrt();
        let mut threshold = sum / count;
        let mut best = Fit { threshold, zero: 0.0, norm, dot: 0.0, cosine: 0.0 };
        for _ in 0..ROUNDS {
            let above = lanes(values, |x| if x >= threshold { 1.0 } else { 0.0 });
            let sum_above = lanes(values, |x| if x >= threshold { x } else { 0.0 });
            let below = count - above;
            if above == 0.0 || below == 0.0 {
                break;
            }
            let (low, high) = ((sum - sum_above) / below, sum_above / above);
            let zero = (-low / (high - low) / ZERO_STEP).round().clamp(-128.0, 127.0) * ZERO_STEP;
            let dot = sum_above - zero * sum;
            let length = (above * (1.0 - zero) * (1.0 - zero) + below * zero * zero).sqrt();
            let cosine = if norm > 0.0 && length > 0.0 { dot / (norm * length) } else { 0.0 };
            if cosine > best.cosine {
                best = Fit { threshold, zero, norm, dot, cosine };
            }
            threshold = (low + high) / 2.0;
        }
        best
    }

    fn terms(&self, dims: usize) -> Terms {
        if self.cosine <= 0.0 {
            return Terms { gain: 0.0, zero: 0.0, error: f32::INFINITY };
        }
        let gain = self.norm * self.norm / self.dot;
        let cosine = self.cosine.min(1.0);
        let tangent = (1.0 - cosine * cosine).sqrt() / cosine;
        let error = tangent * self.norm / ((dims.max(2) - 1) as f32).sqrt() / gain;
        Terms { gain, zero: self.zero, error }
    }
}

/// The sum of `term` over values, in a fixed order.
#[inline(always)]
fn lanes(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += term(*value);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| term(*value)).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::distance::{Query, kernels};
    use crate::graph::beam::CAUTION;
    use crate::options::Metric;
    use proptest::prelude::*;

    const DIMS: usize = 200;

    /// A query, a row and its sketch: the distance, and the least it can be with this much caution.
    fn distances(metric: Metric, query: &[f32], row: &[f32], caution: f32) -> (f32, f32) {
        let norm = |v: &[f32]| codec::checked_norm(v).unwrap();
        let mut prepared = Query::new();
        prepared.set_vector(Precision::Int8, metric, query, norm(query));
        let mut codes = vec![0; row.len()];
        let encoded = codec::encode(Precision::Int8, metric, row, norm(row), &mut codes);
        let mut levels = vec![0xAA; bytes(Precision::Int8, row.len() as u32) as usize];
        let terms = Terms::decode(write(&codes, &mut levels).encode());
        let (mut dot, mut sketched) = ([0.0], [0.0]);
        // SAFETY: codes and levels are those of a row as long as the query.
        unsafe {
            (kernels().dot_int8)(&prepared, &[codes.as_ptr()], &mut dot);
            (kernels().dot_sketch)(&prepared, &[levels.as_ptr()], &mut sketched);
        }
        let distance = prepared.distance(encoded.factor, encoded.bias, dot[0]);
        (distance, prepared.screen(caution).least(encoded.factor, encoded.bias, terms, sketched[0]))
    }

    fn normal(random: &mut proptest::test_runner::TestRng, count: usize) -> Vec<f32> {
        use proptest::prelude::Rng;
        let mut uniform = || (random.next_u32() >> 8) as f32 / (1u32 << 24) as f32;
        (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn estimates_are_unbiased_and_their_errors_as_stated() {
        let mut random = proptest::test_runner::TestRng::deterministic_rng(Default::default());
        for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
            for mean in [0.0f32, 1.0] {
                let (mut off, mut squares, mut stated) = (0.0f64, 0.0f64, 0.0f64);
                let rounds = 2000;
                for _ in 0..rounds {
                    let query = normal(&mut random, DIMS);
                    let row: Vec<f32> = normal(&mut random, DIMS).iter().map(|x| x + mean).collect();
                    let (distance, least) = distances(metric, &query, &row, 0.0);
                    let (_, less) = distances(metric, &query, &row, 1.0);
                    off += f64::from(least - distance);
                    squares += f64::from(least - distance).powi(2);
                    stated += f64::from(least - less).powi(2);
                }
                let (error, stated) =
                    ((squares / f64::from(rounds)).sqrt(), (stated / f64::from(rounds)).sqrt());
                let bias = off.abs() / f64::from(rounds) / error;
                assert!(bias < 0.1, "{metric:?} mean {mean}: off by {bias} errors in the mean");
                assert!(
                    (0.9..1.15).contains(&(error / stated)),
                    "{metric:?} mean {mean}: {error} for {stated}"
                );
            }
        }
    }

    #[test]
    fn a_vector_is_never_too_far_from_itself() {
        let mut random = proptest::test_runner::TestRng::deterministic_rng(Default::default());
        let mut vectors: Vec<Vec<f32>> = (0..50).map(|_| normal(&mut random, DIMS)).collect();
        let spike = |at: usize, rest: f32| (0..DIMS).map(|i| if i == at { 1.0 } else { rest }).collect();
        vectors.extend([spike(3, 0.0), spike(3, 1e-3), vec![1.0; DIMS], vec![-1.0; DIMS], vec![0.0; DIMS]]);
        vectors.push((0..DIMS).map(|i| 100.0 + (i % 7) as f32).collect());
        vectors.push((0..DIMS).map(|i| 1e-30 * i as f32).collect());
        for vector in &vectors {
            for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
                let (distance, least) = distances(metric, vector, vector, CAUTION);
                assert!(
                    least.is_nan() || least <= distance,
                    "{metric:?} {least} for {distance}: {:?}",
                    &vector[..8]
                );
            }
        }
    }

    proptest! {
        #[test]
        fn terms_survive_the_file(gain in 1e-3f32..1e4, zero in -128i32..128, error in 0.0f32..2.0) {
            let terms = Terms { gain, zero: zero as f32 * ZERO_STEP, error };
            let read = Terms::decode(terms.encode());
            prop_assert!((read.gain / gain - 1.0).abs() < 3e-4);
            prop_assert_eq!(read.zero, terms.zero);
            prop_assert!(read.error >= error && (read.error - error < 1.01 * ERROR_STEP || read.error.is_infinite() && error > 0.99));
        }

        #[test]
        fn any_codes_give_a_sketch_that_decodes(codes in prop::collection::vec(any::<u8>(), 1..400)) {
            let mut levels = vec![0xFF; codes.len().div_ceil(BLOCK) * BLOCK / 8];
            let terms = Terms::decode(write(&codes, &mut levels).encode());
            prop_assert!(terms.gain > 0.0 && terms.zero.is_finite() && terms.error >= 0.0);
        }
    }
}
