//! Vectors to codes and exact copies, and back.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::{Error, Result};
use crate::options::{Metric, Precision, Rerank};

/// Added to an int8 code in storage.
const INT8_BIAS: u8 = 0x80;
const INT8_MAX: f64 = 127.0;
const INT16_MAX: f64 = 32_767.0;
/// The largest component of an f16 code lies in [2^14, 2^15): the top of the half range, short of overflow when rounded.
const F16_EXPONENT: i32 = 14;
/// Largest components that an f16 exact copy keeps without a scale. Below 2^-9 the smallest halves, 2^-24 apart, would
/// begin to matter beside the rounding of the largest component.
const F16_UNSCALED: std::ops::Range<f64> = 1.0 / 512.0..32_768.0;

/// What a record keeps beside its codes; `distance::Query` tells what the terms mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoded {
    /// A component is its code times this. 0 for a zero vector, except in f32 and f16 codes.
    pub scale: f32,
    /// Norm of the caller's vector.
    pub norm: f32,
    /// Multiplies the dot.
    pub factor: f32,
    /// Added to the distance.
    pub bias: f32,
}

/// What quantising found out about the codes.
pub(crate) struct CodeNorm {
    pub scale: f32,
    /// Norm of the codes, in code units.
    pub norm: f64,
    pub sum: i32,
}

/// The vector's norm, after checking that every component is finite and that the norm fits f32.
pub fn checked_norm(vector: &[f32]) -> Result<f64> {
    let norm = norm(vector);
    if norm <= f64::from(f32::MAX) {
        return Ok(norm);
    }
    // f64 holds the squares of every f32, so only a component that is not finite makes the sum so.
    Err(Error::NotFinite { component: vector.iter().position(|component| !component.is_finite()) })
}

/// Euclidean norm in f64: squares of the smallest and sums of 65,536 squares of the largest f32 are in its range.
pub(crate) fn norm(vector: &[f32]) -> f64 {
    sum_of_squares(vector, f64::from).sqrt()
}

/// In eight partial sums, so that it vectorises.
fn sum_of_squares<T: Copy>(items: &[T], value: impl Fn(T) -> f64) -> f64 {
    let mut sums = [0.0f64; 8];
    let (chunks, rest) = items.as_chunks::<8>();
    for chunk in chunks {
        for (sum, &item) in sums.iter_mut().zip(chunk) {
            *sum += value(item) * value(item);
        }
    }
    for (sum, &item) in sums.iter_mut().zip(rest) {
        *sum += value(item) * value(item);
    }
    sums.iter().sum()
}

/// The largest magnitude among components. Magnitudes of floats sort as their bits do, and integers vectorise.
fn largest(vector: &[f32]) -> f64 {
    let bits = vector.iter().map(|component| (component.to_bits() & 0x7FFF_FFFF) as i32).fold(0, i32::max);
    f64::from(f32::from_bits(bits as u32))
}

