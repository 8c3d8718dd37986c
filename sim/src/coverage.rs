//! What a run exercised: a run in which nothing bit or nothing was published proves nothing (vacuity floor).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<Cow<'static, str>, u64>);

impl Coverage {
    /// One more of `what`.
    pub fn count(&mut self, what: impl Into<Cow<'static, str>>) {
        self.add(what, 1);
    }

    /// `n` more of `what`.
    pub fn add(&mut self, what: impl Into<Cow<'static, str>>, n: u64) {
        let what = what.into();
        if n > 0 {
            *self.0.entry(what).or_default() += n;
        }
    }

    /// How many of `what`.
    #[must_use]
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Everything counted, by name.
    pub fn all(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, n)| (what.as_ref(), *n))
    }

    /// Adds another run's counters.
    pub fn merge(&mut self, other: &Self) {
        for (what, n) in &other.0 {
            self.add(what.clone(), *n);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: Vec<String> = self.0.iter().map(|(what, n)| format!("{what} {n}")).collect();
        f.write_str(&items.join(" · "))
    }
}
