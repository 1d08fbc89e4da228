//! Every table against the scalar one, at the lengths where vector code goes wrong.

use half::f16;

use super::Random;
use super::guarded::Guarded;
use crate::distance::{DotRows, Kernels, Query, available, choose, scalar};
use crate::options::{Metric, Precision};

const ROWS_MAX: usize = 9;

fn lengths() -> impl Iterator<Item = usize> {
    (1..=130).chain(191..=193).chain(255..=257).chain([383, 384, 768, 1000, 1536, 3072, 4096])
}

fn guards() -> Vec<Guarded> {
    (0..ROWS_MAX).map(|_| Guarded::new(4 * 4096)).collect()
}

fn values_query(values: &[f32]) -> Query {
    let mut query = Query::new();
    query.set_vector(Precision::F32, Metric::InnerProduct, values, 1.0);
    query
}

fn codes_query(biased: &[u8]) -> Query {
    let mut query = Query::new();
    // SAFETY: the row is a slice of that length.
    unsafe { query.set_row(Precision::Int8, Metric::Cosine, biased.len(), biased.as_ptr(), 1.0, 0.0, 1.0) };
    query
}

fn int16_bytes(codes: impl Iterator<Item = i16>) -> Vec<u8> {
    codes.flat_map(i16::to_le_bytes).collect()
}

fn f16_bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect()
}

fn f32_bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn at<const BYTES: usize>(row: &[u8], i: usize) -> [u8; BYTES] {
    row.as_chunks().0[i]
}

type Pick = fn(&Kernels) -> DotRows;
type Read = fn(&[u8], usize) -> f32;
type Make = fn(&mut Random, usize) -> Vec<u8>;

/// A float kernel: its name, where it is, how its rows are made and read, whether it squares differences.
struct Case {
    name: &'static str,
    pick: Pick,
    make: Make,
    read: Read,
    l2: bool,
}

const INT8_MAKE: Make = |random, dims| (0..dims).map(|_| (random.next() >> 8) as u8).collect();
const INT16_MAKE: Make = |random, dims| int16_bytes((0..dims).map(|_| (random.next() >> 8) as i16));
const F16_MAKE: Make = |random, dims| f16_bytes(random.vector(dims).into_iter());
const F32_MAKE: Make = |random, dims| f32_bytes(random.vector(dims).into_iter());
const INT8_READ: Read = |row, i| f32::from(row[i]) - 128.0;
const INT16_READ: Read = |row, i| f32::from(i16::from_le_bytes(at(row, i)));
const F16_READ: Read = |row, i| f16::from_le_bytes(at(row, i)).to_f32();
const F32_READ: Read = |row, i| f32::from_le_bytes(at(row, i));

const CASES: [Case; 6] = [
    Case {
        name: "dot_int8_values",
        pick: |k| k.dot_int8_values,
        make: INT8_MAKE,
        read: INT8_READ,
        l2: false,
    },
    Case { name: "dot_int16", pick: |k| k.dot_int16, make: INT16_MAKE, read: INT16_READ, l2: false },
    Case { name: "dot_f16", pick: |k| k.dot_f16, make: F16_MAKE, read: F16_READ, l2: false },
    Case { name: "dot_f32", pick: |k| k.dot_f32, make: F32_MAKE, read: F32_READ, l2: false },
    Case { name: "l2_f32", pick: |k| k.l2_f32, make: F32_MAKE, read: F32_READ, l2: true },
    Case { name: "l2_f16", pick: |k| k.l2_f16, make: F16_MAKE, read: F16_READ, l2: true },
];

/// Runs a kernel on batches of every size and gives each result to `check` with its row's number.
fn in_batches(kernel: DotRows, query: &Query, rows: &[*const u8], mut check: impl FnMut(usize, f32)) {
    for count in 0..=rows.len() {
        let mut dots = [f32::NAN; ROWS_MAX + 1];
        // SAFETY: callers hand rows of the query's length in the kernel's format.
        unsafe { kernel(query, &rows[..count], &mut dots) };
        (0..count).for_each(|i| check(i, dots[i]));
        assert!(dots[count..].iter().all(|dot| dot.is_nan()), "wrote past the rows");
    }
}

