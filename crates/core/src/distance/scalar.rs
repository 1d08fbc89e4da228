//! The definition of every kernel: one component after another, floats summed in f64.

use half::f16;

use super::{Kernels, Query};

pub(super) static KERNELS: Kernels = Kernels {
    name: "scalar",
    dot_int8,
    dot_sketch,
    dot_int8_values,
    dot_int16,
    dot_f16,
    dot_f32,
    l2_f32,
    l2_f16,
    load_int8,
    load_int16,
    load_f16,
};

// The readers below take unaligned addresses (exact copies are aligned to a component, not to a line) and build no
// slice over a row: a reference would promise that nobody writes it, which only the caller's version check settles.

/// # Safety
/// `row` is readable for `i + 1` int8 components.
#[inline(always)]
unsafe fn int8_at(row: *const u8, i: usize) -> i8 {
    // SAFETY: the caller's promise.
    (unsafe { row.add(i).read() } ^ 0x80) as i8
}

/// # Safety
/// `row` is readable for `i + 1` int16 components.
#[inline(always)]
unsafe fn int16_at(row: *const u8, i: usize) -> f32 {
    // SAFETY: the caller's promise.
    f32::from(unsafe { row.cast::<i16>().add(i).read_unaligned() })
}

/// # Safety
/// `row` is readable for `i + 1` f16 components.
#[inline(always)]
unsafe fn f16_at(row: *const u8, i: usize) -> f32 {
    // SAFETY: the caller's promise.
    f16::from_bits(unsafe { row.cast::<u16>().add(i).read_unaligned() }).to_f32()
}

/// # Safety
/// `row` is readable for `i + 1` f32 components.
#[inline(always)]
unsafe fn f32_at(row: *const u8, i: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { row.cast::<f32>().add(i).read_unaligned() }
}

/// # Safety
/// See `DotRows`.
unsafe fn dot_int8(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    let codes = &query.codes()[..query.code_count()];
    for (dot, &row) in dots[..rows.len()].iter_mut().zip(rows) {
        // At most 128 * 128 * 65,536 = 2^30 in magnitude, whatever the bytes: no overflow.
        let mut sum = 0i32;
        for (i, &code) in codes.iter().enumerate() {
            // SAFETY: `i < code_count()`, which the caller says the row has.
            sum += i32::from(code) * i32::from(unsafe { int8_at(row, i) });
        }
        *dot = sum as f32;
    }
}

/// # Safety
/// See `DotRows`.
unsafe fn dot_sketch(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
    for (dot, &row) in dots[..rows.len()].iter_mut().zip(rows) {
        // At most 128 * 65,536 in magnitude.
        let mut sum = 0i32;
        for (i, &code) in query.codes().iter().enumerate() {
            let (block, i) = (i / 128, i % 128);
            // SAFETY: the row has a level for each of the query's codes, the caller says: 16 bytes a block.
            let byte = unsafe { row.add(16 * block + i % 16).read() };
            sum += i32::from(code) * i32::from(byte >> (i / 16) & 1);
        }
        *dot = sum as f32;
    }
}

/// Defines a float kernel: the sum over components of `term(query value, row value)`.
macro_rules! float_kernel {
    ($name:ident, $read:expr, $term:expr) => {
        /// # Safety
        /// See `DotRows`.
        unsafe fn $name(query: &Query, rows: &[*const u8], dots: &mut [f32]) {
            for (dot, &row) in dots[..rows.len()].iter_mut().zip(rows) {
                let mut sum = 0.0f64;
                for (i, &value) in query.values().iter().enumerate() {
                    // SAFETY: `i < values().len()`, which the caller says the row has.
                    sum += $term(f64::from(value), f64::from(unsafe { $read(row, i) }));
                }
                *dot = sum as f32;
            }
        }
    };
}

float_kernel!(dot_int8_values, int8_at, |q: f64, v: f64| q * v);
float_kernel!(dot_int16, int16_at, |q: f64, v: f64| q * v);
float_kernel!(dot_f16, f16_at, |q: f64, v: f64| q * v);
float_kernel!(dot_f32, f32_at, |q: f64, v: f64| q * v);
float_kernel!(l2_f32, f32_at, |q: f64, v: f64| (q - v) * (q - v));
float_kernel!(l2_f16, f16_at, |q: f64, v: f64| (q - v) * (q - v));

/// # Safety
/// See `Kernels::load_int8`. Inlined into the vector tables, where the compiler vectorises it.
#[inline(always)]
pub(super) unsafe fn load_int8(row: *const u8, codes: &mut [i8]) -> i32 {
    let mut sum = 0;
    for (i, code) in codes.iter_mut().enumerate() {
        // SAFETY: `i < codes.len()`, which the caller says the row has.
        *code = unsafe { int8_at(row, i) };
        sum += i32::from(*code);
    }
    sum
}

/// # Safety
/// See `Kernels::load_int16`. Inlined into the vector tables, where the compiler vectorises it.
#[inline(always)]
pub(super) unsafe fn load_int16(row: *const u8, values: &mut [f32]) {
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: `i < values.len()`, which the caller says the row has.
        *value = unsafe { int16_at(row, i) };
    }
}

/// # Safety
/// See `Kernels::load_f16`.
pub(super) unsafe fn load_f16(row: *const u8, values: &mut [f32]) {
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: `i < values.len()`, which the caller says the row has.
        *value = unsafe { f16_at(row, i) };
    }
}
