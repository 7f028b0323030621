//! Idle processors that wake quickly while programs use the mount.
//!
//! A request wakes a thread of the daemon, and the answer wakes the program. On a virtual machine a
//! processor that has nothing to do goes back to the host, and waking it takes longer than most
//! requests do; deep idle states of a real processor cost as much.
//!
//! Owns what this daemon asks of the kernel's power management (`Documentation/power/pm_qos_interface.rst`).
//! Must never ask for anything while the mount is not in use, and nothing may depend on the answer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

/// Takes the longest acceptable time for a wake, in microseconds, for as long as it is open.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// The part of the kernel that chooses the state of an idle processor.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The driver of virtual machines. It keeps a processor from going back to the host only if no time
/// at all is acceptable.
const VIRTUAL_DRIVER: &str = "haltpoll";
const VIRTUAL_LIMIT_US: i32 = 0;
/// Allows the first idle state of a real processor, which takes little power, and none below it.
const LIMIT_US: i32 = 2;
/// The kernel's value for "any time will do" (`PM_QOS_CPU_LATENCY_DEFAULT_VALUE`).
const ANY_US: i32 = 2_000_000_000;
/// How many requests begin a time of use.
const BEGINS_WITH: u64 = 16;
/// It ends after this many periods in a row with fewer than this many requests each.
const ENDS_AFTER: u32 = 5;
const USED_FROM: u64 = 4;
const PERIOD: Duration = Duration::from_millis(10);

/// How idle processors wake while requests arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakes {
    /// Quickly, if the kernel allows this daemon to ask for that.
    Quick,
    /// As they always do on this machine.
    Unchanged,
}

/// Asks for quick wakes while requests arrive.
#[derive(Debug)]
pub(crate) struct QuickWake {
    requests: AtomicU64,
    is_in_use: AtomicBool,
    /// The device, and what is written to it; otherwise the reason why nothing is asked for.
    ask: Result<(File, i32), &'static str>,
}

impl QuickWake {
    /// Determines whether this daemon can ask, unless wakes stay unchanged.
    pub(crate) fn detect(wanted: Wakes) -> Self {
        if wanted == Wakes::Unchanged {
            return Self::with(Err("switched off"));
        }
        let driver = fs::read_to_string(DRIVER).unwrap_or_default();
        let Some(limit) = limit_of(driver.trim()) else {
            return Self::with(Err("this kernel does not choose the state of idle processors"));
        };
        let device = OpenOptions::new().write(true).open(DEVICE);
        Self::with(device.map(|device| (device, limit)).map_err(|error| refusal_of(&error)))
    }

    fn with(ask: Result<(File, i32), &'static str>) -> Self {
        Self { requests: AtomicU64::new(0), is_in_use: AtomicBool::new(false), ask }
    }

    /// Returns why nothing is asked for, if so.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.ask.as_ref().err().copied()
    }

    /// Notes a request.
    pub(crate) fn note(self: &Arc<Self>, runtime: &Handle) {
        if self.ask.is_err() {
            return;
        }
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        if (before + 1).is_multiple_of(BEGINS_WITH) && !self.is_in_use.swap(true, Ordering::Relaxed)
        {
            let used = TimeOfUse(Arc::clone(self));
            #[expect(
                clippy::disallowed_methods,
                reason = "this crate has no seam for tasks; there is one of these at most"
            )]
            drop(runtime.spawn(used.run()));
        }
    }

    fn write(&self, limit_us: i32) {
        if let Ok((device, _)) = &self.ask
            && let Err(error) = (&mut &*device).write_all(&limit_us.to_ne_bytes())
        {
            tracing::debug!(%error, limit_us, "{DEVICE} cannot be written");
        }
    }
}

/// A time in which the mount is used. Its end takes back what was asked for, also if the task is dropped.
struct TimeOfUse(Arc<QuickWake>);

