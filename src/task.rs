//! Spawning and randomness, each in one place.
//!
//! Owns how background work is started. Must never start anything without a name, so that a stuck
//! thread or task can be identified. In a simulation random numbers come from a seed, and blocking
//! work runs on the simulation's one thread, so that nothing depends on the machine.

use std::any::Any;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use rand::RngExt as _;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// A value of any type.
pub type AnyValue = Box<dyn Any + Send>;

/// Starts a named task on `runtime`.
///
/// The work is boxed, as in the other functions here, so that the machinery behind it is compiled
/// once and not for each call.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub fn spawn<T: Send + 'static>(
    runtime: &Handle,
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    let work = work.instrument(tracing::debug_span!("task", name));
    #[cfg(any(test, feature = "test-util"))]
    let work = simulated::by_itself(work);
    runtime.spawn(work)
}

/// Runs blocking work (files, compression) on the runtime's threads for such work.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    #[cfg(any(test, feature = "test-util"))]
    if simulated::is_on() {
        return work();
    }
    let value = any_blocking(Box::new(move || Box::new(work()))).await;
    *value.downcast().expect("the value is what the work returned")
}

#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
async fn any_blocking(work: Box<dyn FnOnce() -> AnyValue + Send>) -> AnyValue {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs asynchronous work to its end on the current thread.
pub fn block_on<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    let mut value = None;
    {
        let work: Pin<&mut dyn Future<Output = ()>> = pin!(async { value = Some(work.await) });
        runtime.block_on(work);
    }
    value.expect("the work has ended")
}

/// Starts a named thread.
///
/// # Errors
///
/// When the system allows no further thread.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Runs `work` on this thread and on up to `helpers` more at the same time, and returns what all of
/// them have returned. There are fewer if the system allows no further thread, and none in a
/// simulation: `work` must share what is to be done.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub fn together<T: Send>(name: &str, helpers: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    #[cfg(any(test, feature = "test-util"))]
    if simulated::is_on() {
        return vec![work()];
    }
    std::thread::scope(|scope| {
        let spawn =
            |_| std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, &work);
        let threads: Vec<_> = (0..helpers).map_while(|n| spawn(n).ok()).collect();
        let mut done = vec![work()];
        for thread in threads {
            match thread.join() {
                Ok(value) => done.push(value),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    })
}

/// Returns a random number.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub fn random_u64() -> u64 {
    #[cfg(any(test, feature = "test-util"))]
    if let Some(number) = simulated::random_u64() {
        return number;
    }
    rand::rng().random()
}

/// Returns a random time up to `longest`.
pub fn random_part(longest: Duration) -> Duration {
    longest.mul_f64((random_u64() % 1001) as f64 / 1000.0)
}

/// Turns the rest of the thread's work into a simulation.
#[cfg(any(test, feature = "test-util"))]
pub mod simulated {
    use std::cell::Cell;
    use std::pin::pin;

    thread_local! {
        /// The random state of the running task; `None` outside a simulation.
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Ends the simulation when it is dropped.
    #[derive(Debug)]
    pub struct On(());

    /// Begins a simulation on this thread. Its runtime must have only this thread: all work of
    /// [`super::blocking`] runs on it at once, and all random numbers derive from `seed`.
    #[must_use]
    pub fn begin(seed: u64) -> On {
        STATE.set(Some(seed));
        On(())
    }

    impl Drop for On {
        fn drop(&mut self) {
            STATE.set(None);
        }
    }

    /// Gives a task random numbers of its own. They then do not depend on which of two tasks runs
    /// first, which the runtime may decide at random.
    pub(super) fn by_itself<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
        let mut state = random_u64();
        async move {
            let mut work = pin!(work);
            std::future::poll_fn(move |context| {
                let outer = STATE.replace(state);
                let polled = work.as_mut().poll(context);
                state = STATE.replace(outer);
                polled
            })
            .await
        }
    }

    pub(super) fn is_on() -> bool {
        STATE.get().is_some()
    }

    /// Returns the next number of SplitMix64.
    pub(super) fn random_u64() -> Option<u64> {
        let state = STATE.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}
