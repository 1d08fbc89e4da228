//! Work that leaves the event loop.
//!
//! Short calls run on the libuv pool. Long ones (batches, `verify`, the end of a plane) have threads of their own,
//! because the pool has four threads that searches would otherwise wait for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use napi::{Env, JsDeferred, JsValue, Task, sys};
use vecplane_core::{Error, Plane};

use crate::convert::{Returned, to_js};
use crate::error::{Failure, Outcome, guarded};
use crate::gate::Gate;

/// Turns a result into a JS value, on the thread that owns the environment.
pub type Convert<T> = fn(sys::napi_env, T) -> napi::Result<sys::napi_value>;
type Settle = Box<dyn FnOnce(Env) -> napi::Result<Returned>>;
type Deferred = JsDeferred<Returned, Settle>;
type Job = Box<dyn FnOnce() + Send>;

/// What a handle and its calls in flight share; `close` waits for the last of them to let go.
pub struct Shared {
    plane: Option<Plane>,
    /// Whether this handle changed anything, so that closing it has something to flush.
    wrote: AtomicBool,
    /// Takes batches in call order to the one thread that runs them; `None` before the first.
    lane: Mutex<Option<Sender<Job>>>,
    pub gate: Arc<Gate>,
    closing: Mutex<Option<Deferred>>,
}

impl Shared {
    /// Takes charge of an open plane.
    pub fn new(plane: Plane) -> Arc<Shared> {
        Arc::new(Shared {
            gate: Gate::of(plane.uuid()),
            plane: Some(plane),
            wrote: AtomicBool::new(false),
            lane: Mutex::new(None),
            closing: Mutex::new(None),
        })
    }

    /// The plane, to read from.
    pub fn plane(&self) -> &Plane {
        self.plane.as_ref().expect("only drop takes the plane")
    }

    /// The plane, to change.
    pub fn writing(&self) -> &Plane {
        self.wrote.store(true, Ordering::Relaxed);
        self.plane()
    }

    /// The promise of `close`, which whoever drops the last share keeps.
    pub fn close(self: Arc<Self>, env: &Env) -> napi::Result<Returned> {
        let (deferred, promise) = env.create_deferred()?;
        *lock(&self.closing) = Some(deferred);
        Ok(returned(promise))
    }

    /// The thread on which batches run one after another.
    fn lane(&self) -> Outcome<Sender<Job>> {
        let mut lane = lock(&self.lane);
        match &*lane {
            Some(jobs) => Ok(jobs.clone()),
            None => Ok(lane.insert(worker("vecplane-batch")?).clone()),
        }
    }
}

impl Drop for Shared {
    /// Ends a closed handle: nothing is in flight any more, so the flush covers everything that the handle wrote. A
    /// handle that was never closed is just let go; its records are in the page cache.
    fn drop(&mut self) {
        let Some(deferred) = lock(&self.closing).take() else { return };
        let plane = self.plane.take();
        let wrote = *self.wrote.get_mut();
        let end = move || {
            let flushed = guarded(|| match &plane {
                Some(plane) if wrote && plane.needs_flush() => Ok(plane.flush(None)?),
                _ => Ok(()),
            });
            // A plane that another was created over has nothing left to keep.
            let flushed = match flushed {
                Err(Failure::Core(Error::Replaced { .. })) => Ok(()),
                other => other,
            };
            // Gives the file back, unless another handle of this process shares it.
            drop(plane);
            settle(deferred, flushed, to_js);
        };
        // The event loop may be what runs this drop, and a flush waits for the disk.
        match worker("vecplane-close") {
            Ok(jobs) => run(&jobs, Box::new(end)),
            Err(_) => end(),
        }
    }
}

/// How JavaScript follows a call and stops it.
#[derive(Default)]
pub struct Control {
    aborted: AtomicBool,
    done: AtomicUsize,
    total: AtomicUsize,
}

impl Control {
    /// Asks the call to stop.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// How many records are done.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// How many there are, where the call itself finds out.
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// As `advance`, for a call that has found out how much there is to do.
    pub fn advance_of(&self, done: u64, total: u64) -> bool {
        self.total.store(total as usize, Ordering::Relaxed);
        self.advance(done as usize)
    }

