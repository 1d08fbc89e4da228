//! Kernels for NEON, which every aarch64 has, and a variant of the int8 dot for processors with `sdot`.
//!
//! Groups, accumulators and the handling of a last, partial step are as in `x86_64/avx2.rs`. Conversions from f16 and
//! `sdot` are assembly: their intrinsics are not stable on the oldest compiler that we support.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{Kernels, Query, scalar};

pub(super) static KERNELS: Kernels = Kernels {
    name: "neon",
    dot_int8: dot_int8_neon,
    dot_sketch,
    dot_int8_values: float_rows::<Int8, Dot>,
    dot_int16: float_rows::<Int16, Dot>,
    dot_f16: float_rows::<F16, Dot>,
    dot_f32: float_rows::<F32, Dot>,
    l2_f32: float_rows::<F32, L2>,
    l2_f16: float_rows::<F16, L2>,
    load_int8: scalar::load_int8,
    load_int16: scalar::load_int16,
    load_f16,
};

pub(super) static KERNELS_DOTPROD: Kernels =
    Kernels { name: "neon-dotprod", dot_int8: dot_int8_dotprod, ..KERNELS };

/// Whether this processor can run `KERNELS_DOTPROD`.
pub(super) fn detected_dotprod() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// Components of a step of the float kernels: two vectors of four.
const STEP: usize = 8;
/// Components of a step of `dot_int8`.
const CODE_STEP: usize = 16;

/// Eight floats.
type Pair = [float32x4_t; 2];

/// Eight lanes from `LAST[n]` on: all but the last `n` are blank.
static LAST: [u32; 2 * STEP] = [0, 0, 0, 0, 0, 0, 0, 0, !0, !0, !0, !0, !0, !0, !0, !0];
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
    /// Eight components are readable.
    unsafe fn load(row: *const u8) -> Pair;
}

struct Int8;
struct Int16;
struct F16;
struct F32;

#[inline]
fn widen(codes: int16x8_t) -> Pair {
    // SAFETY: NEON belongs to every aarch64.
    unsafe {
        let low = vmovl_s16(vget_low_s16(codes));
        let high = vmovl_s16(vget_high_s16(codes));
        [vcvtq_f32_s32(low), vcvtq_f32_s32(high)]
    }
}

impl Element for Int8 {
    const BYTES: usize = 1;

    #[inline]
    unsafe fn load(row: *const u8) -> Pair {
        // SAFETY: eight bytes are readable, and this loads eight.
        let codes = unsafe { vreinterpret_s8_u8(veor_u8(vld1_u8(row), vdup_n_u8(0x80))) };
        // SAFETY: NEON belongs to every aarch64.
        widen(unsafe { vmovl_s8(codes) })
    }
}

impl Element for Int16 {
    const BYTES: usize = 2;

    #[inline]
    unsafe fn load(row: *const u8) -> Pair {
        // SAFETY: eight int16 are readable. Loaded as bytes, which may start anywhere.
        widen(unsafe { vreinterpretq_s16_u8(vld1q_u8(row)) })
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline]
    unsafe fn load(row: *const u8) -> Pair {
        // SAFETY: eight halves are readable. Loaded as bytes, which may start anywhere.
        let halves = unsafe { vld1q_u8(row) };
        let (low, high): (float32x4_t, float32x4_t);
        // SAFETY: conversions between registers; every aarch64 has these two.
        unsafe {
            asm!(
                "fcvtl {low:v}.4s, {halves:v}.4h",
                "fcvtl2 {high:v}.4s, {halves:v}.8h",
                low = out(vreg) low,
                high = lateout(vreg) high,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [low, high]
    }
}

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline]
    unsafe fn load(row: *const u8) -> Pair {
        // SAFETY: eight floats are readable. Loaded as bytes, which may start anywhere.
        unsafe { [vreinterpretq_f32_u8(vld1q_u8(row)), vreinterpretq_f32_u8(vld1q_u8(row.add(16)))] }
    }
}

/// What is summed over components.
trait Term {
    fn add(sum: float32x4_t, query: float32x4_t, row: float32x4_t) -> float32x4_t;
}

struct Dot;
struct L2;

impl Term for Dot {
    #[inline]
    fn add(sum: float32x4_t, query: float32x4_t, row: float32x4_t) -> float32x4_t {
        // SAFETY: NEON belongs to every aarch64.
        unsafe { vfmaq_f32(sum, query, row) }
    }
}

impl Term for L2 {
    #[inline]
    fn add(sum: float32x4_t, query: float32x4_t, row: float32x4_t) -> float32x4_t {
        // SAFETY: NEON belongs to every aarch64.
        unsafe {
            let difference = vsubq_f32(query, row);
            vfmaq_f32(sum, difference, difference)
        }
    }
}