impl TimeOfUse {
    async fn run(self) {
        let wake = &self.0;
        if let Ok((_, limit_us)) = &wake.ask {
            wake.write(*limit_us);
        }
        let (mut unused, mut before) = (0, wake.requests.load(Ordering::Relaxed));
        while unused < ENDS_AFTER {
            #[expect(
                clippy::disallowed_methods,
                reason = "this crate has no seam for time, and nothing depends on how long it is"
            )]
            tokio::time::sleep(PERIOD).await;
            let now = wake.requests.load(Ordering::Relaxed);
            unused = if now - before < USED_FROM { unused + 1 } else { 0 };
            before = now;
        }
    }
}

impl Drop for TimeOfUse {
    fn drop(&mut self) {
        self.0.write(ANY_US);
        self.0.is_in_use.store(false, Ordering::Relaxed);
    }
}

/// Returns what to ask of a driver; `None` if there is none.
fn limit_of(driver: &str) -> Option<i32> {
    match driver {
        "" | "none" => None,
        VIRTUAL_DRIVER => Some(VIRTUAL_LIMIT_US),
        _ => Some(LIMIT_US),
    }
}

fn refusal_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "only root may write /dev/cpu_dma_latency",
        io::ErrorKind::NotFound => "there is no /dev/cpu_dma_latency",
        _ => "/dev/cpu_dma_latency cannot be opened",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that is a file, and its user.
    struct Fake {
        device: tempfile::NamedTempFile,
        wake: Arc<QuickWake>,
    }

    impl Fake {
        fn new() -> Self {
            let device = tempfile::NamedTempFile::new().unwrap();
            let wake = Arc::new(QuickWake::with(Ok((device.reopen().unwrap(), 7))));
            Self { device, wake }
        }

        /// Makes requests, then waits. The time is virtual.
        async fn request(&self, count: u64, then: Duration) {
            (0..count).for_each(|_| self.wake.note(&Handle::current()));
            #[expect(clippy::disallowed_methods, reason = "this crate has no seam for time")]
            tokio::time::sleep(then).await;
        }

        /// What was written to the device so far.
        fn written(&self) -> Vec<i32> {
            let bytes = fs::read(self.device.path()).unwrap();
            bytes.as_chunks::<4>().0.iter().map(|value| i32::from_ne_bytes(*value)).collect()
        }
    }

    fn in_virtual_time(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn it_asks_while_requests_arrive_and_not_after() {
        let (fake, soon) = (Fake::new(), PERIOD / 2);
        in_virtual_time(async {
            fake.request(BEGINS_WITH - 1, Duration::from_mins(1)).await;
            assert!(fake.written().is_empty(), "too few");
            fake.request(1, soon).await;
            assert_eq!(fake.written(), [7]);
            fake.request(10 * BEGINS_WITH, PERIOD * (ENDS_AFTER - 1)).await;
            assert_eq!(fake.written(), [7], "what comes meanwhile is part of it");
            fake.request(0, 2 * PERIOD).await;
            assert_eq!(fake.written(), [7, ANY_US]);
            fake.request(BEGINS_WITH, soon).await;
            assert_eq!(fake.written(), [7, ANY_US, 7]);
        });
        assert_eq!(fake.written(), [7, ANY_US, 7, ANY_US], "the runtime has ended");
        assert!(!fake.wake.is_in_use.load(Ordering::Relaxed));
    }

    #[test]
    fn a_mount_in_steady_use_asks_once() {
        let fake = Fake::new();
        in_virtual_time(async {
            for _ in 0..100 * ENDS_AFTER {
                fake.request(BEGINS_WITH, PERIOD).await;
            }
            assert_eq!(fake.written(), [7]);
            // Fewer end it.
            for _ in 0..2 * ENDS_AFTER {
                fake.request(USED_FROM - 1, PERIOD).await;
            }
            assert_eq!(fake.written()[..2], [7, ANY_US]);
        });
    }

    #[test]
    fn what_it_asks_depends_on_the_driver() {
        assert_eq!(limit_of("haltpoll"), Some(0));
        assert_eq!((limit_of("intel_idle"), limit_of("acpi_idle")), (Some(2), Some(2)));
        assert_eq!((limit_of("none"), limit_of("")), (None, None));
        assert_eq!(QuickWake::detect(Wakes::Unchanged).refusal(), Some("switched off"));
    }
}