    /// Notes progress and tells whether to go on.
    pub fn advance(&self, done: usize) -> bool {
        self.done.fetch_max(done, Ordering::Relaxed);
        !self.aborted.load(Ordering::Relaxed)
    }

    /// Fails once the call has been told to stop.
    pub fn check(&self) -> Outcome<()> {
        if self.advance(0) { Ok(()) } else { Err(Error::Aborted.into()) }
    }
}

struct Pooled<T, W> {
    work: Option<W>,
    convert: Convert<T>,
}

impl<T: Send + 'static, W: FnOnce() -> Outcome<T> + Send> Task for Pooled<T, W> {
    type Output = Outcome<T>;
    type JsValue = Returned;

    // The work goes away here and not with the task: its share of the plane must not wait for the event loop.
    fn compute(&mut self) -> napi::Result<Outcome<T>> {
        let work = self.work.take().expect("a task is computed once");
        Ok(guarded(work))
    }

    fn resolve(&mut self, env: Env, output: Outcome<T>) -> napi::Result<Returned> {
        finish(env, output, self.convert)
    }
}

/// Runs work on the libuv pool.
pub fn on_pool<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
    convert: Convert<T>,
) -> napi::Result<Returned> {
    Ok(returned(env.spawn(Pooled { work: Some(work), convert })?.promise_object()))
}

/// Runs a write on the libuv pool; while a compaction keeps writers waiting, behind it.
pub fn on_pool_in_turn<T: Send + 'static>(
    env: &Env,
    shared: Arc<Shared>,
    write: impl FnOnce(&Shared) -> Outcome<T> + Send + 'static,
    convert: Convert<T>,
) -> napi::Result<Returned> {
    let turn = if shared.plane().stands_still() { None } else { shared.gate.write() };
    let Some(turn) = turn else {
        let lane = Arc::clone(&shared);
        return on_thread(env, Some(lane), move || write(&shared), convert);
    };
    let work = move || {
        let _turn = turn;
        write(&shared)
    };
    on_pool(env, work, convert)
}

/// Runs work on a thread of its own: after earlier batches of the same handle if `lane` is given, else at once.
pub fn on_thread<T: Send + 'static>(
    env: &Env,
    lane: Option<Arc<Shared>>,
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
    convert: Convert<T>,
) -> napi::Result<Returned> {
    // The thread comes first: a promise that nobody can settle would keep the process alive for ever.
    let jobs = lane.map_or_else(|| worker("vecplane-task"), |shared| shared.lane());
    let jobs = jobs.map_err(|failure| failure.raise(env.raw()))?;
    let (deferred, promise) = env.create_deferred()?;
    run(&jobs, Box::new(move || settle(deferred, guarded(work), convert)));
    Ok(returned(promise))
}

/// Starts a thread that runs the jobs it is sent, in order, until the last sender is gone.
fn worker(name: &str) -> Outcome<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let thread =
        thread::Builder::new().name(name.into()).spawn(move || jobs.into_iter().for_each(|job| job()));
    let failed = |source| Error::Io { source, action: "start a thread for", path: name.into() };
    Ok(thread.map(|_| sender).map_err(failed)?)
}

fn run(jobs: &Sender<Job>, job: Job) {
    jobs.send(job).expect("a worker listens until its senders are gone");
}

fn settle<T: Send + 'static>(deferred: Deferred, outcome: Outcome<T>, convert: Convert<T>) {
    deferred.resolve(Box::new(move |env| finish(env, outcome, convert)));
}

fn finish<T>(env: Env, outcome: Outcome<T>, convert: Convert<T>) -> napi::Result<Returned> {
    match outcome {
        Ok(value) => convert(env.raw(), value).map(Returned),
        Err(failure) => Err(failure.raise(env.raw())),
    }
}

fn returned<'env>(promise: impl JsValue<'env>) -> Returned {
    Returned(promise.raw())
}

/// Locks are held for moments and nothing in them can be half done, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