/// Nearest f32, with what lies outside its range at its ends.
pub(crate) fn saturate(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// `1 / norm`, and 0 for the norm 0.
///
/// Saturates: norms of f32 codes below 2.9e-39 have a reciprocal that f32 cannot hold. Traversal then sees such rows at
/// too large an angle, but at a finite distance, and final distances do not use the factor.
pub(crate) fn reciprocal(norm: f64) -> f32 {
    if norm > 0.0 { saturate(norm.recip()) } else { 0.0 }
}

/// Bytes of a vector's codes.
pub fn code_bytes(precision: Precision, dims: usize) -> usize {
    match precision {
        Precision::Int8 => dims,
        Precision::Int16 | Precision::F16 => 2 * dims,
        Precision::F32 => 4 * dims,
    }
}

/// Bytes of a vector's exact copy.
pub fn exact_bytes(rerank: Rerank, dims: usize) -> usize {
    match rerank {
        Rerank::None => 0,
        Rerank::F16 => 2 * dims,
        Rerank::F32 => 4 * dims,
    }
}

/// The smallest f32 that reaches `largest` in `steps` steps.
///
/// Rounded up, and codes are taken with the rounded scale: no code then exceeds `steps`, and a decoded component is off
/// by half a scale at most even where f32 is coarse. Vectors so small that the scale is a subnormal keep every digit,
/// as their components are whole multiples of the smallest subnormal.
fn symmetric_scale(largest: f64, steps: f64) -> f32 {
    let scale = (largest / steps) as f32;
    if f64::from(scale) * steps < largest { scale.next_up() } else { scale }
}

/// Writes a code a component, at most `steps` in magnitude, and returns the scale.
fn quantise<C>(vector: &[f32], steps: f64, codes: &mut [C], convert: impl Fn(u64) -> C) -> f32 {
    // Adding this leaves an f64 no bits for a fraction, so the sum is rounded to the nearest integer, ties to even, and
    // its low bits are that integer in two's complement. Baseline x86-64 has no instruction for rounding, and a call
    // of the mathematics library for each component costs more than the rest of the encoding.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let scale = symmetric_scale(largest(vector), steps);
    // The reciprocal of a subnormal f32 is an ordinary f64.
    let steps_per_unit = if scale > 0.0 { f64::from(scale).recip() } else { 0.0 };
    for (code, &component) in codes.iter_mut().zip(vector) {
        *code = convert((f64::from(component) * steps_per_unit + ROUND).to_bits());
    }
    scale
}

/// Symmetric int8 codes, not biased.
pub(crate) fn quantise_int8(vector: &[f32], codes: &mut [i8]) -> CodeNorm {
    let scale = quantise(vector, INT8_MAX, codes, |code| code as i8);
    let norm = int8_norm(codes.iter().copied());
    CodeNorm { scale, norm, sum: codes.iter().map(|&code| i32::from(code)).sum() }
}

/// In integers: 65,536 squares of 127 are below 2^31.
fn int8_norm(codes: impl Iterator<Item = i8>) -> f64 {
    f64::from(codes.map(|code| i32::from(code) * i32::from(code)).sum::<i32>()).sqrt()
}

/// A power of two that brings `largest` to [2^14, 2^15), or as near as the exponents of f32 allow; 1 for zero.
fn half_scale(largest: f64) -> f32 {
    if largest == 0.0 {
        return 1.0;
    }
    // An f32 is a normal f64, so the exponent field is its binary logarithm, rounded down.
    let exponent = (largest.to_bits() >> 52) as i32 - 1023;
    // f32 ends at 2^-149. Vectors below 2^-135 stay whole multiples of that, and so exact up to 11 bits, as they are.
    2.0f64.powi((exponent - F16_EXPONENT).max(-149)) as f32
}

/// Components converted at once: the slice conversions of `half` use the processor's, many times faster than one by one.
const CHUNK: usize = 64;

/// Writes `vector / scale` as halves and returns their norm.
fn write_halves(vector: &[f32], scale: f32, out: &mut [u8]) -> f64 {
    // Exact: a power of two. Quotients that f32 cannot hold are far below the smallest half.
    let reciprocal = f64::from(scale).recip();
    let (mut singles, mut halves) = ([0.0f32; CHUNK], [f16::ZERO; CHUNK]);
    let mut squares = 0.0;
    for (components, out) in vector.chunks(CHUNK).zip(out.chunks_mut(2 * CHUNK)) {
        let (singles, halves) = (&mut singles[..components.len()], &mut halves[..components.len()]);
        for (single, &component) in singles.iter_mut().zip(components) {
            *single = (f64::from(component) * reciprocal) as f32;
        }
        halves.convert_from_f32_slice(singles);
        for (bytes, half) in out.as_chunks_mut::<2>().0.iter_mut().zip(&*halves) {
            *bytes = half.to_le_bytes();
        }
        halves.convert_to_f32_slice(singles);
        squares += sum_of_squares(singles, f64::from);
    }
    squares.sqrt()
}

/// Writes the codes of a vector whose norm `checked_norm` gave.
///
/// # Panics
/// When `codes` is not `code_bytes` long.
pub fn encode(precision: Precision, metric: Metric, vector: &[f32], norm: f64, codes: &mut [u8]) -> Encoded {
    assert_eq!(codes.len(), code_bytes(precision, vector.len()), "room for exactly the codes");
    let (scale, code_norm) = match precision {
        Precision::Int8 => {
            let scale = quantise(vector, INT8_MAX, codes, |code| code as u8 ^ INT8_BIAS);
            (scale, int8_norm(codes.iter().map(|byte| (byte ^ INT8_BIAS) as i8)))
        }
        Precision::Int16 => {
            let (codes, _) = codes.as_chunks_mut::<2>();
            let scale = quantise(vector, INT16_MAX, codes, |code| (code as i16).to_le_bytes());
            (scale, sum_of_squares(codes, |code| f64::from(i16::from_le_bytes(code))).sqrt())
        }
        Precision::F16 => {
            let scale = half_scale(largest(vector));
            (scale, write_halves(vector, scale, codes))
        }
        Precision::F32 => {
            write_singles(vector, codes);
            (1.0, norm)
        }
    };
    let (factor, bias) = factor_and_bias(metric, scale, code_norm);
    Encoded { scale, norm: norm as f32, factor, bias }
}

/// What distances to a row take besides the dot product of codes.
fn factor_and_bias(metric: Metric, scale: f32, code_norm: f64) -> (f32, f32) {
    let decoded_norm = code_norm * f64::from(scale);
    match metric {
        Metric::Cosine => (reciprocal(code_norm), 0.0),
        Metric::InnerProduct => (scale, 0.0),
        Metric::L2 => (scale, saturate(decoded_norm * decoded_norm)),
    }
}

/// Writes codes that somebody else has made: signed bytes, or little-endian 16-bit integers.
///
/// # Panics
/// When `codes` is not as long as `raw`.
pub fn encode_raw(precision: Precision, metric: Metric, raw: &[u8], scale: f32, codes: &mut [u8]) -> Encoded {
    codes.copy_from_slice(raw);
    let code_norm = if precision == Precision::Int8 {
        codes.iter_mut().for_each(|code| *code ^= INT8_BIAS);
        int8_norm(raw.iter().map(|byte| *byte as i8))
    } else {
        sum_of_squares(raw.as_chunks::<2>().0, |code| f64::from(i16::from_le_bytes(code))).sqrt()
    };
    let (factor, bias) = factor_and_bias(metric, scale, code_norm);
    Encoded { scale, norm: saturate(code_norm * f64::from(scale)), factor, bias }
}

/// The vector that `codes` stand for.
///
/// # Panics
/// When `codes` is not `code_bytes` long for `out`.
pub fn decode(precision: Precision, scale: f32, codes: &[u8], out: &mut [f32]) {
    assert_eq!(codes.len(), code_bytes(precision, out.len()), "codes of exactly this vector");
    // In f64: a scale that was rounded up takes components near the largest f32 past it.
    let scale = f64::from(scale);
    match precision {
        Precision::Int8 => {
            for (component, &byte) in out.iter_mut().zip(codes) {
                *component = saturate(f64::from((byte ^ INT8_BIAS) as i8) * scale);
            }
        }
        Precision::Int16 => {
            for (component, &code) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
                *component = saturate(f64::from(i16::from_le_bytes(code)) * scale);
            }
        }
        Precision::F16 => read_halves(codes, scale, out),
        Precision::F32 => read_singles(codes, out),
    }
}

