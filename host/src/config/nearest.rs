//! The known word most like an unknown one.

/// The candidate with the smallest edit distance to `word`, if it is at all like it (at most half of it differs).
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = candidates.into_iter().map(|candidate| (distance(word, candidate), candidate)).min()?;
    (best.0 <= word.chars().count().max(best.1.chars().count()) / 2).then_some(best.1)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_nonsense_has_none() {
        let known = ["timing.fence_ms", "timing.lease_ms", "data_dir"];
        assert_eq!(nearest("timing.fense_ms", known), Some("timing.fence_ms"));
        assert_eq!(nearest("datadir", known), Some("data_dir"));
        assert_eq!(nearest("xyzzy", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
