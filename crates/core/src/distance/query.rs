//! A query, or a stored row in the role of one, laid out for the kernels.

use std::marker::PhantomData;

use super::kernels;
use crate::codec::{self, CodeNorm};
use crate::options::{Metric, Precision};
use crate::sketch::Terms;

/// A query ready for the kernels. Filling it again reuses its buffers.
///
/// Every traversal distance is `a + bias - b * factor * dot`, with `a` and `b` from the query, `bias` and `factor` from
/// the row, and `dot` in code units:
///
/// | metric | a | b | factor | bias |
/// |---|---|---|---|---|
/// | cosine | 1 | 1 / norm of the query's codes | 1 / norm of the row's codes | 0 |
/// | inner product | 0 | scale of the query | scale of the row | 0 |
/// | L2 | squared norm of the query | 2 * scale of the query | scale of the row | squared norm of the row |
///
/// "Norm" means that of the codes, not of the vector they came from: the distance is then a true distance between two
/// decoded vectors, and a row is at distance 0 from itself. A zero vector has factor 0, and so cosine distance 1.
pub struct Query {
    values: Buffer<f32>,
    codes: Buffer<i8>,
    code_sum: i32,
    a: f32,
    b: f32,
    /// No distance of the metric is below this; rounding would otherwise take near-copies below zero.
    distance_min: f32,
}

impl Query {
    /// An empty query.
    pub fn new() -> Self {
        Query {
            values: Buffer::new(),
            codes: Buffer::new(),
            code_sum: 0,
            a: 0.0,
            b: 0.0,
            distance_min: f32::MIN,
        }
    }

    /// Components for the float kernels; empty when only codes were prepared. 64-byte aligned, and zero from its end
    /// to the next multiple of 16 components.
    #[inline]
    pub fn values(&self) -> &[f32] {
        &self.values.padded()[..self.values.len]
    }

    /// Codes for `dot_int8` and sketches, 64-byte aligned, with zeros up to a multiple of 128; empty when none were prepared.
    #[inline]
    pub fn codes(&self) -> &[i8] {
        self.codes.padded()
    }

    /// How many of `codes` are components.
    #[inline]
    pub fn code_count(&self) -> usize {
        self.codes.len
    }

    /// Sum of the codes: a kernel that multiplies biased rows subtracts 128 times this.
    #[inline]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Other kernels multiply signed codes.
    pub fn code_sum(&self) -> i32 {
        self.code_sum
    }

    /// The traversal distance of a row with these terms and this dot.
    ///
    /// Never NaN and never infinite, so that distances sort: what f32 cannot hold (squared distances of vectors longer
    /// than 1e19) comes out as its largest number. With the roles of two int8 rows exchanged the result is the same to
    /// the last bit, because every operation that involves both sides commutes.
    #[inline(always)]
    pub fn distance(&self, factor: f32, bias: f32, dot: f32) -> f32 {
        let distance = (self.a + bias) - (self.b * factor) * dot;
        // Written out because each comparison is one instruction, with NaN going to the branch that it should.
        let distance = if distance < f32::MAX { distance } else { f32::MAX };
        if distance > self.distance_min { distance } else { self.distance_min }
    }

    /// What bounds distances from below by sketches, allowing for `caution` times their mean error.
    pub fn screen(&self, caution: f32) -> Screen {
        let codes = &self.codes()[..self.code_count()];
        // At most 65,536 squares of 128: 2^30.
        let squares: i32 = codes.iter().map(|code| i32::from(*code) * i32::from(*code)).sum();
        Screen {
            a: self.a,
            b: self.b,
            code_sum: self.code_sum as f32,
            caution: caution * (squares as f32).sqrt(),
        }
    }

    /// Prepares a caller's vector whose norm `codec::checked_norm` gave.
    pub fn set_vector(&mut self, precision: Precision, metric: Metric, vector: &[f32], norm: f64) {
        self.set_values(metric, vector, norm);
        (self.a, self.b) = match metric {
            Metric::Cosine => (1.0, 1.0),
            Metric::InnerProduct => (0.0, 1.0),
            Metric::L2 => (codec::saturate(norm * norm), 2.0),
        };
        if precision == Precision::Int8 {
            let codes = self.codes.resize(vector.len());
            let CodeNorm { scale, norm, sum } = codec::quantise_int8(vector, codes);
            self.code_sum = sum;
            let scale64 = f64::from(scale);
            (self.a, self.b) = match metric {
                Metric::Cosine => (1.0, codec::reciprocal(norm)),
                Metric::InnerProduct => (0.0, scale),
                Metric::L2 => (codec::saturate(scale64 * scale64 * norm * norm), 2.0 * scale),
            };
        } else {
            self.codes.resize(0);
            self.code_sum = 0;
        }
        self.distance_min = distance_min(metric);
    }

