//! Kernels for AVX2 with FMA and F16C, and a variant of the int8 dot for AVX-VNNI.
//!
//! Groups and accumulators are as in `avx512.rs`. AVX2 has no byte masks, so the last, partial step of a row reads the
//! row's last *full* step again and blanks what was summed before; a row shorter than a step goes through a buffer.

use std::arch::x86_64::*;

use crate::distance::{Kernels, Query, scalar};

pub(in crate::distance) static KERNELS: Kernels = Kernels {
    name: "avx2",
    dot_int8: dot_int8_avx2,
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

pub(in crate::distance) static KERNELS_VNNI: Kernels =
    Kernels { name: "avxvnni", dot_int8: dot_int8_vnni, ..KERNELS };

/// Whether this processor can run `KERNELS`.
pub(in crate::distance) fn detected() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Whether this processor can run `KERNELS_VNNI`.
pub(in crate::distance) fn detected_vnni() -> bool {
    detected() && is_x86_feature_detected!("avxvnni")
}

/// Components of a step of the float kernels.
const STEP: usize = 8;
/// Components of a step of `dot_int8`.
const CODE_STEP: usize = 32;

/// Eight lanes from `LAST[n]` on: all but the last `n` are blank.
static LAST: [i32; 2 * STEP] = [0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1];
/// The same for bytes.
static LAST_BYTES: [i8; 2 * CODE_STEP] = {
    let mut bytes = [0; 2 * CODE_STEP];
    let mut i = CODE_STEP;
    while i < bytes.len() {
        bytes[i] = -1;
        i += 1;
    }
    bytes
};

/// Reads eight components of a row as floats.
trait Element {
    const BYTES: usize;

    /// # Safety
    /// The processor has the features and eight components are readable.
    unsafe fn load(row: *const u8) -> __m256;
}

struct Int8;
struct Int16;
struct F16;
struct F32;

impl Element for Int8 {
    const BYTES: usize = 1;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(row: *const u8) -> __m256 {
        // SAFETY: eight bytes are readable, and this loads eight.
        let biased = unsafe { _mm_loadl_epi64(row.cast()) };
        let codes = _mm_xor_si128(biased, _mm_set1_epi8(i8::MIN));
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))
    }
}

impl Element for Int16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(row: *const u8) -> __m256 {
        // SAFETY: eight int16 are readable.
        let codes = unsafe { _mm_loadu_si128(row.cast()) };
        _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(codes))
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(row: *const u8) -> __m256 {
        // SAFETY: eight halves are readable.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(row.cast()) })
    }
}

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(row: *const u8) -> __m256 {
        // SAFETY: eight floats are readable.
        unsafe { _mm256_loadu_ps(row.cast()) }
    }
}

/// What is summed over components.
trait Term {
    /// # Safety
    /// The processor has the features.
    unsafe fn add(sum: __m256, query: __m256, row: __m256) -> __m256;
}

struct Dot;
struct L2;

impl Term for Dot {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add(sum: __m256, query: __m256, row: __m256) -> __m256 {
        _mm256_fmadd_ps(query, row, sum)
    }
}

impl Term for L2 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add(sum: __m256, query: __m256, row: __m256) -> __m256 {
        let difference = _mm256_sub_ps(query, row);
        _mm256_fmadd_ps(difference, difference, sum)
    }
}

/// # Safety
/// See `DotRows`.
#[target_feature(enable = "avx2,fma,f16c")]
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
/// Each row has `values.len()` components, and `values` lies in zeros up to a multiple of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_group<E: Element, T: Term, const N: usize, const U: usize>(
    values: &[f32],
    rows: &[*const u8; N],
) -> [f32; 4] {
    let dims = values.len();
    let values = values.as_ptr();
    let mut sums = [[_mm256_setzero_ps(); 4]; U];
    let mut i = 0;
    // SAFETY: in the loops the components from `i` to the end of the step are below `dims`. A partial step reads the
    // last eight below `dims` where there are eight, and otherwise copies those that there are to a buffer that has
    // room for eight. `LAST` has eight elements from any index up to 8.
    unsafe {
        while i + U * STEP <= dims {
            for (u, sums) in sums.iter_mut().enumerate() {
                let at = i + u * STEP;
                let query = _mm256_loadu_ps(values.add(at));
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = T::add(*sum, query, E::load(row.add(at * E::BYTES)));
                }
            }
            i += U * STEP;
        }
        while i + STEP <= dims {
            let query = _mm256_loadu_ps(values.add(i));
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                *sum = T::add(*sum, query, E::load(row.add(i * E::BYTES)));
            }
            i += STEP;
        }
        if i < dims && dims >= STEP {
            let blank = _mm256_castsi256_ps(_mm256_loadu_si256(LAST.as_ptr().add(dims - i).cast()));
            let at = dims - STEP;
            let query = _mm256_and_ps(_mm256_loadu_ps(values.add(at)), blank);
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                // The row is blanked too: `L2` subtracts, and a damaged row may hold infinities.
                let row = _mm256_and_ps(E::load(row.add(at * E::BYTES)), blank);
                *sum = T::add(*sum, query, row);
            }
        } else if i < dims {
            let query = _mm256_loadu_ps(values);
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                // Absent int8 components become -128, but only `Dot` reads such rows, and the query is zero there.
                let mut buffer = [0u8; 4 * STEP];
                row.copy_to_nonoverlapping(buffer.as_mut_ptr(), dims * E::BYTES);
                *sum = T::add(*sum, query, E::load(buffer.as_ptr()));
            }
        }
    }
    let [mut a, mut b, mut c, mut d] = sums[0];
    for sums in &sums[1..] {
        (a, b) = (_mm256_add_ps(a, sums[0]), _mm256_add_ps(b, sums[1]));
        (c, d) = (_mm256_add_ps(c, sums[2]), _mm256_add_ps(d, sums[3]));
    }
    sums_f32(a, b, c, d)
}

