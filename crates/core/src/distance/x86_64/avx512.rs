//! Kernels for AVX-512 with VNNI: a mask reads a row's last components, so there is no tail to speak of.
//!
//! Rows go in groups of up to four that share each load of the query. `U` steps of a group run side by side in
//! accumulators of their own: a multiply-add takes about four cycles and two can start in each, so about eight must be
//! under way for arithmetic to keep up with loads. A group of one row has more steps in flight to make up for it.

use std::arch::x86_64::*;

use super::avx2;
use crate::distance::{Kernels, Query, scalar};

pub(in crate::distance) static KERNELS: Kernels = Kernels {
    name: "avx512",
    dot_int8,
    dot_sketch,
    dot_int8_values: float_rows::<Int8, Dot>,
    dot_int16: float_rows::<Int16, Dot>,
    dot_f16: float_rows::<F16, Dot>,
    dot_f32: float_rows::<F32, Dot>,
    l2_f32: float_rows::<F32, L2>,
    l2_f16: float_rows::<F16, L2>,
    load_int8,
    load_int16,
    load_f16,
};

/// Whether this processor can run the table.
pub(in crate::distance) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
}

/// Components of a step of the float kernels.
const STEP: usize = 16;
/// Components of a step of `dot_int8`.
const CODE_STEP: usize = 64;

/// Reads 16 components of a row as floats.
trait Element {
    const BYTES: usize;

    /// Those of `mask`, and zeros.
    ///
    /// # Safety
    /// The processor has the features and the components of `mask` are readable.
    unsafe fn load(row: *const u8, mask: __mmask16) -> __m512;
}

struct Int8;
struct Int16;
struct F16;
struct F32;

impl Element for Int8 {
    const BYTES: usize = 1;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn load(row: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: the components of `mask` are readable, and a masked load touches no others.
        let biased = unsafe { _mm_maskz_loadu_epi8(mask, row.cast()) };
        // Absent components become -128 here. Only `Dot` reads int8 rows, against a query that is zero there.
        let codes = _mm_xor_si128(biased, _mm_set1_epi8(i8::MIN));
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))
    }
}

impl Element for Int16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn load(row: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: the components of `mask` are readable, and a masked load touches no others.
        let codes = unsafe { _mm256_maskz_loadu_epi16(mask, row.cast()) };
        _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(codes))
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn load(row: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: the components of `mask` are readable, and a masked load touches no others.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, row.cast()) })
    }
}

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn load(row: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: the components of `mask` are readable, and a masked load touches no others.
        unsafe { _mm512_maskz_loadu_ps(mask, row.cast()) }
    }
}

/// What is summed over components.
trait Term {
    /// # Safety
    /// The processor has the features.
    unsafe fn add(sum: __m512, query: __m512, row: __m512) -> __m512;
}

struct Dot;
struct L2;

impl Term for Dot {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn add(sum: __m512, query: __m512, row: __m512) -> __m512 {
        _mm512_fmadd_ps(query, row, sum)
    }
}

impl Term for L2 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn add(sum: __m512, query: __m512, row: __m512) -> __m512 {
        let difference = _mm512_sub_ps(query, row);
        _mm512_fmadd_ps(difference, difference, sum)
    }
}

/// # Safety
/// See `DotRows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float_rows<E: Element, T: Term>(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    let values = query.values();
    let (groups, rest) = rows.as_chunks::<4>();
    let (group_dots, rest_dots) = dots[..rows.len()].as_chunks_mut::<4>();
    // SAFETY: this function's contract is that of the groups.
    unsafe {
        for (dots, rows) in group_dots.iter_mut().zip(groups) {
            *dots = float_group::<E, T, 4, 2>(values, rows);
        }
        let dots = match *rest {
            [a, b, c] => float_group::<E, T, 3, 2>(values, &[a, b, c]),
            [a, b] => float_group::<E, T, 2, 4>(values, &[a, b]),
            [a] => float_group::<E, T, 1, 4>(values, &[a]),
            _ => return,
        };
        rest_dots.copy_from_slice(&dots[..rest.len()]);
    }
}