#[test]
fn float_kernels_stay_within_their_error_bound_and_their_rows() {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let mut guards = guards();
    for case in CASES {
        for dims in lengths() {
            let values = random.vector(dims);
            let query = values_query(&values);
            let rows: Vec<Vec<u8>> = (0..ROWS_MAX).map(|_| (case.make)(&mut random, dims)).collect();
            let pointers: Vec<_> = guards.iter_mut().zip(&rows).map(|(guard, row)| guard.hold(row)).collect();
            let expected: Vec<(f64, f64)> = rows
                .iter()
                .map(|row| {
                    let terms = values.iter().enumerate().map(|(i, &q)| {
                        let (q, v) = (f64::from(q), f64::from((case.read)(row, i)));
                        if case.l2 { (q - v) * (q - v) } else { q * v }
                    });
                    terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
                })
                .collect();
            for kernels in available() {
                in_batches((case.pick)(kernels), &query, &pointers, |i, dot| {
                    let (sum, magnitude) = expected[i];
                    let bound = (dims as f64 / 16.0 + 16.0) * 2.0f64.powi(-24) * magnitude;
                    let error = (f64::from(dot) - sum).abs();
                    assert!(error <= bound, "{} {} dims {dims}: {dot} for {sum}", kernels.name, case.name);
                });
            }
        }
    }
}

#[test]
fn int8_dots_are_exact_and_stay_within_their_rows() {
    let mut random = Random(0xFEDC_BA98_7654_3211);
    let mut guards = guards();
    for dims in lengths() {
        for pattern in 0..6 {
            let mut make = |side: usize| -> Vec<u8> {
                let code = |i: usize, random: &mut Random| match pattern {
                    0 => 255,
                    1 => 1,
                    2 => [255, 1][side],
                    3 => [1, 255][(i + side) % 2],
                    // No encoder writes a 0, but a damaged file may hold one.
                    4 => 0,
                    _ => (random.next() >> 8) as u8,
                };
                (0..dims).map(|i| code(i, &mut random)).collect()
            };
            let biased = make(0);
            let rows: Vec<Vec<u8>> = (0..ROWS_MAX).map(|_| make(1)).collect();
            let query = codes_query(&biased);
            let pointers: Vec<_> = guards.iter_mut().zip(&rows).map(|(guard, row)| guard.hold(row)).collect();
            let code = |byte: u8| i64::from(byte) - 128;
            for kernels in available() {
                in_batches(kernels.dot_int8, &query, &pointers, |i, dot| {
                    let expected: i64 = biased.iter().zip(&rows[i]).map(|(&q, &v)| code(q) * code(v)).sum();
                    assert_eq!(dot, expected as f32, "{} dims {dims} pattern {pattern}", kernels.name);
                });
            }
        }
    }
}

#[test]
fn sketch_dots_are_exact_and_stay_within_their_rows() {
    let mut random = Random(0x1357_9BDF_0246_8ACE);
    let mut guards = guards();
    for dims in lengths() {
        for pattern in 0..4 {
            let biased: Vec<u8> = match pattern {
                0 => vec![255; dims],
                1 => vec![0; dims],
                _ => INT8_MAKE(&mut random, dims),
            };
            let row = |random: &mut Random| -> Vec<u8> {
                let byte = |random: &mut Random| if pattern < 2 { 255 } else { (random.next() >> 8) as u8 };
                (0..dims.div_ceil(128) * 16).map(|_| byte(random)).collect()
            };
            let rows: Vec<Vec<u8>> = (0..ROWS_MAX).map(|_| row(&mut random)).collect();
            let query = codes_query(&biased);
            let pointers: Vec<_> = guards.iter_mut().zip(&rows).map(|(guard, row)| guard.hold(row)).collect();
            let level = |row: &[u8], i: usize| i64::from(row[i / 128 * 16 + i % 16] >> (i % 128 / 16) & 1);
            for kernels in available() {
                in_batches(kernels.dot_sketch, &query, &pointers, |i, dot| {
                    let codes = biased.iter().enumerate();
                    let expected: i64 =
                        codes.map(|(at, &q)| (i64::from(q) - 128) * level(&rows[i], at)).sum();
                    assert_eq!(dot, expected as f32, "{} dims {dims} pattern {pattern}", kernels.name);
                });
            }
        }
    }
}

#[test]
fn int8_dots_of_the_longest_vectors_do_not_overflow() {
    for (q, v) in [(255, 255), (255, 1), (1, 255), (1, 1), (0, 255), (0, 0), (255, 0)] {
        let dims = crate::options::DIMS_MAX as usize;
        let (biased, row) = (vec![q; dims], vec![v; dims]);
        let query = codes_query(&biased);
        let expected = (i64::from(q) - 128) * (i64::from(v) - 128) * dims as i64;
        for kernels in available() {
            let mut dots = [0.0; 5];
            // SAFETY: the rows are slices of that length.
            unsafe { (kernels.dot_int8)(&query, &[row.as_ptr(); 5], &mut dots) };
            assert_eq!(dots, [expected as f32; 5], "{} {q} {v}", kernels.name);
            let expected = ((i64::from(q) - 128) * dims as i64) as f32;
            // SAFETY: 65,536 levels take 8,192 bytes.
            unsafe { (kernels.dot_sketch)(&query, &[[0xFF; 8192].as_ptr(); 5], &mut dots) };
            assert_eq!(dots, [expected; 5], "{} {q}", kernels.name);
        }
    }
}

