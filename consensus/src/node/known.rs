//! The directory as this node saw it last (M5): kept for observers that lost theirs, all of them.

use bytes::Bytes;
use quorate_proto::control::SessionUp;
use quorate_proto::ids::{DirectoryVersion, NodeId};
use quorate_proto::time::LogTime;

use super::dispatch::NodeCore;
use super::effect::{NodeEffect, Observers};
use crate::directory::Directory;
use crate::policy::Policy;

/// The newest one.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    version: DirectoryVersion,
    born: LogTime,
    snapshot: Bytes,
}

impl Known {
    /// What the disk held. One that cannot be read is none.
    pub(super) fn new(snapshot: Bytes) -> Self {
        match Directory::decode(&snapshot) {
            Ok(directory) if !snapshot.is_empty() => {
                Self { version: directory.version(), born: directory.born(), snapshot }
            }
            _ => Self::default(),
        }
    }

    pub(super) fn version(&self) -> DirectoryVersion {
        self.version
    }

    pub(super) fn born(&self) -> LogTime {
        self.born
    }

    /// This one is kept, the other one shown: it may take its place only if it is the same one, later.
    fn gives_way_to(&self, shown: &Self) -> bool {
        shown.version > self.version && (self.version == DirectoryVersion::ZERO || shown.born == self.born)
    }
}

impl<P: Policy> NodeCore<P> {
    /// An observer shows its directory, or (by an empty one) asks for what this node keeps.
    pub(super) fn directory(&mut self, from: NodeId, snapshot: Bytes, out: &mut Vec<NodeEffect>) {
        if snapshot.is_empty() {
            if !self.known.snapshot.is_empty() {
                let message = Box::new(SessionUp::Directory(self.known.snapshot.clone()));
                out.push(NodeEffect::Session { to: Observers::One(from), message });
            }
            return;
        }
        let shown = Known::new(snapshot);
        if self.known.gives_way_to(&shown) {
            out.push(NodeEffect::KeepDirectory(shown.snapshot.clone()));
            self.known = shown;
        }
    }
}
