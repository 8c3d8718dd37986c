//! The observer's core: takes events, keeps the directory's replica going, decides while it leads.

use quorate_proto::ids::NodeId;
use quorate_proto::time::BootTime;

use super::config::{ObserverConfig, StartError};
use super::{ObserverEffect, ObserverEvent};
use crate::directory::Directory;
use crate::effect::Restored;
use crate::policy::{Policy, Production};
use crate::replica::Replica;

/// One observer. `now` is read after its event was taken from the queue (V2); effects are executed in order.
#[derive(Debug)]
pub struct ObserverCore<P: Policy = Production> {
    cfg: ObserverConfig,
    replica: Replica<P>,
    directory: Directory,
}

#[allow(unused_variables)]
impl<P: Policy> ObserverCore<P> {
    /// Takes up an observer where its disk left it: `restored` is the directory group's log (`None` on an empty disk),
    /// `snapshot` the newest `DirectoryState` file whose position lies within the log.
    ///
    /// # Errors
    /// [`StartError`] if they do not fit.
    pub fn new(
        cfg: ObserverConfig,
        restored: Option<Restored>,
        snapshot: Option<&[u8]>,
        now: BootTime,
        out: &mut Vec<ObserverEffect>,
    ) -> Result<Self, StartError> {
        Err(StartError::Gap(String::new()))
    }

    /// Something happened.
    pub fn handle(&mut self, now: BootTime, event: ObserverEvent, out: &mut Vec<ObserverEffect>) {}

    /// When a [`ObserverEvent::Tick`] is due at the latest.
    #[must_use]
    pub fn next_deadline(&self, now: BootTime) -> BootTime {
        now + self.cfg.timing.observer_tick
    }

    /// The directory as applied here.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The observer that leads, if known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        None
    }

    /// This observer leads and has applied everything of earlier leaders: it may decide.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        false
    }
}
