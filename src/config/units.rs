//! Sizes and times as people write them.
//!
//! Owns the text forms. Must never guess a unit: a bare number is refused, because `cache_size = 50`
//! can mean bytes, megabytes or gigabytes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The form of a size, for messages.
pub(super) const SIZE_FORM: &str =
    "a number with a unit of B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as \"50GiB\"";
/// The form of a time, for messages.
pub(super) const TIME_FORM: &str =
    "numbers with units of ms, s, m, h or d, such as \"200ms\", \"5s\" or \"1m30s\"";

/// The age of entries that live for ever.
const NEVER: &str = "never";
/// The shortest life of an entry; tests rely on it.
const AGE_MIN: Duration = Duration::from_secs(1);
/// The longest life: a longer one was meant to be for ever.
const AGE_MAX: Duration = Duration::from_hours(3650 * 24);

/// The most digits after the decimal point; more are refused rather than dropped.
const FRACTION_DIGITS_MAX: usize = 9;

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A number of bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Makes a size of so many mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Returns the form for people, rounded to one decimal: `1.5 GiB`.
    pub fn human(self) -> String {
        let unit = SIZE_UNITS[..4].iter().find(|(_, scale)| self.0 >= *scale);
        match unit {
            Some((name, scale)) => format!("{:.1} {name}", self.0 as f64 / *scale as f64),
            None => format!("{} B", self.0),
        }
    }
}

impl fmt::Display for ByteSize {
    /// Writes the exact form that `from_str` parses, with the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |scale: u64| self.0 >= scale && self.0.is_multiple_of(scale);
        let (name, scale) =
            SIZE_UNITS[..4].iter().find(|(_, scale)| fits(*scale)).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_number(text.trim());
        if unit.is_empty() && !number.is_empty() {
            return Err(format!("it has no unit; expected {SIZE_FORM}"));
        }
        let scale = SIZE_UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, scale)| *scale)
            .ok_or_else(|| unknown_size_unit(number, unit))?;
        scaled(number, scale)
            .map(Self)
            .map_err(|problem| format!("{problem}; expected {SIZE_FORM}"))
    }
}

fn unknown_size_unit(number: &str, unit: &str) -> String {
    let meant = SIZE_UNITS[..4]
        .iter()
        .find(|(name, _)| unit.len() < 3 && name[..1].eq_ignore_ascii_case(&initial(unit)));
    match meant {
        Some((name, _)) if !number.is_empty() => {
            format!("`{unit}` is not a unit; did you mean \"{number}{name}\"?")
        }
        _ => format!("it is not a size; expected {SIZE_FORM}"),
    }
}

fn initial(text: &str) -> String {
    text.chars().take(1).collect()
}

/// Reads a time such as `1m30s`.
///
/// # Errors
///
/// What is wrong with the text, and the form that is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = |problem: &str| format!("{problem}; expected {TIME_FORM}");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad("it is empty"));
    }
    let (mut total_ms, mut last_scale) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let (number, tail) = split_number(rest);
        if number.is_empty() {
            return Err(bad("it is not a time"));
        }
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let unit = &tail[..end];
        if unit.is_empty() {
            return Err(bad("it has no unit"));
        }
        let (_, scale) = TIME_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| bad(&format!("`{unit}` is not a unit of time")))?;
        if *scale >= last_scale {
            return Err(bad("its units must go from large to small, each once"));
        }
        last_scale = *scale;
        let part = scaled(number, *scale).map_err(|problem| bad(&problem))?;
        total_ms = total_ms.checked_add(part).ok_or_else(|| bad("it is too large"))?;
        rest = tail[end..].trim_start();
    }
    Ok(Duration::from_millis(total_ms))
}

/// Writes a time in the form that [`parse_duration`] parses, rounded to milliseconds.
pub fn format_duration(time: Duration) -> String {
    let mut left = time.as_millis() as u64;
    if left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, scale) in TIME_UNITS {
        let count = left / scale;
        left %= scale;
        if count > 0 {
            text.extend([&count.to_string(), unit]);
        }
    }
    text
}

/// Reads how long entries live: a time, or `never`, which is `None`.
///
/// # Errors
///
/// What is wrong with the text, and the form or the limits that are expected.
pub fn parse_age(text: &str) -> Result<Option<Duration>, String> {
    if text == NEVER {
        return Ok(None);
    }
    let age = parse_duration(text).map_err(|problem| format!("{problem}, or \"{NEVER}\""))?;
    if age < AGE_MIN || age > AGE_MAX {
        let (least, most) = (format_duration(AGE_MIN), format_duration(AGE_MAX));
        return Err(format!("it must be from {least} to {most}, or \"{NEVER}\""));
    }
    Ok(Some(age))
}

/// Writes how long entries live, in the form that [`parse_age`] parses.
pub fn format_age(age: Option<Duration>) -> String {
    age.map_or_else(|| NEVER.to_owned(), format_duration)
}

/// Splits off the leading decimal number; spaces between it and what follows are dropped.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Multiplies a decimal number by `scale` without floating point; fractions of one are cut off.
fn scaled(number: &str, scale: u64) -> Result<u64, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(format!("`{number}` is not a number"));
    }
    let too_large = || "it is too large".to_owned();
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let part: u128 = fraction.parse().map_err(|_| too_large())?;
    let unit = 10_u128.pow(fraction.len() as u32);
    let scale = u128::from(scale);
    let all = whole.checked_mul(scale).ok_or_else(too_large)?.checked_add(part * scale / unit);
    all.and_then(|all| u64::try_from(all).ok()).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good: [(&str, u64); 9] = [
            ("50GiB", 50 << 30),
            ("1.5 GiB", 3 << 29),
            ("300MB", 300_000_000),
            ("300mb", 300_000_000),
            ("0B", 0),
            ("8MiB", 8 << 20),
            (" 16KiB ", 16 << 10),
            ("0.5KiB", 512),
            ("1TB", 1_000_000_000_000),
        ];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in
            ["", "GiB", "50", "-1GiB", "1..5GiB", "50XiB", "1e9B", "1GiB2", "99999999TiB", ".5GiB"]
        {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        let error = "50G".parse::<ByteSize>().expect_err("no such unit");
        assert!(error.contains("50GiB"), "{error}");
    }

    #[test]
    fn sizes_are_read_back() {
        for bytes in [0, 1, 1023, 1024, 1500, 8 << 20, 3 << 29, 50 << 30, u64::MAX] {
            let text = ByteSize(bytes).to_string();
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!(ByteSize(3 << 29).human(), "1.5 GiB");
        assert_eq!(ByteSize(17).human(), "17 B");
    }

    #[test]
    fn times() {
        let good = [
            ("5s", 5_000),
            ("200ms", 200),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("1.5s", 1_500),
            ("0s", 0),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ];
        for (text, ms) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "5 seconds", "-5s", "30s1m", "1s1s", "5s,", "99999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for (text, age) in [("never", None), ("30d", Some(30 * 86_400)), ("1m30s", Some(90))] {
            let age = age.map(Duration::from_secs);
            assert_eq!(parse_age(text), Ok(age), "{text}");
            assert_eq!(format_age(age), text);
        }
        for text in ["", "forever", "0s", "3651d", "30"] {
            assert!(parse_age(text).expect_err(text).contains("or \"never\""), "{text}");
        }
        for ms in [0, 1, 999, 1_000, 90_000, 3_600_001, 90_061_001] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(time)), Ok(time));
        }
    }
}
