//! The application: sends, follows the routes, and holds what it is told against the checkers.

use std::sync::Arc;
use std::time::Duration;

use quorate_client::core::effect::{Effect, Outcome, Tag, Transmit};
use quorate_client::core::routes::TopicRoutes;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{NodeId, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Receipt;

use super::{Asked, Message, PublishMessage, What, World};
use crate::checker::copies;
use crate::client::Told;
use crate::net::Host;
use crate::plan::Mode;

/// Records sent at once, now and then, in a tight run: several batches are in flight then.
const BURST: usize = 8;
/// Longest pause between two records, or two reads, of quiet hours.
const QUIET: Duration = Duration::from_secs(4);
/// After healing, traffic stays dense for so long: queues drain, suspicions are cleared, leaders come back.
const RECOVERY: Duration = Duration::from_secs(2);
/// The end of sending, with some room before what liveness looks at.
const JUDGED: Duration = Duration::from_millis(600);
/// Longest pause between two records then: that a partition gets none of them must not be left to luck.
const JUDGED_SEND: Duration = Duration::from_millis(15);
/// Longest pause between two records while faults go on, and while nothing but recovery is to be seen.
const SEND: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(250));

impl<P: Policy> World<P> {
    pub(crate) fn produce(&mut self) {
        if self.now < self.plan.stop {
            let quiet = self.plan.quiet.iter().any(|(from, to)| (*from..*to).contains(&self.now));
            if !quiet {
                let mut out = Vec::new();
                let burst = if self.plan.tight && self.chance.one_in(100) { BURST } else { 1 };
                for _ in 0..burst {
                    self.client.send(self.now, &mut self.chance, &mut out);
                }
                self.client_effects([out, Vec::new()]);
            }
            let longest = if self.is_judged() { JUDGED_SEND } else { self.slowest(SEND) };
            let pause = self.chance.span(Duration::from_millis(1), longest);
            self.after(pause, What::Produce);
        }
    }

    /// Liveness is judged by what is sent now.
    fn is_judged(&self) -> bool {
        self.mode != Mode::Quiet && self.now + JUDGED >= self.plan.stop
    }

    /// Long calm stretches show the same thing over and over: their traffic is thin.
    pub(crate) fn slowest(&self, (busy, calm): (Duration, Duration)) -> Duration {
        if self.mode == Mode::Quiet {
            return QUIET;
        }
        let healed = self.healed.is_some_and(|at| self.now > at + RECOVERY);
        if healed {
            calm
        } else {
            busy
        }
    }

    pub(crate) fn replay(&mut self) {
        if self.now < self.plan.stop {
            let pause = self.chance.span(Duration::from_millis(700), Duration::from_millis(3_000));
            self.after(pause, What::Replay);
        }
        // The producers of one client share what it knows.
        let Some((_, routes)) = self.newest_routes.clone() else { return };
        let mut out = Vec::new();
        self.client.replay(self.now, routes, &mut self.chance, &mut out);
        self.client_effects([Vec::new(), out]);
    }

    /// The newest routes that any observer can push to the client.
    pub(crate) fn push_routes(&mut self) {
        let mut newest: Option<(u64, Arc<TopicRoutes>)> = None;
        for (id, observer) in &self.observers {
            let host = super::observer::host(*id);
            if self.net.is_cut(host, Host::Client) || !observer.awake(self.now) {
                continue;
            }
            let Some(process) = &observer.process else { continue };
            let known = newest.as_ref().or(self.newest_routes.as_ref()).map_or(0, |(version, _)| *version);
            if process.core.directory().version().0 > known {
                newest = super::observer::routes(&process.core).or(newest);
            }
        }
        if let Some((version, routes)) = newest {
            self.newest_routes = Some((version, Arc::clone(&routes)));
            let mut out = Vec::new();
            self.client.on_routes(routes, &mut self.chance, &mut out);
            self.client_effects([out, Vec::new()]);
        }
    }

    pub(crate) fn client_link(&mut self, node: NodeId, up: bool) {
        let mut out = [Vec::new(), Vec::new()];
        self.client.on_link(self.now, node, up, &mut out);
        self.client_effects(out);
    }

