//! The figures of all repeats.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Measured;
use crate::bench::FailoverFigures;
use crate::measure::{ms, Repeats};

pub(super) fn sum_up(measured: &[Measured], void: u32, failed: u64, resent: u64) -> FailoverFigures {
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let (mut sums, mut each) = (Vec::new(), Vec::new());
    for failover in measured.iter().filter_map(|one| one.phases.as_ref()) {
        let (mut sum, mut of_this) = (Duration::ZERO, BTreeMap::new());
        for phase in &failover.phases {
            let span = Duration::from_micros(phase.duration_us);
            sum += span;
            phases.entry(phase.name.clone()).or_default().push(ms(span));
            of_this.insert(phase.name.clone(), ms(span));
        }
        sums.push(ms(sum));
        each.push(of_this);
    }
    FailoverFigures {
        repeats: u32::try_from(measured.len()).unwrap_or(u32::MAX),
        void,
        gap_ms: Repeats::new(measured.iter().map(|one| ms(one.gap)).collect()),
        failed,
        resent,
        phases_ms: phases.into_iter().map(|(name, all)| (name, Repeats::new(all).p50)).collect(),
        phases_sum_ms: sums,
        phases_each_ms: each,
        gap_begins_ms: measured.iter().map(|one| one.begins_ms).collect(),
        disk_stalled_ms: measured.iter().map(|one| ms(one.stalled.disk)).collect(),
        processor_stalled_ms: measured.iter().map(|one| ms(one.stalled.processor)).collect(),
    }
}