#[inline]
fn add_pair<T: Term>(sums: &mut Pair, query: Pair, row: Pair) {
    sums[0] = T::add(sums[0], query[0], row[0]);
    sums[1] = T::add(sums[1], query[1], row[1]);
}

#[inline]
fn blank_pair(pair: Pair, blank: [uint32x4_t; 2]) -> Pair {
    // SAFETY: NEON belongs to every aarch64.
    unsafe {
        [
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pair[0]), blank[0])),
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pair[1]), blank[1])),
        ]
    }
}

/// # Safety
/// See `DotRows`.
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
unsafe fn float_group<E: Element, T: Term, const N: usize, const U: usize>(
    values: &[f32],
    rows: &[*const u8; N],
) -> [f32; 4] {
    let dims = values.len();
    let values: *const u8 = values.as_ptr().cast();
    let mut i = 0;
    // SAFETY: in the loops the components from `i` to the end of the step are below `dims`. A partial step reads the
    // last eight below `dims` where there are eight, and otherwise copies those that there are to a buffer that has
    // room for eight. `LAST` has eight elements from any index up to 8. The query's values are an f32 row.
    unsafe {
        let mut sums = [[[vdupq_n_f32(0.0); 2]; 4]; U];
        while i + U * STEP <= dims {
            for (u, sums) in sums.iter_mut().enumerate() {
                let at = i + u * STEP;
                let query = F32::load(values.add(at * F32::BYTES));
                for (sum, row) in sums.iter_mut().zip(rows) {
                    add_pair::<T>(sum, query, E::load(row.add(at * E::BYTES)));
                }
            }
            i += U * STEP;
        }
        while i + STEP <= dims {
            let query = F32::load(values.add(i * F32::BYTES));
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                add_pair::<T>(sum, query, E::load(row.add(i * E::BYTES)));
            }
            i += STEP;
        }
        if i < dims && dims >= STEP {
            let last = LAST.as_ptr().add(dims - i);
            let blank = [vld1q_u32(last), vld1q_u32(last.add(4))];
            let at = dims - STEP;
            let query = blank_pair(F32::load(values.add(at * F32::BYTES)), blank);
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                // The row is blanked too: `L2` subtracts, and a damaged row may hold infinities.
                add_pair::<T>(sum, query, blank_pair(E::load(row.add(at * E::BYTES)), blank));
            }
        } else if i < dims {
            let query = F32::load(values);
            for (sum, row) in sums[0].iter_mut().zip(rows) {
                // Absent int8 components become -128, but only `Dot` reads such rows, and the query is zero there.
                let mut buffer = [0u8; 4 * STEP];
                row.copy_to_nonoverlapping(buffer.as_mut_ptr(), dims * E::BYTES);
                add_pair::<T>(sum, query, E::load(buffer.as_ptr()));
            }
        }
        let mut dots = [0.0; 4];
        for (n, dot) in dots[..N].iter_mut().enumerate() {
            let total = sums.iter().map(|sums| vaddq_f32(sums[n][0], sums[n][1]));
            *dot = vaddvq_f32(total.reduce(|a, b| vaddq_f32(a, b)).unwrap_or(vdupq_n_f32(0.0)));
        }
        dots
    }
}

/// Products of int8 fit i16 (128 * 128 = 2^14), and pairs of them are added to i32 lanes.
#[inline]
fn add_products(sum: int32x4_t, row: int8x16_t, codes: int8x16_t) -> int32x4_t {
    // SAFETY: NEON belongs to every aarch64.
    unsafe {
        let low = vmull_s8(vget_low_s8(row), vget_low_s8(codes));
        vpadalq_s16(vpadalq_s16(sum, low), vmull_high_s8(row, codes))
    }
}

