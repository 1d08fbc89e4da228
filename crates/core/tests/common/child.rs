//! Children: the test binary run again in a role, so that a death by signal is seen and not shared.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "VECPLANE_TEST_ROLE";
const ARGUMENT: &str = "VECPLANE_TEST_ARGUMENT_";

/// In a child: its role. Each file that has children has a test `child_process` that plays it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In a child: what it was told.
pub fn argument(i: usize) -> String {
    std::env::var(format!("{ARGUMENT}{i}")).expect("an argument for the role")
}

/// A child that does not outlive the test.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a child ended.
#[derive(Debug, PartialEq)]
pub enum End {
    Done,
    Failed(i32),
    Signal(i32),
    TimedOut,
}

/// Starts this test binary as a child in a role. What it prints goes to the file `<log>`.
pub fn spawn(role: &str, arguments: &[&str], log: &Path) -> Running {
    start(Command::new(std::env::current_exe().unwrap()), role, arguments, log)
}

/// The same with mounts of its own, which go with it however it ends; `None`, with the reason printed, where the system has no
/// such thing.
pub fn spawn_with_own_mounts(role: &str, arguments: &[&str], log: &Path) -> Option<Running> {
    let mut unshare = Command::new("unshare");
    // Whoever is not root here is in there.
    let flags = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
    let may = Command::new("unshare").args([flags, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    match may {
        Ok(output) if output.status.success() => {}
        other => {
            // Not by a macro, whose output a test that passes does not show.
            let text =
                format!("!!! SKIPPED: nothing can be mounted here, so there is no full disk: {other:?}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            return None;
        }
    }
    unshare.arg(flags).arg(std::env::current_exe().unwrap());
    Some(start(unshare, role, arguments, log))
}

fn start(mut command: Command, role: &str, arguments: &[&str], log: &Path) -> Running {
    let out = std::fs::File::create(log).unwrap();
    command.args(["--exact", "child_process", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    for (i, argument) in arguments.iter().enumerate() {
        command.env(format!("{ARGUMENT}{i}"), argument);
    }
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    Running(command.spawn().unwrap())
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Stops all of the child's threads wherever they are; returns when they stand still.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        let pid = unsafe { libc::waitpid(self.pid(), &mut status, libc::WUNTRACED) };
        assert!(pid == self.pid() && libc::WIFSTOPPED(status), "the child ended: status {status}");
    }

    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Ends the child as `kill -9` does, and waits until it is gone.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for the child's own end; one that takes too long is killed.
    pub fn wait(mut self, most: Duration) -> End {
        let deadline = Instant::now() + most;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return end(status);
            }
            if Instant::now() > deadline {
                return End::TimedOut;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn end(status: ExitStatus) -> End {
    match (status.signal(), status.code()) {
        (Some(signal), _) => End::Signal(signal),
        (None, Some(0)) => End::Done,
        (None, code) => End::Failed(code.unwrap_or(-1)),
    }
}

/// Waits for the child to end well, and shows what it printed if it does not.
pub fn expect_done(child: Running, most: Duration, log: &Path) {
    let end = child.wait(most);
    let printed = std::fs::read_to_string(log).unwrap_or_default();
    assert!(end == End::Done, "the child ended with {end:?}:\n{printed}");
}

/// Waits until `ready` says so.
pub fn wait_until(what: &str, most: Duration, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + most;
    while !ready() {
        assert!(Instant::now() < deadline, "waited {most:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