fn read_halves(bytes: &[u8], scale: f64, out: &mut [f32]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (out, bytes) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
        let halves = &mut halves[..out.len()];
        for (half, &bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(bytes);
        }
        halves.convert_to_f32_slice(out);
        out.iter_mut().for_each(|component| *component = saturate(f64::from(*component) * scale));
    }
}

fn write_singles(vector: &[f32], out: &mut [u8]) {
    for (bytes, component) in out.as_chunks_mut::<4>().0.iter_mut().zip(vector) {
        *bytes = component.to_le_bytes();
    }
}

fn read_singles(bytes: &[u8], out: &mut [f32]) {
    for (component, &bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *component = f32::from_le_bytes(bytes);
    }
}

/// Writes the exact copy and returns its scale: a power of two, and 1 for everything but halves of unusual size.
///
/// # Panics
/// When `out` is not `exact_bytes` long.
pub fn write_exact(rerank: Rerank, vector: &[f32], out: &mut [u8]) -> f32 {
    assert_eq!(out.len(), exact_bytes(rerank, vector.len()), "room for exactly the copy");
    match rerank {
        Rerank::None => 1.0,
        Rerank::F16 => {
            // Copies of one scale can be compared with a query as they lie, so ordinary vectors all have the same.
            let largest = largest(vector);
            let scale = if F16_UNSCALED.contains(&largest) { 1.0 } else { half_scale(largest) };
            write_halves(vector, scale, out);
            scale
        }
        Rerank::F32 => {
            write_singles(vector, out);
            1.0
        }
    }
}

