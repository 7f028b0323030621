//! The page: figures as lines of text.
//!
//! Owns words, order and colours. Must be useful with only 20 columns, and without colours:
//! whatever is red says so in words, too.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use super::figures::{BusyRates, Rates, StoreNow};
use crate::cli::escape::printed;
use crate::cli::output::{count, time};
use crate::config::ByteSize;

/// The most kinds of requests and calls that are named.
const KINDS_MAX: usize = 5;
/// The most rows of clients, and of entries.
const ROWS_MAX: usize = 20;
/// The smallest room for a curve, in columns and rows.
const CURVE_COLUMNS_MIN: u16 = 30;
const CURVE_ROWS_MIN: u16 = 30;
const CURVE_ROWS: u16 = 3;
const NAME_COLUMNS: usize = 9;
/// The most rows for one problem.
const WRAPPED_MAX: usize = 6;

/// The style of a line on terminals with colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Plain,
    Head,
    Good,
    Bad,
}

/// A line: a name, which may be empty, and a text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PageLine {
    name: &'static str,
    text: String,
    tone: Tone,
}

/// Draws the page. `curve` has the hits per second of the last intervals, the latest last.
pub(super) fn draw(frame: &mut Frame<'_>, rates: &Rates, curve: &[u64], colour: bool) {
    let area = frame.area();
    let has_curve = area.width >= CURVE_COLUMNS_MIN && area.height >= CURVE_ROWS_MIN;
    let columns = usize::from(area.width);
    let top: Vec<PageLine> = summary(rates).iter().flat_map(|row| fitted(row, columns)).collect();
    let below_top: Vec<PageLine> =
        tables(rates, columns).iter().flat_map(|row| fitted(row, columns)).collect();
    let heights = [top.len() as u16, if has_curve { CURVE_ROWS + 1 } else { 0 }];
    let [above, middle, below] = Layout::vertical([
        Constraint::Length(heights[0]),
        Constraint::Length(heights[1]),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(styled(top, colour)), above);
    if has_curve {
        let [title, room] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(middle);
        frame.render_widget(Paragraph::new("hits/s, the latest at the right"), title);
        let columns = usize::from(room.width);
        let padded = columns.saturating_sub(curve.len());
        let shown = &curve[curve.len().saturating_sub(columns)..];
        let points: Vec<u64> = vec![0; padded].into_iter().chain(shown.iter().copied()).collect();
        let style = if colour { Style::new().fg(Color::Cyan) } else { Style::new() };
        frame.render_widget(Sparkline::default().data(&points).style(style), room);
    }
    frame.render_widget(Paragraph::new(styled(below_top, colour)), below);
}

/// Fits a row into a number of columns: it is cut, or continues in further rows if it may describe a problem.
fn fitted(row: &PageLine, columns: usize) -> Vec<PageLine> {
    let whole = line(row);
    if width(&whole) <= columns || columns == 0 {
        return vec![row.clone()];
    }
    if !matches!(row.name, "remote" | "backlog" | "note") {
        return vec![PageLine { name: "", text: cut(&whole, columns), tone: row.tone }];
    }
    let mut rows: Vec<String> = Vec::new();
    for word in whole.split_inclusive(' ') {
        match rows.last_mut() {
            Some(last) if width(last) + width(word.trim_end()) <= columns => last.push_str(word),
            Some(_) => rows.push(format!("  {word}")),
            None => rows.push(word.to_owned()),
        }
    }
    let rows = rows.into_iter().take(WRAPPED_MAX);
    rows.map(|text| PageLine { name: "", text: cut(text.trim_end(), columns), tone: row.tone })
        .collect()
}

/// Returns the width of a text in columns.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to the available room, and marks the cut.
fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if width(&short) >= columns {
            short.pop();
            break;
        }
    }
    short + "\u{2026}"
}

fn styled(rows: Vec<PageLine>, colour: bool) -> Vec<Line<'static>> {
    let style = |tone| {
        let style = match tone {
            Tone::Plain | Tone::Good => Style::new(),
            Tone::Head | Tone::Bad => Style::new().add_modifier(Modifier::BOLD),
        };
        match tone {
            Tone::Good if colour => style.fg(Color::Green),
            Tone::Bad if colour => style.fg(Color::Red),
            _ => style,
        }
    };
    rows.into_iter().map(|row| Line::from(Span::styled(line(&row), style(row.tone)))).collect()
}

fn line(row: &PageLine) -> String {
    if row.name.is_empty() {
        row.text.clone()
    } else {
        format!("{:<NAME_COLUMNS$} {}", row.name, row.text)
    }
}

/// Writes the page as text.
pub(super) fn plain(rates: &Rates) -> String {
    let rows = summary(rates).into_iter().chain(tables(rates, usize::MAX));
    rows.map(|row| line(&row).trim_end().to_owned() + "\n").collect()
}