    /// Values only, for exact scoring: the unit vector for cosine, the vector itself otherwise.
    pub(super) fn set_values(&mut self, metric: Metric, vector: &[f32], norm: f64) {
        let values = self.values.resize(vector.len());
        if metric == Metric::Cosine && norm > 0.0 {
            // In f64, where neither the norm's reciprocal nor the product can overflow or vanish.
            let reciprocal = norm.recip();
            for (value, &component) in values.iter_mut().zip(vector) {
                *value = (f64::from(component) * reciprocal) as f32;
            }
        } else {
            values.copy_from_slice(vector);
        }
    }

    /// Puts a stored row in the role of the query.
    ///
    /// # Safety
    /// `row` is readable for `dims` components of `precision`, and nobody writes them during the call, or the caller
    /// discards what it computes from this query when somebody did.
    #[allow(clippy::too_many_arguments)] // One row's fields, which its record keeps side by side.
    pub unsafe fn set_row(
        &mut self,
        precision: Precision,
        metric: Metric,
        dims: usize,
        row: *const u8,
        factor: f32,
        bias: f32,
        scale: f32,
    ) {
        (self.a, self.b) = match metric {
            Metric::Cosine => (1.0, factor),
            Metric::InnerProduct => (0.0, scale),
            Metric::L2 => (bias, 2.0 * scale),
        };
        self.distance_min = distance_min(metric);
        if precision == Precision::Int8 {
            self.values.resize(0);
            let codes = self.codes.resize(dims);
            // SAFETY: the row has `dims` components, the caller says, and `codes` is that long.
            self.code_sum = unsafe { (kernels().load_int8)(row, codes) };
            return;
        }
        self.codes.resize(0);
        self.code_sum = 0;
        let values = self.values.resize(dims);
        match precision {
            // SAFETY: the row has `dims` int16 components, the caller says, and `values` is that long.
            Precision::Int16 => unsafe { (kernels().load_int16)(row, values) },
            // SAFETY: the row has `dims` f16 components, the caller says, and `values` is that long.
            Precision::F16 => unsafe { (kernels().load_f16)(row, values) },
            Precision::F32 | Precision::Int8 => {
                // SAFETY: the row has `dims` f32 components, the caller says, and `values` is that long; a row lies in
                // a record and `values` in our own buffer, so they do not overlap.
                unsafe { row.copy_to_nonoverlapping(values.as_mut_ptr().cast(), size_of_val(values)) };
                if metric == Metric::Cosine {
                    // Divided here and not in `b`, or the dot of two huge rows would overflow before `b` shrank it.
                    values.iter_mut().for_each(|value| *value *= factor);
                    self.b = 1.0;
                }
            }
        }
    }
}

/// A query's side of the estimates by sketches.
#[derive(Clone, Copy)]
pub struct Screen {
    a: f32,
    b: f32,
    code_sum: f32,
    caution: f32,
}

impl Screen {
    /// The distance that a row with these terms has at least, but for luck; `dot` is that of the query's codes with the
    /// sketch's levels. Not a number where the row's terms are none.
    #[inline(always)]
    pub fn least(&self, factor: f32, bias: f32, terms: Terms, dot: f32) -> f32 {
        let most = terms.gain * ((dot - terms.zero * self.code_sum) + terms.error * self.caution);
        (self.a + bias) - (self.b * factor) * most
    }
}

impl Default for Query {
    fn default() -> Self {
        Query::new()
    }
}

fn distance_min(metric: Metric) -> f32 {
    match metric {
        Metric::Cosine | Metric::L2 => 0.0,
        Metric::InnerProduct => f32::MIN,
    }
}

/// One cache line. Kernels load whole lines of a query, aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// A growable array of `T` that starts on a line and is zero from its end to the end of its last pair of lines.
struct Buffer<T> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

/// Types that any bytes are a value of, that have no padding and need no more than a line's alignment.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i8 {}

impl<T: Plain> Buffer<T> {
    const PER_LINE: usize = size_of::<Line>() / size_of::<T>();

    fn new() -> Self {
        Buffer { lines: Vec::new(), len: 0, of: PhantomData }
    }

    fn padded(&self) -> &[T] {
        // SAFETY: the vector holds that many lines, initialised, and `Plain` types may be read from any bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * Self::PER_LINE) }
    }

    /// Makes room for `len` elements, of whatever value, and returns them.
    fn resize(&mut self, len: usize) -> &mut [T] {
        self.len = len;
        let lines = len.div_ceil(Self::PER_LINE).next_multiple_of(2);
        self.lines.resize(lines, Line([0; 64]));
        self.lines[lines.saturating_sub(2)..].fill(Line([0; 64]));
        // SAFETY: the vector holds `len` elements' worth of initialised lines, exclusively borrowed, and `Plain` types
        // may be read from any bytes and leave none uninitialised.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }
}