#[inline]
#[target_feature(enable = "dotprod")]
fn add_products_dotprod(mut sum: int32x4_t, row: int8x16_t, codes: int8x16_t) -> int32x4_t {
    // SAFETY: arithmetic between registers, of a feature that this function asks its caller for.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {row:v}.16b, {codes:v}.16b",
            sum = inout(vreg) sum,
            row = in(vreg) row,
            codes = in(vreg) codes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// # Safety
/// See `DotRows`.
unsafe fn dot_sketch(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    let (blocks, _) = query.codes().as_chunks::<128>();
    for (dot, row) in dots[..rows.len()].iter_mut().zip(rows) {
        // SAFETY: NEON belongs to every aarch64. The row has a level for each of the query's codes, the caller says: 16
        // bytes in each block.
        unsafe {
            let mask = vdupq_n_s8(1);
            let mut sum = vdupq_n_s32(0);
            for (at, block) in blocks.iter().enumerate() {
                let levels = vld1q_u8(row.add(16 * at));
                // At most 8 * 128 in magnitude.
                let mut words = [vdupq_n_s16(0); 2];
                for (j, codes) in block.as_chunks::<16>().0.iter().enumerate() {
                    let shifted = vshlq_u8(levels, vdupq_n_s8(-(j as i8)));
                    let level = vandq_s8(vreinterpretq_s8_u8(shifted), mask);
                    let codes = vld1q_s8(codes.as_ptr());
                    words[0] = vmlal_s8(words[0], vget_low_s8(level), vget_low_s8(codes));
                    words[1] = vmlal_high_s8(words[1], level, codes);
                }
                sum = vpadalq_s16(vpadalq_s16(sum, words[0]), words[1]);
            }
            *dot = vaddvq_s32(sum) as f32;
        }
    }
}

/// Defines `dot_int8` for a set of features: a function inlines only what needs no more features than itself, so the
/// two variants cannot share generic code. Rows lose their bias as they are loaded. Nothing overflows: with any bytes
/// the products sum to at most 128 * 128 * 65,536 = 2^30 in magnitude.
macro_rules! dot_int8 {
    ($rows:ident, $group:ident, $features:tt, $add:ident) => {
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
            let mut i = 0;
            // SAFETY: in the loop the components from `i` to the end of the step are below `dims`. A partial step reads
            // the last 16 below `dims` where there are 16, and otherwise copies those that there are to a buffer that
            // has room for 16. `LAST_BYTES` has 16 elements from any index up to 16, and `codes` zeros up to 64.
            unsafe {
                let bias = vdupq_n_u8(0x80);
                // Two accumulators a row, used in turn.
                let mut sums = [[vdupq_n_s32(0); 4]; 2];
                while i + 2 * CODE_STEP <= dims {
                    for (u, sums) in sums.iter_mut().enumerate() {
                        let at = i + u * CODE_STEP;
                        let codes = vld1q_s8(codes.add(at));
                        for (sum, row) in sums.iter_mut().zip(rows) {
                            let row = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(row.add(at)), bias));
                            *sum = $add(*sum, row, codes);
                        }
                    }
                    i += 2 * CODE_STEP;
                }
                if i + CODE_STEP <= dims {
                    let codes = vld1q_s8(codes.add(i));
                    for (sum, row) in sums[0].iter_mut().zip(rows) {
                        let row = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(row.add(i)), bias));
                        *sum = $add(*sum, row, codes);
                    }
                    i += CODE_STEP;
                }
                if i < dims && dims >= CODE_STEP {
                    let at = dims - CODE_STEP;
                    let blank = vld1q_s8(LAST_BYTES.as_ptr().add(dims - i));
                    let codes = vandq_s8(vld1q_s8(codes.add(at)), blank);
                    for (sum, row) in sums[1].iter_mut().zip(rows) {
                        let row = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(row.add(at)), bias));
                        *sum = $add(*sum, row, codes);
                    }
                } else if i < dims {
                    let codes = vld1q_s8(codes);
                    for (sum, row) in sums[0].iter_mut().zip(rows) {
                        let mut buffer = [0u8; CODE_STEP];
                        row.copy_to_nonoverlapping(buffer.as_mut_ptr(), dims);
                        let row = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(buffer.as_ptr()), bias));
                        *sum = $add(*sum, row, codes);
                    }
                }
                let mut dots = [0.0; 4];
                for (n, dot) in dots[..N].iter_mut().enumerate() {
                    *dot = vaddvq_s32(vaddq_s32(sums[0][n], sums[1][n])) as f32;
                }
                dots
            }
        }
    };
}

dot_int8!(dot_int8_neon, code_group_neon, "neon", add_products);
dot_int8!(dot_int8_dotprod, code_group_dotprod, "neon,dotprod", add_products_dotprod);

/// # Safety
/// See `Kernels::load_f16`.
unsafe fn load_f16(row: *const u8, values: &mut [f32]) {
    let (steps, rest) = values.as_chunks_mut::<STEP>();
    for (step, values) in steps.iter_mut().enumerate() {
        // SAFETY: the row has eight components here, for which the chunk has room.
        unsafe {
            let [low, high] = F16::load(row.add(step * STEP * F16::BYTES));
            vst1q_f32(values.as_mut_ptr(), low);
            vst1q_f32(values.as_mut_ptr().add(4), high);
        }
    }
    // SAFETY: the row has as many components after the steps as are left of `values`.
    unsafe { scalar::load_f16(row.add(steps.len() * STEP * F16::BYTES), rest) }
}