/// # Safety
/// Each row has `values.len()` components, and `values` lies in zeros up to a multiple of 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float_group<E: Element, T: Term, const N: usize, const U: usize>(
    values: &[f32],
    rows: &[*const u8; N],
) -> [f32; 4] {
    let dims = values.len();
    let values = values.as_ptr();
    let mut sums = [[_mm512_setzero_ps(); 4]; U];
    let mut i = 0;
    // SAFETY: in the loops the components from `i` to the end of the step are below `dims`. Of the last step the mask
    // holds those below `dims`, and `values` is readable, as zeros, to its end.
    unsafe {
        while i + U * STEP <= dims {
            for (u, sums) in sums.iter_mut().enumerate() {
                let at = i + u * STEP;
                let query = _mm512_loadu_ps(values.add(at));
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = T::add(*sum, query, E::load(row.add(at * E::BYTES), !0));
                }
            }
            i += U * STEP;
        }
        while i + STEP <= dims {
            let query = _mm512_loadu_ps(values.add(i));
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                *sum = T::add(*sum, query, E::load(row.add(i * E::BYTES), !0));
            }
            i += STEP;
        }
        if i < dims {
            let mask = (1 << (dims - i)) - 1;
            let query = _mm512_loadu_ps(values.add(i));
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                *sum = T::add(*sum, query, E::load(row.add(i * E::BYTES), mask));
            }
        }
    }
    let [mut a, mut b, mut c, mut d] = sums[0];
    for sums in &sums[1..] {
        (a, b) = (_mm512_add_ps(a, sums[0]), _mm512_add_ps(b, sums[1]));
        (c, d) = (_mm512_add_ps(c, sums[2]), _mm512_add_ps(d, sums[3]));
    }
    avx2::sums_f32(fold_f32(a), fold_f32(b), fold_f32(c), fold_f32(d))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn fold_f32(lanes: __m512) -> __m256 {
    let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes));
    _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm256_castpd_ps(high))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn fold_i32(lanes: __m512i) -> __m256i {
    _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes))
}

/// # Safety
/// See `DotRows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot_int8(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    let (groups, rest) = rows.as_chunks::<4>();
    let (group_dots, rest_dots) = dots[..rows.len()].as_chunks_mut::<4>();
    // SAFETY: this function's contract is that of the groups.
    unsafe {
        for (dots, rows) in group_dots.iter_mut().zip(groups) {
            *dots = code_group::<4, 2>(query, rows);
        }
        let dots = match *rest {
            [a, b, c] => code_group::<3, 2>(query, &[a, b, c]),
            [a, b] => code_group::<2, 4>(query, &[a, b]),
            [a] => code_group::<1, 4>(query, &[a]),
            _ => return,
        };
        rest_dots.copy_from_slice(&dots[..rest.len()]);
    }
}

/// Multiplies the rows as they are stored, biased, and takes the bias off the sum.
///
/// Nothing overflows: with any bytes on either side the products sum to at most 255 * 128 * 65,536 < 2^31 in magnitude,
/// and so does every partial sum; the bias is at most 128 * 128 * 65,536 = 2^30, and the dot is again below 2^31.
///
/// # Safety
/// Each row has `query.code_count()` components.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn code_group<const N: usize, const U: usize>(query: &Query, rows: &[*const u8; N]) -> [f32; 4] {
    let dims = query.code_count();
    let codes = query.codes().as_ptr();
    let mut sums = [[_mm512_setzero_si512(); 4]; U];
    let mut i = 0;
    // SAFETY: in the loops the components from `i` to the end of the step are below `dims`. Of the last step the mask
    // holds those below `dims`, and `codes` has zeros to its end.
    unsafe {
        while i + U * CODE_STEP <= dims {
            for (u, sums) in sums.iter_mut().enumerate() {
                let at = i + u * CODE_STEP;
                let query = _mm512_loadu_si512(codes.add(at).cast());
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = _mm512_dpbusd_epi32(*sum, _mm512_loadu_si512(row.add(at).cast()), query);
                }
            }
            i += U * CODE_STEP;
        }
        while i + CODE_STEP <= dims {
            let query = _mm512_loadu_si512(codes.add(i).cast());
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_loadu_si512(row.add(i).cast()), query);
            }
            i += CODE_STEP;
        }
        if i < dims {
            let mask = (1 << (dims - i)) - 1;
            let query = _mm512_loadu_si512(codes.add(i).cast());
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_maskz_loadu_epi8(mask, row.add(i).cast()), query);
            }
        }
    }
    let [mut a, mut b, mut c, mut d] = sums[0];
    for sums in &sums[1..] {
        (a, b) = (_mm512_add_epi32(a, sums[0]), _mm512_add_epi32(b, sums[1]));
        (c, d) = (_mm512_add_epi32(c, sums[2]), _mm512_add_epi32(d, sums[3]));
    }
    avx2::sums_i32(fold_i32(a), fold_i32(b), fold_i32(c), fold_i32(d), 128 * query.code_sum())
}