/// The vector that an exact copy stands for: for f32, the caller's bits.
///
/// # Panics
/// When `bytes` is not `exact_bytes` long for `out`.
pub fn read_exact(rerank: Rerank, exact_scale: f32, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), exact_bytes(rerank, out.len()), "the copy of exactly this vector");
    match rerank {
        Rerank::None => {}
        Rerank::F16 => read_halves(bytes, f64::from(exact_scale), out),
        Rerank::F32 => read_singles(bytes, out),
    }
}

/// Norm of an exact copy, to divide its dots by. For halves it is not the caller's norm: dividing by that would leave
/// the rounding of every component in the cosine, where dividing by the norm as rounded leaves only its square.
pub fn exact_norm(rerank: Rerank, exact_scale: f32, bytes: &[u8]) -> f32 {
    let component_bytes = exact_bytes(rerank, 1);
    if component_bytes == 0 {
        return 0.0;
    }
    let mut decoded = [0.0f32; CHUNK];
    let squares: f64 = bytes
        .chunks(CHUNK * component_bytes)
        .map(|bytes| {
            let decoded = &mut decoded[..bytes.len() / component_bytes];
            read_exact(rerank, exact_scale, bytes, decoded);
            sum_of_squares(decoded, f64::from)
        })
        .sum();
    saturate(squares.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];

    fn round_trip(precision: Precision, vector: &[f32]) -> (Encoded, Vec<u8>, Vec<f32>) {
        let mut codes = vec![0; code_bytes(precision, vector.len())];
        let norm = checked_norm(vector).unwrap();
        let encoded = encode(precision, Metric::L2, vector, norm, &mut codes);
        let mut decoded = vec![f32::NAN; vector.len()];
        decode(precision, encoded.scale, &codes, &mut decoded);
        (encoded, codes, decoded)
    }

    /// Vectors whose components span many magnitudes, about one common, arbitrary one.
    fn vectors() -> impl Strategy<Value = Vec<f32>> {
        let component = prop_oneof![8 => -1.0f32..1.0, 1 => Just(0.0f32), 1 => -1e-4f32..1e-4];
        (prop::collection::vec(component, 1..200), -140i32..120).prop_map(|(components, exponent)| {
            let magnitude = 2.0f64.powi(exponent);
            components.iter().map(|&component| (f64::from(component) * magnitude) as f32).collect()
        })
    }

    proptest! {
        #[test]
        fn decoded_components_are_within_half_a_step(vector in vectors()) {
            for precision in PRECISIONS {
                let (encoded, _, decoded) = round_trip(precision, &vector);
                let largest = largest(&vector);
                for (&original, &decoded) in vector.iter().zip(&decoded) {
                    let error = (f64::from(original) - f64::from(decoded)).abs();
                    let bound = match precision {
                        Precision::Int8 | Precision::Int16 => f64::from(encoded.scale) / 2.0,
                        Precision::F16 => largest * 2.0f64.powi(-11) + f64::from(encoded.scale) * 2.0f64.powi(-25),
                        Precision::F32 => 0.0,
                    };
                    // Decoding rounds to f32 once more.
                    let rounding = f64::from(original).abs() * 2.0f64.powi(-24) + 2.0f64.powi(-150);
                    let rounding = if precision == Precision::F32 { 0.0 } else { rounding * 1.01 };
                    prop_assert!(error <= bound + rounding, "{precision:?}: {original:e} became {decoded:e}");
                }
            }
        }

        #[test]
        fn exact_copies_keep_what_they_promise(vector in vectors()) {
            for rerank in [Rerank::F16, Rerank::F32] {
                let mut bytes = vec![0; exact_bytes(rerank, vector.len())];
                let scale = write_exact(rerank, &vector, &mut bytes);
                let mut copy = vec![f32::NAN; vector.len()];
                read_exact(rerank, scale, &bytes, &mut copy);
                let norm = norm(&copy);
                prop_assert!((f64::from(exact_norm(rerank, scale, &bytes)) - norm).abs() <= norm * 1e-7 + 1e-45);
                if rerank == Rerank::F32 {
                    prop_assert_eq!(&copy, &vector);
                    continue;
                }
                let bound = largest(&vector) * 2.0f64.powi(-11) + 1e-45;
                for (&original, &copied) in vector.iter().zip(&copy) {
                    prop_assert!((f64::from(original) - f64::from(copied)).abs() <= bound);
                }
            }
        }

        /// A scale moves a code by one at most, and only where rounding was a near thing: the scaled copy was rounded
        /// to f32 before it came here.
        #[test]
        fn scaled_copies_have_the_same_codes(components in prop::collection::vec(-1.0f32..1.0, 1..200)) {
            prop_assume!(largest(&components) > 1e-3);
            let mut codes = vec![0; components.len()];
            let steps_per_unit = INT8_MAX / largest(&components);
            let original = quantise_int8(&components, &mut codes);
            for magnitude in [1e-20f32, 1e18, 2.0] {
                let scaled: Vec<f32> = components.iter().map(|component| component * magnitude).collect();
                let mut scaled_codes = vec![0; components.len()];
                let found = quantise_int8(&scaled, &mut scaled_codes);
                prop_assert!((found.scale / original.scale / magnitude - 1.0).abs() < 1e-6);
                for i in 0..codes.len() {
                    let steps = f64::from(components[i]) * steps_per_unit;
                    let near_a_tie = ((steps - steps.floor()) - 0.5).abs() < 1e-4;
                    prop_assert!(codes[i] == scaled_codes[i] || near_a_tie);
                }
            }
        }
    }

    #[test]
    fn codes_are_symmetric_and_use_the_whole_range() {
        for (precision, low, high) in
            [(Precision::Int8, vec![1], vec![255]), (Precision::Int16, vec![1, 0x80], vec![0xFF, 0x7F])]
        {
            for magnitude in [1.0f32, 3e38, 1e-33, 0.3] {
                let (_, codes, _) =
                    round_trip(precision, &[-magnitude, magnitude / 2.0, magnitude].map(|c| c * 0.57));
                assert_eq!(codes[..low.len()], low);
                assert_eq!(codes[codes.len() - high.len()..], high);
            }
        }
    }

    #[test]
    fn subnormal_vectors_keep_every_digit() {
        let unit = f32::from_bits(1);
        let vector = [3.0, -7.0, 100.0, 0.0].map(|count| count * unit);
        for precision in PRECISIONS {
            let (encoded, _, decoded) = round_trip(precision, &vector);
            assert_eq!(decoded, vector, "{precision:?}");
            assert!(encoded.factor.is_finite() && encoded.bias == 0.0 && encoded.norm > 0.0);
        }
    }

    #[test]
    fn zero_vectors_have_no_factor() {
        for precision in PRECISIONS {
            let mut codes = vec![0; code_bytes(precision, 3)];
            let encoded = encode(precision, Metric::Cosine, &[0.0; 3], 0.0, &mut codes);
            assert_eq!((encoded.factor, encoded.bias, encoded.norm), (0.0, 0.0, 0.0), "{precision:?}");
            let (_, _, decoded) = round_trip(precision, &[0.0, -0.0, 0.0]);
            assert_eq!(decoded, [0.0; 3]);
        }
    }

    #[test]
    fn the_largest_vectors_stay_finite() {
        for precision in PRECISIONS {
            let (encoded, _, decoded) = round_trip(precision, &[f32::MAX, 0.0]);
            assert!(decoded[0].is_finite() && decoded[0] > 3.4e38, "{precision:?}");
            assert!(encoded.scale.is_finite() && encoded.bias == f32::MAX);
        }
    }

    #[test]
    fn checked_norm_names_the_component() {
        assert_eq!(checked_norm(&[3.0, 4.0]).unwrap(), 5.0);
        assert!(checked_norm(&[1e-45, 0.0]).unwrap() > 0.0);
        for (vector, expected) in [
            (vec![0.0, f32::NAN, f32::INFINITY], Some(1)),
            (vec![1.0, 2.0, f32::NEG_INFINITY], Some(2)),
            (vec![f32::MAX, f32::MAX], None),
        ] {
            match checked_norm(&vector) {
                Err(Error::NotFinite { component }) => assert_eq!(component, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
