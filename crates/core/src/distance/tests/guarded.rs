//! Rows that end where readable memory ends: a kernel that reads one byte too many crashes the test.

/// Memory whose last page may not be touched.
#[cfg(all(unix, not(miri)))]
pub struct Guarded {
    base: *mut u8,
    readable: usize,
    mapped: usize,
}

#[cfg(all(unix, not(miri)))]
impl Guarded {
    pub fn new(bytes: usize) -> Self {
        // SAFETY: asks the system a question.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let readable = bytes.next_multiple_of(page);
        let mapped = readable + page;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base: *mut u8 = base.cast();
        // SAFETY: the last page of the mapping just made, which nobody else knows.
        assert_eq!(unsafe { libc::mprotect(base.add(readable).cast(), page, libc::PROT_NONE) }, 0);
        Guarded { base, readable, mapped }
    }

    /// Puts a row against the guard.
    pub fn hold(&mut self, row: &[u8]) -> *const u8 {
        assert!(row.len() <= self.readable);
        // SAFETY: the row fits the readable pages, and nobody else has them.
        unsafe {
            let start = self.base.add(self.readable - row.len());
            start.copy_from_nonoverlapping(row.as_ptr(), row.len());
            start
        }
    }
}

#[cfg(all(unix, not(miri)))]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whose rows nobody uses after the guard is gone.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

/// Without memory protection: plain memory, aligned as rows are.
#[cfg(any(not(unix), miri))]
pub struct Guarded(Vec<u64>);

#[cfg(any(not(unix), miri))]
impl Guarded {
    pub fn new(bytes: usize) -> Self {
        Guarded(vec![0; bytes.div_ceil(8)])
    }

    pub fn hold(&mut self, row: &[u8]) -> *const u8 {
        assert!(row.len() <= 8 * self.0.len());
        let start: *mut u8 = self.0.as_mut_ptr().cast();
        // SAFETY: the row fits the memory, which nobody else has.
        unsafe { start.copy_from_nonoverlapping(row.as_ptr(), row.len()) };
        start
    }
}
