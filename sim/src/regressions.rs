//! Seeds that found something, with the day and what it was: `sim/regressions.txt`. Every test run plays them.
//!
//! A seed names a run only as long as plans are drawn as they were: where that changes, the scenario belongs into a mode,
//! and the rule into a unit test of `consensus`.

use crate::plan::Mode;

const LIST: &str = include_str!("../regressions.txt");

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// Day, `YYYY-MM-DD`.
    pub day: String,
    /// Mode.
    pub mode: Mode,
    /// Seed.
    pub seed: u64,
    /// What it found.
    pub found: String,
}

fn parse(line: &str) -> Result<Regression, String> {
    let wrong = || format!("`{line}` is not `day mode seed what it found`");
    let mut parts = line.splitn(4, char::is_whitespace);
    let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or_else(wrong);
    let (day, mode, seed, found) = (part()?, part()?, part()?, part()?);
    Ok(Regression {
        day: day.to_owned(),
        mode: mode.parse()?,
        seed: seed.parse().map_err(|_| wrong())?,
        found: found.trim().to_owned(),
    })
}

/// The whole list.
///
/// # Errors
/// A line that cannot be read.
pub fn all() -> Result<Vec<Regression>, String> {
    LIST.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_read_and_a_bad_line_is_named() {
        assert!(all().is_ok(), "{:?}", all());
        assert_eq!(parse("2026-11-30 deaf 7 a leader went on").map(|r| (r.mode, r.seed)), Ok((Mode::Deaf, 7)));
        assert!(parse("2026-11-30 deaf seven what").is_err());
        assert!(parse("2026-11-30 deaf 7").is_err());
    }
}