/// The sums of four vectors' lanes, in one go.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sums_f32(a: __m256, b: __m256, c: __m256, d: __m256) -> [f32; 4] {
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    let sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut out = [0.0; 4];
    // SAFETY: the array holds four floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// The sums of four vectors' lanes less `bias`, in one go.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sums_i32(a: __m256i, b: __m256i, c: __m256i, d: __m256i, bias: i32) -> [f32; 4] {
    let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    let dots = _mm_cvtepi32_ps(_mm_sub_epi32(sums, _mm_set1_epi32(bias)));
    let mut out = [0.0; 4];
    // SAFETY: the array holds four floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), dots) };
    out
}

/// 32 codes of a query, prepared for several rows.
#[derive(Clone, Copy)]
struct SplitCodes {
    even: __m256i,
    odd: __m256i,
}

/// Widens to i16 by position, even and odd bytes apart: shifts and masks start twice as often as the shuffles that keep
/// the order.
#[inline]
#[target_feature(enable = "avx2")]
fn split_codes(codes: __m256i) -> SplitCodes {
    SplitCodes {
        even: _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(codes)),
        odd: _mm256_srai_epi16::<8>(codes),
    }
}

/// `vpmaddubsw` would do this in one step but saturates: 2 * 255 * 127 does not fit i16.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sum: __m256i, biased: __m256i, codes: SplitCodes) -> __m256i {
    let even = _mm256_and_si256(biased, _mm256_set1_epi16(0xFF));
    let odd = _mm256_srli_epi16::<8>(biased);
    let products = _mm256_add_epi32(_mm256_madd_epi16(even, codes.even), _mm256_madd_epi16(odd, codes.odd));
    _mm256_add_epi32(sum, products)
}

#[inline]
#[target_feature(enable = "avx2")]
fn whole_codes(codes: __m256i) -> __m256i {
    codes
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn add_products_vnni(sum: __m256i, biased: __m256i, codes: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sum, biased, codes)
}