    pub(crate) fn client_response(&mut self, node: NodeId, tag: Tag, result: Result<Receipt, Refusal>, copies: bool) {
        let clock = self.client.clock.read(self.now);
        let mut out = Vec::new();
        let producer = if copies { &mut self.client.again } else { &mut self.client.producer };
        if let Some(producer) = producer {
            producer.on_response(clock, node, tag, result, &mut out);
        }
        self.client_effects(if copies { [Vec::new(), out] } else { [out, Vec::new()] });
    }

    pub(crate) fn client_wake(&mut self) {
        self.client_effects([Vec::new(), Vec::new()]);
    }

    pub(crate) fn answer(&mut self, node: NodeId, ticket: Ticket, result: Result<Receipt, Refusal>) {
        if let Some(Asked { stream, tag, .. }) = self.tickets.remove(&(node, ticket)) {
            self.write(stream, false, Message::Answer(tag, Box::new(result)));
        }
    }

    fn client_effects(&mut self, mut effects: [Vec<Effect<u64>>; 2]) {
        let clock = self.client.clock.read(self.now);
        for (producer, out) in [&mut self.client.producer, &mut self.client.again].into_iter().zip(&mut effects) {
            if let Some(producer) = producer {
                producer.pump(clock, out);
            }
        }
        for (which, mut out) in effects.into_iter().enumerate() {
            let copies = which == 1;
            for told in self.client.settle(self.now, &mut out, copies) {
                self.told(told);
            }
            for effect in out {
                self.client_effect(effect, copies);
            }
        }
        let wake =
            self.client.next_deadline().map(|at| self.client.clock.when(at, self.now) + Duration::from_micros(10));
        if let Some(at) = wake {
            if at < self.client_wake || self.client_wake <= self.now {
                self.client_wake = at;
                self.at(at, What::ClientWake);
            }
        }
    }

    fn client_effect(&mut self, effect: Effect<u64>, copies: bool) {
        match effect {
            Effect::Connect { node } => {
                let (a, b) = (Host::Client, Host::Node(node.0));
                let known = self.streams.values().find(|s| s.a == a && s.b == b).map(|s| s.id);
                match known {
                    // The other producer opened it already: this one is told.
                    Some(id) => self.after(Duration::from_micros(10), What::StreamUp(id)),
                    None => {
                        if !self.open_stream(a, b) {
                            self.after(Duration::from_millis(20), What::LinkRefused(node));
                        }
                    }
                }
            }
            Effect::Transmit(transmit) => self.transmit(transmit, copies),
            Effect::Resolve { .. } => unreachable!("outcomes were taken out"),
            Effect::Incident(_) => self.coverage.count("client incidents"),
        }
    }

    fn transmit(&mut self, transmit: Transmit, copies: bool) {
        let b = Host::Node(transmit.node.0);
        let Some(stream) = self.streams.values().find(|s| s.a == Host::Client && s.b == b).map(|s| s.id) else {
            return;
        };
        if transmit.again {
            self.coverage.count("batches sent again");
        }
        let message = PublishMessage {
            tag: transmit.tag,
            copies,
            group: transmit.group,
            batch: transmit.batch,
            deadline: transmit.deadline,
        };
        self.write(stream, true, Message::Publish(Box::new(message)));
    }

    fn told(&mut self, told: Told) {
        let now = self.now;
        self.say(format_args!("client is told of {:?}: {}", told.sent.value, summary(&told.outcome)));
        let Ok(receipt) = &told.outcome else { return };
        let Some(group) = self.group_of(receipt.partition) else { return };
        if let (Some(first), true) = (told.copy_of, told.copy) {
            let result = copies::same_answer(now, &told.sent.value, first, (receipt.partition, receipt.offset));
            self.check(result);
        }
        let result = self.checkers.durable.acknowledged(now, group, receipt.offset, &told.sent.value);
        self.check(result);
    }
}

fn summary(outcome: &Outcome) -> String {
    match outcome {
        Ok(receipt) => format!("{} {:?} {}", receipt.partition, receipt.offset, receipt.epoch),
        Err(error) => format!("{error}"),
    }
}
