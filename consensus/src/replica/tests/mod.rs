//! Rules of the replica, each by a small scene; and a random walk that looks for two serving leaders.

mod chaos;
mod election;
mod fence;
mod harness;
mod log;
mod observers;
mod reads;
mod release;
mod suspect;