/// Defines `dot_int8` for a set of features: a function inlines only what needs no more features than itself, so the
/// two variants cannot share generic code. The bounds of `avx512.rs` hold here too: nothing overflows.
macro_rules! dot_int8 {
    ($rows:ident, $group:ident, $features:tt, $prepare:ident, $add:ident) => {
        /// # Safety
        /// See `DotRows`.
        #[target_feature(enable = $features)]
        unsafe fn $rows(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
            let (groups, rest) = rows.as_chunks::<4>();
            let (group_dots, rest_dots) = dots[..rows.len()].as_chunks_mut::<4>();
            // SAFETY: this function's contract is that of the groups.
            unsafe {
                for (dots, rows) in group_dots.iter_mut().zip(groups) {
                    *dots = $group::<4>(query, rows);
                }
                let dots = match *rest {
                    [a, b, c] => $group::<3>(query, &[a, b, c]),
                    [a, b] => $group::<2>(query, &[a, b]),
                    [a] => $group::<1>(query, &[a]),
                    _ => return,
                };
                rest_dots.copy_from_slice(&dots[..rest.len()]);
            }
        }

        /// # Safety
        /// Each row has `query.code_count()` components.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $group<const N: usize>(query: &Query, rows: &[*const u8; N]) -> [f32; 4] {
            let dims = query.code_count();
            let codes = query.codes().as_ptr();
            // Two accumulators a row, used in turn.
            let mut sums = [[_mm256_setzero_si256(); 4]; 2];
            let mut i = 0;
            // SAFETY: in the loop the components from `i` to the end of the step are below `dims`. A partial step reads
            // the last 32 below `dims` where there are 32, and otherwise copies those that there are to a buffer that
            // has room for 32. `LAST_BYTES` has 32 elements from any index up to 32, and `codes` zeros up to 64.
            unsafe {
                while i + 2 * CODE_STEP <= dims {
                    for (u, sums) in sums.iter_mut().enumerate() {
                        let at = i + u * CODE_STEP;
                        let codes = $prepare(_mm256_loadu_si256(codes.add(at).cast()));
                        for (sum, row) in sums.iter_mut().zip(rows) {
                            *sum = $add(*sum, _mm256_loadu_si256(row.add(at).cast()), codes);
                        }
                    }
                    i += 2 * CODE_STEP;
                }
                if i + CODE_STEP <= dims {
                    let codes = $prepare(_mm256_loadu_si256(codes.add(i).cast()));
                    for (sum, row) in sums[0].iter_mut().zip(rows) {
                        *sum = $add(*sum, _mm256_loadu_si256(row.add(i).cast()), codes);
                    }
                    i += CODE_STEP;
                }
                if i < dims && dims >= CODE_STEP {
                    let blank = _mm256_loadu_si256(LAST_BYTES.as_ptr().add(dims - i).cast());
                    let at = dims - CODE_STEP;
                    let codes = _mm256_and_si256(_mm256_loadu_si256(codes.add(at).cast()), blank);
                    let codes = $prepare(codes);
                    for (sum, row) in sums[1].iter_mut().zip(rows) {
                        *sum = $add(*sum, _mm256_loadu_si256(row.add(at).cast()), codes);
                    }
                } else if i < dims {
                    let codes = $prepare(_mm256_loadu_si256(codes.cast()));
                    for (sum, row) in sums[0].iter_mut().zip(rows) {
                        let mut buffer = [0u8; CODE_STEP];
                        row.copy_to_nonoverlapping(buffer.as_mut_ptr(), dims);
                        *sum = $add(*sum, _mm256_loadu_si256(buffer.as_ptr().cast()), codes);
                    }
                }
            }
            let [first, second] = sums;
            sums_i32(
                _mm256_add_epi32(first[0], second[0]),
                _mm256_add_epi32(first[1], second[1]),
                _mm256_add_epi32(first[2], second[2]),
                _mm256_add_epi32(first[3], second[3]),
                128 * query.code_sum(),
            )
        }
    };
}

dot_int8!(dot_int8_avx2, code_group_avx2, "avx2,fma,f16c", split_codes, add_products);
dot_int8!(dot_int8_vnni, code_group_vnni, "avx2,fma,f16c,avxvnni", whole_codes, add_products_vnni);

/// # Safety
/// See `DotRows`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dot_sketch(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
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

/// # Safety
/// Each row has a level for each of the query's codes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sketch_group<const N: usize>(query: &Query, rows: &[*const u8; N]) -> [f32; 4] {
    let (blocks, _) = query.codes().as_chunks::<128>();
    let mask = _mm256_set1_epi8(1);
    // The upper half of a step takes the odd bits.
    let odd = _mm256_setr_epi64x(0, 0, 1, 1);
    let mut sums = [_mm256_setzero_si256(); 4];
    for (at, block) in blocks.iter().enumerate() {
        let mut levels = [_mm256_setzero_si256(); N];
        for (levels, row) in levels.iter_mut().zip(rows) {
            // SAFETY: a block of a sketch has 16 bytes.
            let block = unsafe { _mm_loadu_si128(row.add(16 * at).cast()) };
            *levels = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(block), odd);
        }
        // At most 4 * 2 * 128 in magnitude.
        let mut words = [_mm256_setzero_si256(); N];
        for codes in block.as_chunks::<32>().0 {
            // SAFETY: the chunk has 32 bytes.
            let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
            for (word, levels) in words.iter_mut().zip(&mut levels) {
                let step = _mm256_and_si256(*levels, mask);
                *word = _mm256_add_epi16(*word, _mm256_maddubs_epi16(step, codes));
                // What comes from the next byte is masked off.
                *levels = _mm256_srli_epi16::<2>(*levels);
            }
        }
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(word, _mm256_set1_epi16(1)));
        }
    }
    let [a, b, c, d] = sums;
    sums_i32(a, b, c, d, 0)
}

/// # Safety
/// See `Kernels::load_int8`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_int8(row: *const u8, codes: &mut [i8]) -> i32 {
    // SAFETY: the same contract.
    unsafe { scalar::load_int8(row, codes) }
}

/// # Safety
/// See `Kernels::load_int16`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_int16(row: *const u8, values: &mut [f32]) {
    // SAFETY: the same contract.
    unsafe { scalar::load_int16(row, values) }
}

/// # Safety
/// See `Kernels::load_f16`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f16(row: *const u8, values: &mut [f32]) {
    let (steps, rest) = values.as_chunks_mut::<STEP>();
    for (step, values) in steps.iter_mut().enumerate() {
        // SAFETY: the row has eight components here, for which the chunk has room.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), F16::load(row.add(step * STEP * F16::BYTES))) };
    }
    // SAFETY: the row has as many components after the steps as are left of `values`.
    unsafe { scalar::load_f16(row.add(steps.len() * STEP * F16::BYTES), rest) }
}
