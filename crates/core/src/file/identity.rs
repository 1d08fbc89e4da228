//! Which machine, since which boot, and which file: what tells a process's death from a machine's.
//!
//! After a kill the page cache still has every store, so only what the dead writer was changing needs repair. After a
//! crash of the machine, or in a copy of the file, or when its file system was mounted anew, nothing is certain but what a
//! checksum confirms.

use std::sync::atomic::Ordering;

use super::shared::SharedState;
use crate::storage::FileId;
use crate::testing::{Planted, is_planted};

/// Boot and file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    boot: [u64; 2],
    file: FileId,
    /// A file system that was taken away and mounted again has lost what was not on the disk. 0 where the system does not
    /// tell.
    mount: u64,
}

/// What a plane's words say of who wrote it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWriter {
    /// It ran in this boot, on this very file.
    Here,
    /// The same, but through another mount of the file system: this one's memory is its memory, or it was unmounted since.
    OtherMount,
    /// Another boot, or another file.
    Elsewhere,
}

impl Identity {
    /// This boot of this machine, with this file. A system that does not tell its boot matches nothing, not even
    /// itself.
    pub fn current(file: FileId, mount: u64) -> Self {
        Identity { boot: boot_id().unwrap_or([0; 2]), file, mount }
    }

    /// Leaves the mark of who writes.
    pub fn write(&self, shared: &SharedState) {
        shared.boot[0].store(self.boot[0], Ordering::Relaxed);
        shared.boot[1].store(self.boot[1], Ordering::Relaxed);
        shared.device.store(self.file.device, Ordering::Relaxed);
        shared.inode.store(self.file.inode, Ordering::Relaxed);
        shared.mount.store(self.mount, Ordering::Relaxed);
    }

    /// Compares with the last writer's mark.
    pub fn last_writer(&self, shared: &SharedState) -> LastWriter {
        if is_planted(Planted::IdentityAlwaysSame) {
            return LastWriter::Here;
        }
        let boot = [shared.boot[0].load(Ordering::Relaxed), shared.boot[1].load(Ordering::Relaxed)];
        let (device, inode) = (shared.device.load(Ordering::Relaxed), shared.inode.load(Ordering::Relaxed));
        let same = boot == self.boot && device == self.file.device && inode == self.file.inode;
        match self.boot != [0; 2] && same {
            false => LastWriter::Elsewhere,
            true if self.mount == shared.mount.load(Ordering::Relaxed) => LastWriter::Here,
            true => LastWriter::OtherMount,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_id() -> Option<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| u64::from_str_radix(hex.get(range)?, 16).ok();
    Some([half(0..16)?, half(16..32)?])
}

#[cfg(target_vendor = "apple")]
fn boot_id() -> Option<[u64; 2]> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut bytes = size_of::<libc::timeval>();
    let mut name = [libc::CTL_KERN, libc::KERN_BOOTTIME];
    // SAFETY: the name has two elements, and the result is a timeval of the size given.
    let result = unsafe {
        libc::sysctl(name.as_mut_ptr(), 2, (&raw mut time).cast(), &mut bytes, std::ptr::null_mut(), 0)
    };
    (result == 0).then_some([time.tv_sec as u64, time.tv_usec as u64])
}

#[cfg(windows)]
fn boot_id() -> Option<[u64; 2]> {
    use windows_sys::Wdk::System::SystemInformation::{NtQuerySystemInformation, SystemTimeOfDayInformation};

    /// `SYSTEM_TIMEOFDAY_INFORMATION` as the kernel fills it; the published headers keep its fields to themselves.
    #[repr(C)]
    #[derive(Default)]
    struct TimeOfDay {
        boot_time: i64,
        current_time: i64,
        time_zone_bias: i64,
        time_zone_id: u32,
        reserved: u32,
        boot_time_bias: i64,
        sleep_time_bias: i64,
    }

    let (mut time, mut bytes) = (TimeOfDay::default(), 0);
    let size = size_of::<TimeOfDay>() as u32;
    // SAFETY: the class fills at most `size` bytes with integers, and `time` is as long.
    let status = unsafe {
        NtQuerySystemInformation(SystemTimeOfDayInformation, (&raw mut time).cast(), size, &mut bytes)
    };
    // When the clock is set, the system moves the boot time with it and counts the move in the bias: their difference
    // stays what it was at boot. Subtracting the uptime from the clock would not.
    (status == 0 && bytes == size).then(|| [time.boot_time.wrapping_sub(time.boot_time_bias) as u64, 0])
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
fn boot_id() -> Option<[u64; 2]> {
    // Every unclean end is then followed by a scan.
    None
}

#[cfg(all(test, any(unix, windows)))]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_one_id_as_long_as_it_lasts() {
        let first = boot_id().expect("this system tells its boot");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(boot_id(), Some(first));
        assert_ne!(first, [0; 2]);
    }
}