/// Describes the state.
fn summary(rates: &Rates) -> Vec<PageLine> {
    let mut rows = Vec::new();
    let mut row = |name, text, tone| rows.push(PageLine { name, text, tone });
    let human = |bytes| ByteSize(bytes).human();
    let each = |number| per_second(rates.rate(number));
    let bytes_each = |bytes| format!("{}/s", human(rates.rate(bytes) as u64));
    row("", printed(rates.mount_point.as_bytes()), Tone::Head);
    match &rates.store {
        StoreNow::Absent => row("remote", "none".to_owned(), Tone::Plain),
        StoreNow::Up => row("remote", "up".to_owned(), Tone::Good),
        StoreNow::Down { trouble } => {
            let why = trouble.as_deref().unwrap_or("no answer");
            row("remote", format!("DOWN: {}", printed(why.as_bytes())), Tone::Bad);
        }
    }
    let ratio = rates.found.hit_ratio().map(|ratio| format!(", {:.0}%", ratio * 100.0));
    row("hits", each(rates.found.hits()) + &ratio.unwrap_or_default(), Tone::Plain);
    row("misses", each(rates.found.misses()), Tone::Plain);
    let moved = &rates.moved;
    for (name, number, bytes) in [
        ("fetched", moved.fetched, moved.fetched_bytes),
        ("published", moved.published, moved.published_bytes),
        ("uploaded", moved.uploaded, moved.uploaded_bytes),
    ] {
        row(name, format!("{}, {}", each(number), bytes_each(bytes)), Tone::Plain);
    }
    let backlog = &rates.backlog;
    let (left, tone) = match backlog.records {
        0 => ("none".to_owned(), Tone::Plain),
        records => {
            let changes = count(records, "change", "changes");
            let (size, oldest) = (human(backlog.bytes), time(backlog.oldest_ms));
            (format!("{changes}, {size}, oldest {oldest}"), Tone::Head)
        }
    };
    row("backlog", left, tone);
    let (used, limit) = (human(rates.cache.bytes), human(rates.cache.limit_bytes));
    row("cache", format!("{used} of {limit}"), Tone::Plain);
    row("entries", rates.cache.entries.to_string(), Tone::Plain);
    row("requests", kinds(rates, &rates.requests), Tone::Plain);
    row("calls", kinds(rates, &rates.calls), Tone::Plain);
    rows
}

/// The tables of clients and of the busiest entries. If a path does not fit, its last name is shown.
fn tables(rates: &Rates, columns: usize) -> Vec<PageLine> {
    let mut rows = vec![blank()];
    let BusyRates::Known { clients, entries } = &rates.busy else {
        let text = "no clients and entries: the daemon has an older version";
        rows.push(PageLine { name: "note", text: text.to_owned(), tone: Tone::Plain });
        return rows;
    };
    let mut row = |text: String, tone| rows.push(PageLine { name: "", text, tone });
    row(format!("{:>6} {:>6} CLIENT", "HITS/S", "MISS/S"), Tone::Head);
    for client in clients.iter().take(ROWS_MAX) {
        let (hits, misses) = (rates.rate(client.hits), rates.rate(client.misses));
        let name = printed(client.name.as_bytes());
        row(format!("{hits:>6.1} {misses:>6.1} {name}"), Tone::Plain);
    }
    row(String::new(), Tone::Plain);
    row(format!("{:>6} ENTRY", "OPENS"), Tone::Head);
    for entry in entries.iter().take(ROWS_MAX) {
        // The daemon has escaped it: a backslash in it belongs to an escape.
        let path = printed(entry.path.as_bytes()).replace("\\\\", "\\");
        let whole = format!("{:>6} {path}", entry.opens);
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_whole = width(&whole) <= columns;
        row(if is_whole { whole } else { format!("{:>6} {name}", entry.opens) }, Tone::Plain);
    }
    rows
}

fn blank() -> PageLine {
    PageLine { name: "", text: String::new(), tone: Tone::Plain }
}

fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") }
}

