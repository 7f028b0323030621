//! "Did you mean": the nearest of the existing words.
//!
//! Owns the measure of nearness. Must never suggest a word that is not in the given list.

/// Returns the candidate with the fewest edits from `word`, if that is few enough for a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= limit)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Counts the insertions, deletions, replacements and swaps of neighbours between two words. Case
/// does not matter, and `-` equals `_`.
fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| -> Vec<char> {
        text.to_lowercase().chars().map(|c| if c == '-' { '_' } else { c }).collect()
    };
    let (a, b) = (fold(a), fold(b));
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let words = ["cache_dir", "cache_size", "url", "freshness"];
        for (typed, meant) in [
            ("cache_sise", Some("cache_size")),
            ("cachesize", Some("cache_size")),
            ("cache-size", Some("cache_size")),
            ("chace_dir", Some("cache_dir")),
            ("freshnes", Some("freshness")),
            ("ulr", Some("url")),
            ("bandwidth", None),
            ("x", None),
        ] {
            assert_eq!(nearest(typed, words), meant, "{typed}");
        }
    }
}