#[test]
fn extreme_floats_neither_panic_nor_stray() {
    for dims in [1, 7, 8, 33, 100] {
        for (q, v) in [(1.0f32, 32_767i16), (-1.0, 32_767), (1.0, -32_767), (3e38, 32_767), (1e-45, 1)] {
            let query = values_query(&vec![q; dims]);
            let row = int16_bytes((0..dims).map(|i| if i % 2 == 0 { v } else { -v }));
            let mut expected = [0.0];
            // SAFETY: the row is a slice of that length.
            unsafe { (scalar().dot_int16)(&query, &[row.as_ptr()], &mut expected) };
            for kernels in available() {
                let mut dots = [0.0];
                // SAFETY: the row is a slice of that length.
                unsafe { (kernels.dot_int16)(&query, &[row.as_ptr()], &mut dots) };
                if q.abs() == 1.0 {
                    assert_eq!(dots, expected, "{}", kernels.name);
                }
            }
        }
        for (q, v) in [(f32::MAX, f32::MAX), (f32::MAX, -f32::MAX), (1e-45, 1e-45)] {
            let query = values_query(&vec![q; dims]);
            let row = f32_bytes((0..dims).map(|_| v));
            for kernels in available() {
                let mut dots = [0.0; 2];
                // SAFETY: the row is a slice of that length.
                unsafe {
                    (kernels.dot_f32)(&query, &[row.as_ptr()], &mut dots);
                    (kernels.l2_f32)(&query, &[row.as_ptr()], &mut dots[1..]);
                }
                let expected = if q < 1.0 { 0.0 } else { v.signum() * f32::INFINITY };
                assert_eq!(dots[0], expected, "{}", kernels.name);
                assert_eq!(dots[1], if v < 0.0 { f32::INFINITY } else { 0.0 }, "{}", kernels.name);
            }
        }
    }
}

#[test]
fn loads_agree_with_the_definition_and_stay_within_their_rows() {
    let mut random = Random(0x0F0F_1234_0F0F_4321);
    let mut guard = Guarded::new(4 * 4096);
    for dims in lengths() {
        for kernels in available() {
            let row = INT8_MAKE(&mut random, dims);
            let mut codes = vec![0; dims];
            // SAFETY: the row has `dims` components.
            let sum = unsafe { (kernels.load_int8)(guard.hold(&row), &mut codes) };
            assert_eq!(sum, codes.iter().map(|&code| i32::from(code)).sum::<i32>());
            assert!((0..dims).all(|i| f32::from(codes[i]) == INT8_READ(&row, i)), "{} {dims}", kernels.name);

            let mut values = vec![f32::NAN; dims];
            let row = INT16_MAKE(&mut random, dims);
            // SAFETY: the row has `dims` components.
            unsafe { (kernels.load_int16)(guard.hold(&row), &mut values) };
            assert!((0..dims).all(|i| values[i] == INT16_READ(&row, i)), "{} {dims}", kernels.name);

            let row = F16_MAKE(&mut random, dims);
            // SAFETY: the row has `dims` components.
            unsafe { (kernels.load_f16)(guard.hold(&row), &mut values) };
            assert!((0..dims).all(|i| values[i] == F16_READ(&row, i)), "{} {dims}", kernels.name);
        }
    }
}

#[test]
fn a_query_filled_again_keeps_nothing_of_the_last() {
    let mut query = Query::new();
    query.set_vector(Precision::Int8, Metric::L2, &[9.0; 200], 9.0 * 200f64.sqrt());
    query.set_vector(Precision::Int8, Metric::L2, &[1.0; 65], 65f64.sqrt());
    assert_eq!((query.codes().len(), query.code_count(), query.code_sum()), (128, 65, 65 * 127));
    assert!(query.codes()[..65].iter().all(|&code| code == 127));
    assert!(query.codes()[65..].iter().all(|&code| code == 0));
    assert_eq!(query.values(), [1.0; 65]);
    assert_eq!((query.values().as_ptr() as usize % 64, query.codes().as_ptr() as usize % 64), (0, 0));
    query.set_vector(Precision::F32, Metric::L2, &[1.0], 1.0);
    assert_eq!((query.codes().len(), query.code_count(), query.code_sum()), (0, 0, 0));
}

#[test]
fn a_named_table_is_taken_only_where_it_runs() {
    for kernels in available() {
        assert_eq!(choose(kernels.name).name, kernels.name);
    }
    let best = available().last().unwrap().name;
    for unknown in ["", "sse9", "AVX2 "] {
        assert_eq!(choose(unknown).name, best);
    }
}
