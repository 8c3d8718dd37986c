//! In quiet hours nobody is suspected, nobody resigns and nobody is elected anew: no false failovers (S1, F3).

use super::Violation;
use crate::coverage::Coverage;
use crate::time::Instant;

/// Name in violations.
pub const NAME: &str = "quiet hours are quiet";

/// Each partition was led by its first leader to the end, and each observer heard of one leader among its like.
///
/// # Errors
/// Something happened.
pub fn check(now: Instant, coverage: &Coverage, partitions: u32, observers: u64) -> Result<(), Violation> {
    let first = u64::from(partitions);
    let known = [("elections", first), ("permits issued", first), ("observer leader changes", observers)];
    let allowed = |what: &str| known.iter().find(|(name, _)| *name == what).map(|(_, n)| *n);
    for (what, count) in coverage.all() {
        let limit = if what.starts_with("resigned ") { Some(0) } else { allowed(what) };
        if limit.is_some_and(|limit| count > limit) {
            let text = format!("{what}: {count}, and {} would do", limit.unwrap_or_default());
            return Err(Violation::new(NAME, now, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_election_or_any_resignation_is_a_false_failover() {
        let mut coverage = Coverage::default();
        coverage.add("elections", 2);
        coverage.add("reads answered", 99);
        assert!(check(Instant(1), &coverage, 2, 3).is_ok());
        let mut again = coverage.clone();
        again.count("elections");
        assert!(check(Instant(1), &again, 2, 3).is_err());
        coverage.count("resigned contact");
        assert!(check(Instant(1), &coverage, 2, 3).is_err());
    }
}
