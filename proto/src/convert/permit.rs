//! Permits, the facts they rest on, and the observers' last-heard tables.

use std::time::Duration;

use super::{all, micros, required, ConvertError};
use crate::control::{Attendance, Ended, LastHeard, Life, Memory, ObserverInfo, Permit, PermitKind, Planned, Room};
use crate::ids::{ConfigVersion, DiskId, GroupId, Incarnation, LogIndex, NodeId, PermitEpoch, ReplicaId, Term};
use crate::internal as wire;
use crate::time::{BootTime, LogTime};

impl From<Ended> for wire::Ended {
    fn from(fact: Ended) -> Self {
        let fact = match fact {
            Ended::Released { replica, term } => {
                wire::ended::Fact::Released(wire::Released { replica: replica.get(), term: term.get() })
            }
            Ended::Dead { replica, incarnation } => {
                wire::ended::Fact::Dead(wire::Dead { replica: replica.get(), incarnation: incarnation.get() })
            }
        };
        Self { fact: Some(fact) }
    }
}

impl TryFrom<wire::Ended> for Ended {
    type Error = ConvertError;

    fn try_from(raw: wire::Ended) -> Result<Self, ConvertError> {
        match required(raw.fact, "Ended", "fact")? {
            wire::ended::Fact::Released(fact) => Ok(Self::Released {
                replica: required(ReplicaId(fact.replica).non_zero(), "Released", "replica")?,
                term: Term(fact.term),
            }),
            wire::ended::Fact::Dead(fact) => Ok(Self::Dead {
                replica: required(ReplicaId(fact.replica).non_zero(), "Dead", "replica")?,
                incarnation: Incarnation(fact.incarnation),
            }),
        }
    }
}

impl From<Permit> for wire::Permit {
    fn from(permit: Permit) -> Self {
        Self {
            group_id: permit.group.get(),
            epoch: permit.epoch.get(),
            candidate: permit.candidate.get(),
            candidate_incarnation: permit.candidate_incarnation.get(),
            config_version: permit.config_version.get(),
            basis: permit.basis.into_iter().map(Into::into).collect(),
            clear: permit.clear,
            kind: match permit.kind {
                PermitKind::Normal => 0,
                PermitKind::FullAttendance => 1,
                PermitKind::BreakGlass => 2,
            },
            planned: permit.planned.map(|planned| wire::Planned {
                from: planned.from.get(),
                term: planned.term.get(),
                lease_from: planned.lease_from.0,
            }),
        }
    }
}

impl TryFrom<wire::Permit> for Permit {
    type Error = ConvertError;

    fn try_from(raw: wire::Permit) -> Result<Self, ConvertError> {
        Ok(Self {
            group: required(GroupId(raw.group_id).non_zero(), "Permit", "group_id")?,
            epoch: required(PermitEpoch(raw.epoch).non_zero(), "Permit", "epoch")?,
            candidate: required(ReplicaId(raw.candidate).non_zero(), "Permit", "candidate")?,
            candidate_incarnation: Incarnation(raw.candidate_incarnation),
            config_version: ConfigVersion(raw.config_version),
            basis: all(raw.basis)?,
            clear: raw.clear,
            kind: match raw.kind {
                0 => PermitKind::Normal,
                1 => PermitKind::FullAttendance,
                2 => PermitKind::BreakGlass,
                other => return Err(ConvertError::new("Permit", "kind", format!("unknown value {other}"))),
            },
            planned: raw.planned.map(Planned::try_from).transpose()?,
        })
    }
}

impl TryFrom<wire::Planned> for Planned {
    type Error = ConvertError;

    fn try_from(raw: wire::Planned) -> Result<Self, ConvertError> {
        Ok(Self {
            from: required(ReplicaId(raw.from).non_zero(), "Planned", "from")?,
            term: Term(raw.term),
            lease_from: BootTime(raw.lease_from),
        })
    }
}

impl From<ObserverInfo> for wire::ObserverInfo {
    fn from(info: ObserverInfo) -> Self {
        Self {
            node: info.node.get(),
            name: info.name,
            address: info.address,
            incarnation: info.incarnation.get(),
            pid: info.pid,
            version: info.version,
            room: info.room.number(),
            stalled: info.stalled,
            memory: info.memory.number(),
        }
    }
}

impl TryFrom<wire::ObserverInfo> for ObserverInfo {
    type Error = ConvertError;

    fn try_from(raw: wire::ObserverInfo) -> Result<Self, ConvertError> {
        Ok(Self {
            node: required(NodeId(raw.node).non_zero(), "ObserverInfo", "node")?,
            name: raw.name,
            address: raw.address,
            incarnation: Incarnation(raw.incarnation),
            pid: raw.pid,
            version: raw.version,
            room: Room::from_number(raw.room),
            stalled: raw.stalled,
            memory: Memory::from_number(raw.memory),
        })
    }
}

impl From<LastHeard> for wire::LastHeard {
    fn from(table: LastHeard) -> Self {
        let heard = |(node, incarnation, age): (NodeId, Incarnation, Duration)| wire::Heard {
            node: node.get(),
            incarnation: incarnation.get(),
            age_us: micros(age),
        };
        Self {
            observer: Some(table.observer.into()),
            wall_us: table.wall.0,
            nodes: table.nodes.into_iter().map(heard).collect(),
            attendance: Some(table.attendance.into()),
        }
    }
}

impl TryFrom<wire::LastHeard> for LastHeard {
    type Error = ConvertError;

    fn try_from(raw: wire::LastHeard) -> Result<Self, ConvertError> {
        let heard = |heard: wire::Heard| {
            let node = required(NodeId(heard.node).non_zero(), "Heard", "node")?;
            Ok((node, Incarnation(heard.incarnation), Duration::from_micros(heard.age_us)))
        };
        Ok(Self {
            observer: required(raw.observer, "LastHeard", "observer")?.try_into()?,
            wall: LogTime(raw.wall_us),
            nodes: raw.nodes.into_iter().map(heard).collect::<Result<_, ConvertError>>()?,
            attendance: required(raw.attendance, "LastHeard", "attendance")?.try_into()?,
        })
    }
}

impl From<Attendance> for wire::Attendance {
    fn from(attendance: Attendance) -> Self {
        let life = |life: Life| wire::Life {
            node: life.node.get(),
            incarnation: life.incarnation.get(),
            disk_id: life.disk.to_string(),
        };
        Self {
            disk_id: attendance.disk.to_string(),
            term: attendance.term.get(),
            last_term: attendance.last.0.get(),
            last_index: attendance.last.1.get(),
            heard: attendance.heard.into_iter().map(life).collect(),
        }
    }
}

impl TryFrom<wire::Attendance> for Attendance {
    type Error = ConvertError;

    fn try_from(raw: wire::Attendance) -> Result<Self, ConvertError> {
        let life = |life: wire::Life| {
            Ok(Life {
                node: required(NodeId(life.node).non_zero(), "Life", "node")?,
                incarnation: Incarnation(life.incarnation),
                disk: required(DiskId::from_hex(&life.disk_id), "Life", "disk_id")?,
            })
        };
        Ok(Self {
            disk: required(DiskId::from_hex(&raw.disk_id), "Attendance", "disk_id")?,
            term: Term(raw.term),
            last: (Term(raw.last_term), LogIndex(raw.last_index)),
            heard: raw.heard.into_iter().map(life).collect::<Result<_, ConvertError>>()?,
        })
    }
}
