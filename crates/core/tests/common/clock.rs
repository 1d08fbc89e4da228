//! Processor time, which what else the machine does leaves alone.

/// Time that this process has used processors for, in µs.
pub fn process_us() -> f64 {
    #[cfg(unix)]
    return clock_us(libc::CLOCK_PROCESS_CPUTIME_ID);
    #[cfg(not(unix))]
    wall_us()
}

/// Time that this thread has used a processor for, in µs.
pub fn thread_us() -> f64 {
    #[cfg(unix)]
    return clock_us(libc::CLOCK_THREAD_CPUTIME_ID);
    #[cfg(not(unix))]
    wall_us()
}

#[cfg(unix)]
fn clock_us(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours to write.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "clock {clock}");
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Where no such clock is at hand; right on an idle machine, with one thread.
#[cfg(not(unix))]
fn wall_us() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64() * 1e6
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
