//! The break-glass permit (B2, V4): an operator names the log that is to be the truth, after seeing all of them.
//!
//! Two calls: without a plan token the exact effect is shown, with a token that stands for it; with the token it is done, if
//! nothing has moved since. The token is a digest of what the effect rests on, so any observer leader can check it, and a
//! restart forgets none. It is refused unless the partition needs an operator; everything else of the vote gate stays in force.

use std::fmt::Write as _;

use quorate_proto::control::{Permit, PermitKind, Role};
use quorate_proto::ids::{OperationId, PartitionNo, Ticket};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::{BootTime, LogTime};

use super::core::{ObserverCore, Out};
use crate::arbiter::{serving_leader, NEEDS_OPERATOR};
use crate::directory::CommandKind;
use crate::policy::Policy;

/// A plan is good for so many minutes.
const VALID_MINUTES: i64 = 10;
const MINUTE_US: i64 = 60_000_000;

/// What a break-glass permit would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakGlassPlan {
    /// Stands for it: give it back to execute.
    pub token: String,
    /// The effect, line by line: every known log, and what is given up.
    pub effect: Vec<String>,
    permit: Permit,
    rests_on: String,
}

/// The token of a plan that was shown in this minute of cluster time.
pub(super) fn token_at(rests_on: &str, minute: i64) -> String {
    let digest = blake3::hash(format!("{rests_on} minute {minute}").as_bytes()).to_hex();
    let digits = digest.as_str()[..6].to_uppercase();
    format!("{}-{}", &digits[..4], &digits[4..])
}

/// The token stands for what rests on this, and is not too old.
pub(super) fn names(rests_on: &str, token: &str, minute: i64) -> bool {
    let given = token.trim().to_uppercase();
    (0..=VALID_MINUTES).any(|ago| token_at(rests_on, minute - ago) == given)
}

/// Minute of cluster time.
pub(super) fn minute(time: LogTime) -> i64 {
    time.0.div_euclid(MINUTE_US)
}

impl<P: Policy> ObserverCore<P> {
    /// What a break-glass permit for the replica on `node` would do now.
    ///
    /// # Errors
    /// `NOT_LEADER`; `INVALID_ARGUMENT`; `REFUSED_UNSAFE` while the partition does not need an operator.
    pub fn break_glass_plan(
        &self,
        now: BootTime,
        place: (&str, PartitionNo),
        node: &str,
    ) -> Result<BreakGlassPlan, Refusal> {
        let subject = format!("{}/{}, {node}", place.0, place.1.get());
        if !self.leading {
            return Err(self.not_leading(subject));
        }
        let (partition, node) = (self.named(place)?, self.node_id(node)?);
        let scene = self.scene(now);
        let refuse =
            |what: String, action: &str| Err(Refusal::new(Reason::RefusedUnsafe, what, subject.clone(), action));
        if serving_leader(&scene, partition).is_some() {
            return refuse("a leader serves".to_owned(), "nothing is to be done");
        }
        let stuck = self.arbiter.stuck_for(partition.group, now).unwrap_or_default();
        if stuck < NEEDS_OPERATOR {
            let left = (NEEDS_OPERATOR - stuck).as_secs() + 1;
            let action =
                "let it elect by itself; if it cannot, `quorate why` says NEEDS_OPERATOR, then repeat the call";
            return refuse(format!("the partition does not need an operator (yet: {left} s)"), action);
        }
        let Some(replica) = partition.replicas.iter().find(|(_, on)| *on == node).map(|(replica, _)| *replica) else {
            return refuse("that node holds no replica of it".to_owned(), "name one that `partition describe` lists");
        };
        let Some(seen) = scene.view.report(&self.directory, partition.group, replica, node) else {
            return refuse("that node does not report the replica".to_owned(), "start the node, or name another one");
        };
        if seen.report.role == Role::Quarantined {
            return refuse("its data are damaged: it cannot lead".to_owned(), "name another one");
        }
        let incarnation = scene.view.node(node).map(|view| view.incarnation).unwrap_or_default();
        let mut effect = Vec::new();
        let mut rests_on = format!("{} {} {}", self.cfg.cluster, partition.group, partition.permit_epoch);
        for (member, on) in &partition.replicas {
            let name = self.directory.node(*on).map_or_else(|| on.to_string(), |n| n.registered.name.clone());
            let chosen = if *member == replica { "  <- is the truth from then on" } else { "" };
            let line = match scene.view.report(&self.directory, partition.group, *member, *on) {
                Some(seen) => {
                    let (term, index) = (seen.report.last_term, seen.report.last_index);
                    let suspect = if seen.report.suspect_log { ", suspect" } else { "" };
                    // Writing to a String does not fail.
                    let _ = write!(rests_on, " {member} {term} {index}");
                    format!("{name}: log up to {index} of {term}{suspect}{chosen}")
                }
                None => format!("{name}: its log is not known{chosen}"),
            };
            effect.push(line);
        }
        let _ = write!(rests_on, " {replica} {incarnation}");
        effect.push("Committed records that the chosen log lacks are lost for good.".to_owned());
        let permit = Permit {
            group: partition.group,
            epoch: partition.permit_epoch.next(),
            candidate: replica,
            candidate_incarnation: incarnation,
            config_version: partition.config_version,
            basis: Vec::new(),
            clear: false,
            kind: PermitKind::BreakGlass,
            planned: None,
        };
        let token = token_at(&rests_on, minute(self.clock.read(now)));
        Ok(BreakGlassPlan { token, effect, permit, rests_on })
    }

    /// Executes a plan: the permit is logged with its audit record.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn break_glass(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        place: (&str, PartitionNo),
        node: &str,
        (token, principal): (&str, String),
        out: &mut Out,
    ) -> Result<(), Refusal> {
        let plan = self.break_glass_plan(now, place, node)?;
        let subject = format!("{}/{}, {node}", place.0, place.1.get());
        if !names(&plan.rests_on, token, minute(self.clock.read(now))) {
            let what =
                format!("plan {token} does not stand for what would happen now (the logs moved, or it is too old)");
            let action = "call again without a plan, and look at the effect that it shows";
            return Err(Refusal::new(Reason::PlanStale, what, subject, action));
        }
        let command = CommandKind::BreakGlass { permit: plan.permit, principal, effect: plan.effect.join("; ") };
        self.propose_admin(now, OperationId::NONE, command, ticket, subject, out)
    }
}
