//! The terminal.
//!
//! Owns its state: whatever ends the page, the terminal is restored. Must never block: a key, a
//! signal or the next page may come at any time.

use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::figures::{Rates, Sample};
use super::{Watch, WatchedMount, page};
use crate::cli::failure::{Failure, Outcome};
use crate::clock::sleep;

/// How often keys are checked.
const KEYS_EVERY: Duration = Duration::from_millis(50);
/// The most intervals in the curve.
const CURVE_MAX: usize = 500;

/// The terminal in the mode of the page.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        ratatui::try_restore().ok();
    }
}

/// The signals that end the page.
struct PageSignals([Signal; 3]);

impl PageSignals {
    fn listen() -> Outcome<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::failed(format!("listen for signals: {error}")))
        };
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [one, two, three] = kinds;
        Ok(Self([listen(one)?, listen(two)?, listen(three)?]))
    }

    async fn come(&mut self) {
        let [one, two, three] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = two.recv() => {}
            _ = three.recv() => {}
        }
    }
}

/// What the user requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageAction {
    Nothing,
    Redraw,
    Quit,
}

/// Shows one page after another until the user quits.
pub(super) async fn watch(mount: &WatchedMount<'_>, command: &Watch, colour: bool) -> Outcome<()> {
    let mut signals = PageSignals::listen()?;
    let mut before = mount.look().await?;
    let failed = |error| Failure::failed(format!("show a page on the terminal: {error}"));
    let mut screen = Screen(ratatui::try_init().map_err(failed)?);
    let mut rates = Rates::between(&before, &before);
    let (clock, mut curve) = (&mount.clock, Vec::new());
    let mut left = command.count;
    loop {
        screen.0.draw(|frame| page::draw(frame, &rates, &curve, colour)).map_err(failed)?;
        if left == Some(0) {
            return Ok(());
        }
        let next = before.at + command.interval;
        while clock.mono() < next {
            let pause = next.saturating_sub(clock.mono()).min(KEYS_EVERY);
            tokio::select! {
                () = sleep(pause) => {}
                () = signals.come() => return Ok(()),
            }
            match keys().map_err(failed)? {
                PageAction::Nothing => {}
                PageAction::Redraw => {
                    screen
                        .0
                        .draw(|frame| page::draw(frame, &rates, &curve, colour))
                        .map_err(failed)?;
                }
                PageAction::Quit => return Ok(()),
            }
        }
        let now: Sample = tokio::select! {
            now = mount.look() => now?,
            () = signals.come() => return Ok(()),
        };
        rates = Rates::between(&before, &now);
        before = now;
        curve.push(rates.rate(rates.found.hits()) as u64);
        if curve.len() > CURVE_MAX {
            curve.remove(0);
        }
        left = left.map(|left| left.saturating_sub(1));
    }
}

/// Reads the typed keys.
fn keys() -> std::io::Result<PageAction> {
    let mut action = PageAction::Nothing;
    while poll(Duration::ZERO)? {
        match wish_of(&read()?) {
            PageAction::Quit => return Ok(PageAction::Quit),
            PageAction::Redraw => action = PageAction::Redraw,
            PageAction::Nothing => {}
        }
    }
    Ok(action)
}

fn wish_of(event: &Event) -> PageAction {
    match event {
        Event::Resize(..) => PageAction::Redraw,
        Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
            KeyCode::Char('q') | KeyCode::Esc => PageAction::Quit,
            // A terminal in raw mode sends no signals for these keys.
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                PageAction::Quit
            }
            _ => PageAction::Nothing,
        },
        _ => PageAction::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn what_ends_the_page() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        for (event, action) in [
            (key(KeyCode::Char('q'), KeyModifiers::NONE), PageAction::Quit),
            (key(KeyCode::Esc, KeyModifiers::NONE), PageAction::Quit),
            (key(KeyCode::Char('c'), KeyModifiers::CONTROL), PageAction::Quit),
            (key(KeyCode::Char('c'), KeyModifiers::NONE), PageAction::Nothing),
            (Event::Resize(20, 10), PageAction::Redraw),
            (Event::FocusLost, PageAction::Nothing),
        ] {
            assert_eq!(wish_of(&event), action, "{event:?}");
        }
    }
}
