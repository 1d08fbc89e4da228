//! A search that asks JavaScript which records it may return.
//!
//! Each step runs on the libuv pool and ends; what JavaScript then takes its time for holds no thread. `predicate.js` drives
//! it, and lets a step run while the predicate is at work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use napi::bindgen_prelude::Object;
use napi::{Env, JsValue, sys};
use napi_derive::napi;
use vecplane_core::{Error, PredicateOptions, PredicateSearch, PredicateStep};

use crate::convert::*;
use crate::error::{Failure, Outcome, guarded};
use crate::task::{Shared, on_pool};

/// A search between two steps, with its share of the plane.
struct Running {
    search: PredicateSearch,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Cell {
    running: Mutex<Option<Running>>,
    ended: AtomicBool,
}

impl Cell {
    /// Runs a piece of the search, and lets go of it when that was the last.
    fn run<T>(&self, work: impl FnOnce(&mut Running) -> Outcome<(T, bool)>) -> Outcome<T> {
        let outcome = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let search = running.as_mut().ok_or(Failure::Core(Error::Aborted))?;
            let outcome = guarded(|| work(search));
            if !matches!(outcome, Ok((_, true))) {
                *running = None;
            }
            outcome
        };
        // Told to end meanwhile, by somebody who did not wait for the lock.
        if self.ended.load(Ordering::SeqCst) {
            self.let_go();
        }
        outcome.map(|(value, _)| value)
    }

    fn let_go(&self) {
        if let Ok(mut running) = self.running.try_lock() {
            *running = None;
        }
    }
}

/// See the module's first lines.
#[napi]
pub struct NativePredicateSearch(Arc<Cell>);

impl NativePredicateSearch {
    /// Starts a search; the plane is not given back before it has ended.
    pub fn start(shared: Arc<Shared>, vector: &[f32], options: &PredicateOptions) -> Outcome<Self> {
        let search = shared.plane().search_with_predicate(vector, options)?;
        let running = Mutex::new(Some(Running { search, shared }));
        Ok(NativePredicateSearch(Arc::new(Cell { running, ended: AtomicBool::new(false) })))
    }
}

#[napi]
impl NativePredicateSearch {
    /// Goes on; resolves to a batch, to nothing, or to the answer.
    #[napi]
    pub fn step(&self, env: Env) -> napi::Result<Returned> {
        let cell = Arc::clone(&self.0);
        let advance = move || {
            cell.run(|running| {
                // Closing waits for the search, so there is a plane.
                let _ = running.shared.plane();
                let step = running.search.advance()?;
                let goes_on = !matches!(step, PredicateStep::Done { .. });
                Ok((step, goes_on))
            })
        };
        on_pool(&env, advance, step_to_js)
    }

    /// Takes the verdicts on the oldest batch; tells whether the answer is likely to be there. Called between steps only.
    #[napi]
    pub fn give(&self, env: Env, verdicts: Verdicts) -> napi::Result<bool> {
        let given = self.0.run(|running| Ok((running.search.give(&verdicts.0)?, true)));
        given.map_err(|failure| failure.raise(env.raw()))
    }

    /// Gives everything back, at once or as soon as a step under way has ended.
    #[napi]
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        self.0.let_go();
    }
}

fn step_to_js(env: sys::napi_env, step: PredicateStep) -> napi::Result<sys::napi_value> {
    let mut object = Object::new(&Env::from_raw(env))?;
    match step {
        PredicateStep::Ask(batch) => object.set("asked", candidates(env, &batch)?)?,
        PredicateStep::Wait => {}
        PredicateStep::Done { hits: found, truncated } => {
            object.set("hits", Returned(hits(env, found)?))?;
            object.set("truncated", truncated)?;
        }
    }
    Ok(object.raw())
}
