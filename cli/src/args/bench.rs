//! Arguments of `quorate bench`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use crate::span::parse_size;

#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// Throughput: a fixed number of records in flight
    #[command(
        after_help = "Uses the cluster given by --observers, else a running `quorate dev`, else a private one.\n\nExamples:\n  quorate bench publish --producers 1 --in-flight 256 --size 1KiB --seconds 10\n  quorate bench publish --producers 12 --in-flight 64 --output json"
    )]
    Publish {
        /// Producers
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        producers: u32,
        /// Records in flight of each
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
        in_flight: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Latency at a fixed rate, open loop
    Steady {
        /// Records a second
        #[arg(long, default_value_t = 1_000.0)]
        rate: f64,
        /// Shape of the load
        #[arg(long, value_enum, default_value_t = Shape::Orders)]
        shape: Shape,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Planned handoffs under load: no request may fail
    #[command(after_help = "Example:\n  quorate bench handoff --repeat 20")]
    Handoff(HandoffArgs),
    /// Faults under load: how long do clients wait?
    #[command(after_help = "Example:\n  quorate bench failover --fault kill --repeat 10")]
    Failover {
        /// What is done to the cluster
        #[arg(long, value_enum, default_value_t = FaultName::Kill)]
        fault: FaultName,
        /// How often
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        repeat: u32,
        #[command(flatten)]
        common: FailoverCommon,
    },
    /// Nothing is done to the cluster: nobody may be suspected
    #[command(
        after_help = "Exit code 11 if a leader was suspected or anything moved, 12 if the audit is not clean.\n\nExample:\n  quorate bench quiet --minutes 30 --burden processors"
    )]
    Quiet {
        /// How long
        #[arg(long, default_value_t = 30.0)]
        minutes: f64,
        /// What weighs on the hosts meanwhile
        #[arg(long, value_enum, default_value_t = BurdenName::None)]
        burden: BurdenName,
        /// Partitions of the topic
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        partitions: u32,
        /// Records a second over all partitions
        #[arg(long, default_value_t = 100.0)]
        rate: f64,
        /// Bytes of a payload
        #[arg(long, default_value = "200", value_parser = parse_size)]
        size: usize,
    },
    /// Results of `failover` and `handoff` beside their objectives, as a table and a picture
    #[command(
        after_help = "Exit code 11 if an objective is missed, 12 if an audit is not clean.\n\nExample:\n  quorate bench timelines target/bench/timelines --plot timelines.svg"
    )]
    Timelines {
        /// JSON files of `--output json`, or directories of them
        #[arg(required = true)]
        reports: Vec<PathBuf>,
        /// Draw all gaps into this SVG file
        #[arg(long, value_name = "FILE")]
        plot: Option<PathBuf>,
    },
}

/// What `failover` and `handoff` share.
#[derive(Debug, ClapArgs)]
pub struct FailoverCommon {
    /// Partitions whose leaders are hit at once; the gap is the longest of theirs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub partitions: u32,
    /// Records a second meanwhile, over all partitions
    #[arg(long, default_value_t = 1_000.0)]
    pub rate: f64,
    /// Bytes of a payload
    #[arg(long, default_value = "200", value_parser = parse_size)]
    pub size: usize,
    /// Draw all gaps into this SVG file
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct HandoffArgs {
    /// How often
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Kill the target with -9 right after the handoff is asked for
    #[arg(long)]
    pub target_dies: bool,
    /// Stop the target (SIGSTOP, with its supervisor) right after the handoff is asked for; it goes on after the gap
    #[arg(long, conflicts_with = "target_dies")]
    pub target_stops: bool,
    #[command(flatten)]
    pub common: FailoverCommon,
}

#[derive(Debug, ClapArgs)]
pub struct BenchCommon {
    /// Bytes of a payload
    #[arg(long, default_value = "1KiB", value_parser = parse_size)]
    pub size: usize,
    /// Seconds
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Partitions of the topic
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub partitions: u32,
    /// Records without idempotency keys
    #[arg(long)]
    pub no_idempotency_keys: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// One producer, 64 keys
    Orders,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BurdenName {
    /// Nothing
    None,
    /// Two spinning threads for each processor
    Processors,
    /// Every log's file system stands still for 200 ms again and again (private cluster, needs root)
    Flushes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultName {
    /// kill -9 the leader's node process
    Kill,
    /// kill -9 the leader's node process and its supervisor
    KillWithSupervisor,
    /// kill -9 the leader's node process and the observer leader at the same instant
    KillWithObserverLeader,
    /// kill -9 the observer leader
    ObserverLeader,
    /// kill -9 an observer that does not lead
    Observer,
    /// Freeze the file system of the leader's write-ahead log (private cluster, needs root)
    Hang,
    /// SIGSTOP the leader's node process and supervisor; SIGCONT after the gap
    Pause,
    /// Cut the leader's host off from everybody (private cluster, needs root and iproute2)
    Cut,
    /// Let nothing in to the leader's host; what it sends arrives (as `cut`)
    Deaf,
    /// Cut the leader's host off from the observers only (as `cut`)
    CutObservers,
    /// kill -9 every process, and start all again (private cluster)
    RestartAll,
}