/// # Safety
/// See `DotRows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot_sketch(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    let (groups, rest) = rows.as_chunks::<4>();
    let (group_dots, rest_dots) = dots[..rows.len()].as_chunks_mut::<4>();
    // SAFETY: this function's contract is that of the groups.
    unsafe {
        for (dots, rows) in group_dots.iter_mut().zip(groups) {
            *dots = sketch_group::<4>(query, rows);
        }
        let dots = match *rest {
            [a, b, c] => sketch_group::<3>(query, &[a, b, c]),
            [a, b] => sketch_group::<2>(query, &[a, b]),
            [a] => sketch_group::<1>(query, &[a]),
            _ => return,
        };
        rest_dots.copy_from_slice(&dots[..rest.len()]);
    }
}

/// Bit `b` of byte `i` of a block is the level of component `16 * b + i`: four bits of each byte make a step of 64 levels.
///
/// # Safety
/// Each row has a level for each of the query's codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sketch_group<const N: usize>(query: &Query, rows: &[*const u8; N]) -> [f32; 4] {
    let (blocks, _) = query.codes().as_chunks::<128>();
    let one = _mm512_set1_epi8(1);
    let (low, high) = (_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_setr_epi64(4, 4, 5, 5, 6, 6, 7, 7));
    let mut sums = [_mm512_setzero_si512(); 4];
    for (at, codes) in blocks.iter().enumerate() {
        // SAFETY: the block has 128 bytes.
        let (first, second) = unsafe {
            (_mm512_loadu_si512(codes.as_ptr().cast()), _mm512_loadu_si512(codes.as_ptr().add(64).cast()))
        };
        for (sum, row) in sums.iter_mut().zip(rows) {
            // SAFETY: a block of a sketch has 16 bytes.
            let block = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(row.add(16 * at).cast()) });
            // What comes from the next byte is masked off.
            *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(_mm512_srlv_epi64(block, low), one), first);
            *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(_mm512_srlv_epi64(block, high), one), second);
        }
    }
    let [a, b, c, d] = sums;
    avx2::sums_i32(fold_i32(a), fold_i32(b), fold_i32(c), fold_i32(d), 0)
}

/// # Safety
/// See `Kernels::load_int8`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_int8(row: *const u8, codes: &mut [i8]) -> i32 {
    // SAFETY: the same contract.
    unsafe { scalar::load_int8(row, codes) }
}

/// # Safety
/// See `Kernels::load_int16`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_int16(row: *const u8, values: &mut [f32]) {
    // SAFETY: the same contract.
    unsafe { scalar::load_int16(row, values) }
}

/// # Safety
/// See `Kernels::load_f16`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_f16(row: *const u8, values: &mut [f32]) {
    for (step, values) in values.chunks_mut(STEP).enumerate() {
        let mask = ((1u32 << values.len()) - 1) as __mmask16;
        // SAFETY: `mask` has the bits of this chunk's components, which the row has and `values` has room for.
        unsafe {
            let loaded = F16::load(row.add(step * STEP * F16::BYTES), mask);
            _mm512_mask_storeu_ps(values.as_mut_ptr(), mask, loaded);
        }
    }
}