/// Names the most frequent kinds.
fn kinds(rates: &Rates, all: &BTreeMap<String, u64>) -> String {
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    let text = |(name, number): &(&String, &u64)| {
        format!("{} {}", printed(name.as_bytes()), per_second(rates.rate(**number)))
    };
    let parts: Vec<String> = sorted.iter().take(KINDS_MAX).map(text).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::{CacheNow, ClientRates, FoundCounts, MovedCounts};
    use super::*;
    use crate::control::{Backlog, BusyEntry};

    fn rates() -> Rates {
        Rates {
            mount_point: "/mnt/\u{1b}cache".into(),
            seconds: 2.0,
            found: FoundCounts::new(300, 100),
            moved: MovedCounts {
                fetched: 3,
                fetched_bytes: 4096,
                published: 2,
                ..MovedCounts::default()
            },
            requests: [("get", 6), ("put", 60)].map(|(name, n)| (name.to_owned(), n)).into(),
            calls: BTreeMap::new(),
            backlog: Backlog { records: 1, bytes: 2048, oldest_ms: 400 },
            cache: CacheNow { bytes: 1 << 30, limit_bytes: 10 << 30, entries: 12 },
            store: StoreNow::Down { trouble: Some("status 403".into()) },
            busy: busy(vec![BusyEntry { path: "jax/\\x1bone".into(), opens: 7 }]),
        }
    }

    fn busy(entries: Vec<BusyEntry>) -> BusyRates {
        let client = ClientRates { name: "jax".into(), hits: 300, misses: 99 };
        BusyRates::Known { clients: vec![client], entries }
    }

    #[test]
    fn the_page_as_text() {
        let wanted = "/mnt/\\x1bcache\n\
            remote    DOWN: status 403\n\
            hits      150/s, 75%\n\
            misses    50/s\n\
            fetched   1.5/s, 2.0 KiB/s\n\
            published 1.0/s, 0 B/s\n\
            uploaded  0/s, 0 B/s\n\
            backlog   1 change, 2.0 KiB, oldest 0.4 s\n\
            cache     1.0 GiB of 10.0 GiB\n\
            entries   12\n\
            requests  put 30/s, get 3.0/s\n\
            calls     none\n\
            \n\
            HITS/S MISS/S CLIENT\n \
            150.0   49.5 jax\n\
            \n \
            OPENS ENTRY\n     \
            7 jax/\\x1bone\n";
        assert_eq!(plain(&rates()), wanted);
        let silent = Rates { busy: BusyRates::Unknown, store: StoreNow::Absent, ..rates() };
        let text = plain(&silent);
        assert!(text.contains("remote    none\n") && text.contains("older version"), "{text}");
    }

    fn drawn(columns: u16, rows: u16, rates: &Rates, colour: bool) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        let curve: Vec<u64> = (0..500).collect();
        terminal.draw(|frame| draw(frame, rates, &curve, colour)).expect("drawn");
        terminal
    }

    fn text(terminal: &Terminal<TestBackend>) -> String {
        terminal.backend().to_string()
    }

    #[test]
    fn any_size_will_do() {
        for columns in [1, 2, 9, 19, 20, 30, 80, 400] {
            for rows in [1, 2, 5, 23, 24, 60] {
                drawn(columns, rows, &rates(), true);
                drawn(columns, rows, &Rates { busy: BusyRates::Unknown, ..rates() }, false);
            }
        }
        let narrow = text(&drawn(20, 24, &rates(), true));
        for part in [
            "\"hits      150/s, 75%\"",
            "\"remote    DOWN:     \"\n\"  status 403        \"",
            "\"backlog   1 change, \"\n\"  2.0 KiB, oldest   \"\n\"  0.4 s             \"",
            "\"fetched   1.5/s, 2.\u{2026}\"",
            "\" OPENS ENTRY        \"",
        ] {
            assert!(narrow.contains(part), "`{part}` is not in:\n{narrow}");
        }
        let path = "triton/0123456789abcdef/__grp__add_kernel.json".to_owned();
        let busiest = busy(vec![BusyEntry { path: path.clone(), opens: 7 }]);
        let entry = Rates { busy: busiest, store: StoreNow::Up, ..rates() };
        let narrow = text(&drawn(20, 24, &entry, true));
        assert!(narrow.contains("\"     7 __grp__add_k\u{2026}\""), "{narrow}");
        assert!(text(&drawn(80, 30, &entry, true)).contains(&path));
        let silent = text(&drawn(20, 24, &Rates { busy: BusyRates::Unknown, ..entry }, true));
        assert!(silent.contains("older version"), "{silent}");
        let many = (0..5).map(|k| BusyEntry { path: format!("jax/e{k}"), opens: 7 }).collect();
        let usual = text(&drawn(80, 24, &Rates { busy: busy(many), ..rates() }, true));
        assert!(usual.contains("jax/e4") && !usual.contains("the latest"), "{usual}");
        let wide = text(&drawn(80, 40, &rates(), true));
        for part in ["oldest 0.4 s", "hits/s, the latest", "\u{2588}", "150.0   49.5 jax"] {
            assert!(wide.contains(part), "`{part}` is not in:\n{wide}");
        }
        assert!(!narrow.contains('\u{1b}') && !wide.contains('\u{1b}'));
    }

    #[test]
    fn colours_come_only_where_they_are_wanted() {
        let coloured = |colour| {
            let terminal = drawn(80, 40, &rates(), colour);
            let cells = terminal.backend().buffer().content.iter();
            cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert!(coloured(true) > 0);
        assert_eq!(coloured(false), 0);
    }
}
