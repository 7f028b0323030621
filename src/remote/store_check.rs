//! What is known from the checks of the store.
//!
//! Owns whether the last check succeeded, and its refusal. Must never ask the store: `check` does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

use crate::error::{Error, Kind};

/// The state of the check.
#[derive(Debug, Default)]
pub(super) struct StoreCheck {
    succeeded: AtomicBool,
    /// Notified when a check succeeds.
    success: Notify,
    /// Held by the task that checks, or changes the format object.
    running: tokio::sync::Mutex<()>,
    /// A cached refusal, and until when it stays valid.
    refused: Mutex<Option<(Duration, Kind, String)>>,
}

impl StoreCheck {
    /// Returns when no other task checks.
    pub(super) async fn begin(&self) -> MutexGuard<'_, ()> {
        self.running.lock().await
    }

    /// As [`StoreCheck::begin`], if no other task checks at this moment.
    pub(super) fn try_begin(&self) -> Option<MutexGuard<'_, ()>> {
        self.running.try_lock().ok()
    }

    /// Reports whether the last check succeeded.
    pub(super) fn has_succeeded(&self) -> bool {
        self.succeeded.load(Ordering::Acquire)
    }

    /// Notes that a check has succeeded.
    pub(super) fn succeed(&self) {
        self.succeeded.store(true, Ordering::Release);
        self.success.notify_waiters();
        self.forget_refusal();
    }

    /// Notes that the store must be checked again.
    pub(super) fn fail(&self) {
        self.succeeded.store(false, Ordering::Release);
    }

    /// Waits until a check succeeds, if none has yet.
    pub(super) async fn success(&self) {
        let mut success = std::pin::pin!(self.success.notified());
        // From here on no notification is missed.
        success.as_mut().enable();
        if !self.has_succeeded() {
            success.await;
        }
    }

    /// Caches a refusal.
    pub(super) fn refuse(&self, until: Duration, kind: Kind, text: String) {
        *self.refused.lock() = Some((until, kind, text));
    }

    /// Returns the cached refusal, if it is valid.
    pub(super) fn refusal(&self, now: Duration) -> Option<Error> {
        let refused = self.refused.lock();
        let (_, kind, text) = refused.as_ref().filter(|(until, ..)| now < *until)?;
        Some(Error::new(*kind, text.clone()))
    }

    pub(super) fn forget_refusal(&self) {
        *self.refused.lock() = None;
    }
}
