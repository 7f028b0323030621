//! Exclusive and shared use of the machine.
//!
//! Owns the turns of the tests in this process: tests that measure deadlines have the machine
//! exclusively, the others share it. Must never be taken twice by one test, which would wait for itself.

use parking_lot::{Condvar, Mutex};

/// How many tests wait for the machine before it is given to them, one after the other. For each
/// change of the turn the tests that share the machine must end, and processors idle.
const GATHERED: usize = 4;

#[derive(Debug)]
struct State {
    sharing: usize,
    alone: bool,
    waiting: usize,
    /// No further test may share the machine until none waits.
    gathered: bool,
}

static STATE: Mutex<State> =
    Mutex::new(State { sharing: 0, alone: false, waiting: 0, gathered: false });
static CHANGED: Condvar = Condvar::new();

/// A turn; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Turn {
    alone: bool,
}

impl Turn {
    /// Waits while tests use the machine exclusively, or enough of them wait for that.
    pub(crate) fn shared() -> Self {
        let mut state = STATE.lock();
        CHANGED.wait_while(&mut state, |state| state.alone || state.gathered);
        state.sharing += 1;
        Self { alone: false }
    }

    /// Waits until no test uses the machine.
    pub(crate) fn alone() -> Self {
        let mut state = STATE.lock();
        state.waiting += 1;
        state.gathered |= state.waiting >= GATHERED;
        CHANGED.wait_while(&mut state, |state| state.alone || state.sharing > 0);
        state.waiting -= 1;
        state.gathered &= state.waiting > 0;
        state.alone = true;
        Self { alone: true }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        if self.alone {
            state.alone = false;
        } else {
            state.sharing -= 1;
        }
        drop(state);
        CHANGED.notify_all();
    }
}
