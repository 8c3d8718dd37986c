//! Arguments of all commands: noun, then verb.

mod bench;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::produce::fields::Selector;
use crate::produce::rows::Format;
use crate::span::parse_span;

pub use bench::{BenchCommon, BenchVerb, BurdenName, FailoverCommon, FaultName, HandoffArgs};

/// A message log for money: majority-replicated, in order, once per key.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Start here:\n  quorate dev\n  quorate produce orders --file orders.csv --format csv --key-field 3 \\\n    --idempotency-field '{3}:{line}'\n  quorate consume orders --from earliest --count 10\n\nExit codes: 0 ok, 1 error, 2 usage, 3 done but some rows undecided, 10 unhealthy,\n11 objective missed, 12 verification failed."
)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options of every command.
#[derive(Clone, Debug, ClapArgs)]
pub struct Global {
    /// Form of the result on standard output
    #[arg(long, global = true, value_enum, default_value_t = OutputForm::Table)]
    pub output: OutputForm,
    /// Print results and errors only
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Longest time the command may wait (500ms, 10s, 2m)
    #[arg(long, global = true, value_parser = parse_span)]
    pub timeout: Option<Duration>,
    /// Observers, host:port, separated by commas [default: those of `quorate dev`]
    #[arg(long, global = true, env = "QUORATE_OBSERVERS", value_delimiter = ',')]
    pub observers: Vec<String>,
    /// Log what a client command does to standard error: `info`, `quorate_client=debug` …
    #[arg(long, global = true, value_name = "FILTER")]
    pub client_log: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// For people, 80 columns
    Table,
    /// For programs, with a `schema` field
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Start a whole cluster on this machine: three data nodes, three observers, topic `orders`
    Dev(DevArgs),
    /// Run a data node (a supervisor and the node below it)
    Server(ProcessArgs),
    /// Run an observer, or make the observers' directory anew
    Observer(ObserverArgs),
    /// Create and look at topics
    #[command(subcommand)]
    Topic(TopicVerb),
    /// Look at partitions
    #[command(subcommand)]
    Partition(PartitionVerb),
    /// Look at data nodes and observers, drain data nodes
    #[command(subcommand)]
    Node(NodeVerb),
    /// Move leaders on purpose
    #[command(subcommand)]
    Leader(LeaderVerb),
    /// Replace and move replicas
    #[command(subcommand)]
    Replica(ReplicaVerb),
    /// Look at, wait for and cancel changes of replicas
    #[command(subcommand)]
    Task(TaskVerb),
    /// Look at what operators did that is dangerous
    #[command(subcommand)]
    Audit(AuditVerb),
    /// Publish rows of a file or standard input
    Produce(ProduceArgs),
    /// Read messages
    Consume(ConsumeArgs),
    /// Why is a partition not served, what happens next, what must I do?
    Why(WhyArgs),
    /// How long failovers took, by cause, and how many were false; the newest phase by phase
    Slo(SloArgs),
    /// Measure a cluster; every record is audited
    #[command(subcommand)]
    Bench(BenchVerb),
    /// Look at and check a process's configuration
    #[command(subcommand)]
    Config(ConfigVerb),
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Ctrl-C ends every process. Started again, it finds its data.\nExamples:\n  quorate dev\n  quorate dev --data /tmp/second --port-base 7400"
)]
pub struct DevArgs {
    /// Directory of all data and logs; made if missing
    #[arg(long, default_value = "quorate-data")]
    pub data: PathBuf,
    /// First of the 60 ports used
    #[arg(long, default_value_t = quorate_chaos::layout::DEFAULT_BASE)]
    pub port_base: u16,
    /// Start an observer that died again after this time (`never` leaves it dead)
    #[arg(long, default_value = "20s", value_parser = parse_restart)]
    pub restart_observers: Restart,
    /// A process in the network namespace of each data node (set by `quorate bench`)
    #[arg(long, hide = true, value_delimiter = ',')]
    pub hosts: Vec<u32>,
}

/// When a dead observer is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart(pub Option<Duration>);

fn parse_restart(text: &str) -> Result<Restart, String> {
    if text == "never" {
        Ok(Restart(None))
    } else {
        parse_span(text).map(|after| Restart(Some(after)))
    }
}

/// `quorate observer`, alone or with a verb.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ObserverArgs {
    #[command(subcommand)]
    pub verb: Option<ObserverVerb>,
    #[command(flatten)]
    pub process: ProcessArgs,
}

#[derive(Debug, Subcommand)]
pub enum ObserverVerb {
    /// All observers lost their disks: make their directory anew from what the data nodes know
    #[command(
        after_help = "Without --plan nothing is done: the effect is shown, with a token that stands for it.\nFollow docs/runbooks/observers-rebuild.md."
    )]
    Rebuild {
        /// The source: every data node keeps the newest directory that it was shown
        #[arg(long, required = true)]
        from_nodes: bool,
        /// Execute the plan with this token
        #[arg(long, value_name = "TOKEN")]
        plan: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Precedence: --set, then QUORATE_… in the environment, then the file, then defaults.\n`quorate config show` prints every value and where it comes from."
)]
pub struct ProcessArgs {
    /// Configuration file (TOML)
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Overrides one key: --set listen=127.0.0.1:7301
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run the node itself, without a supervisor (the supervisor starts it so)
    #[arg(long, hide = true)]
    pub node_process: bool,
}

#[derive(Debug, Subcommand)]
pub enum TopicVerb {
    /// Create a topic
    #[command(after_help = "Example:\n  quorate topic create payments --partitions 3")]
    Create {
        /// Name: [namespace/]name
        topic: String,
        /// Number of partitions; cannot be changed later
        #[arg(long, default_value_t = 1)]
        partitions: u32,
    },
    /// List all topics
    List,
    /// Show a topic's partitions
    Describe {
        /// Name: [namespace/]name
        topic: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum PartitionVerb {
    /// Show a partition's leader and replicas
    #[command(after_help = "Example:\n  quorate partition describe orders/0")]
    Describe {
        /// Topic and number: orders/0
        partition: String,
    },
    /// Last resort: let one node's log be the truth of a partition that needs an operator
    #[command(
        after_help = "Without --plan it only shows every known log, what is lost, and a plan token.\nRead docs/runbooks/needs-operator.md first.\n\nExamples:\n  quorate partition break-glass orders/0 --node node-2\n  quorate partition break-glass orders/0 --node node-2 --plan 7F3A-92"
    )]
    BreakGlass {
        /// Topic and number: orders/0
        partition: String,
        /// Name or number of the node whose log is to be the truth
        #[arg(long)]
        node: String,
        /// Execute the plan with this token
        #[arg(long)]
        plan: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum AuditVerb {
    /// Show the newest dangerous things that operators did
    Show,
}

#[derive(Debug, Subcommand)]
pub enum NodeVerb {
    /// List data nodes and observers
    List,
    /// Hand every leader of a node over and give it none; ends when no leader is left there
    #[command(after_help = "Example:\n  quorate node drain node-1")]
    Drain {
        /// Name or number of the data node
        node: String,
        /// Give up waiting after so long; the node stays drained
        #[arg(long, default_value = "60s", value_parser = crate::span::parse_span)]
        within: std::time::Duration,
    },
    /// Let a drained node lead again
    Undrain {
        /// Name or number of the data node
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum LeaderVerb {
    /// Move a partition's leader to another replica, without a failed request
    #[command(
        after_help = "The leader belongs there from now on and returns there after a failover, until\n`quorate leader unpin`; --no-pin moves it once.\n\nExample:\n  quorate leader handoff orders/0 --to node-2"
    )]
    Handoff {
        /// Topic and number: orders/0
        partition: String,
        /// Name or number of the data node
        #[arg(long)]
        to: String,
        /// Move it once, without keeping it there
        #[arg(long)]
        no_pin: bool,
    },
    /// Leave the place of a partition's leader to the cluster again
    Unpin {
        /// Topic and number: orders/0
        partition: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum ReplicaVerb {
    /// Give a node's replica of a partition up for a new one, there or on another node
    #[command(
        after_help = "The new replica learns everything, is promoted, and only then the old one is removed. Lost disks\nare repaired so by themselves after 30 s.\n\nExample:\n  quorate replica replace orders/0 --on node-2"
    )]
    Replace {
        /// Topic and number: orders/0
        partition: String,
        /// Name or number of the data node whose replica is replaced
        #[arg(long)]
        on: String,
        /// Where the new one is to be [default: the same node]
        #[arg(long)]
        to: Option<String>,
        /// Wait until it is over
        #[arg(long)]
        wait: bool,
    },
    /// Move a replica of a partition to another node
    #[command(after_help = "Example:\n  quorate replica move orders/0 --from node-2 --to node-4 --wait")]
    Move {
        /// Topic and number: orders/0
        partition: String,
        /// Name or number of the data node that gives it up
        #[arg(long)]
        from: String,
        /// Name or number of the data node that takes it
        #[arg(long)]
        to: String,
        /// Wait until it is over
        #[arg(long)]
        wait: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum TaskVerb {
    /// List the newest tasks
    List,
    /// Show a task
    Show {
        /// Its number
        task: u64,
    },
    /// Wait until a task is over (exit code 1 if it was given up)
    Wait {
        /// Its number
        task: u64,
    },
    /// Give a task up, as long as its new replica only learns
    Cancel {
        /// Its number
        task: u64,
    },
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A message is its row, byte for byte, without the line end. Columns count from 1; the first row\nis a header only if a column is given by name. Templates join fields: '{3}:{line}', where\n{line} is the line on which the row begins. The tool never makes keys unique by itself.\nWith idempotency keys the same file can be published again without duplicating anything.\n\nExamples:\n  quorate produce orders --file orders.csv --format csv --key-field 3 \\\n    --idempotency-field '{3}:{line}'\n  quorate produce orders --format json --key-field account --idempotency-field id < payments.jsonl\n  echo 'one message' | quorate produce orders --key account-7 --idempotency-key payment-17"
)]
pub struct ProduceArgs {
    /// Topic: [namespace/]name
    pub topic: String,
    /// File to read [default: standard input]
    #[arg(long, short)]
    pub file: Option<PathBuf>,
    /// How the input is cut into messages
    #[arg(long, value_enum, default_value_t = Format::Lines)]
    pub format: Format,
    /// Field (number, name or template) that is the record key: it chooses partition and order
    #[arg(long, conflicts_with = "key")]
    pub key_field: Option<Selector>,
    /// Field (number, name or template) that is the idempotency key
    #[arg(long, conflicts_with = "idempotency_key")]
    pub idempotency_field: Option<Selector>,
    /// The whole input is one message with this idempotency key
    #[arg(long)]
    pub idempotency_key: Option<String>,
    /// Record key of every message
    #[arg(long)]
    pub key: Option<String>,
    /// Rows a second, at most
    #[arg(long)]
    pub rate: Option<f64>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Joins no group and commits nothing. --timeout ends it; without --count it goes on until then.\n\nExamples:\n  quorate consume orders --from earliest --count 10\n  quorate consume orders --from latest --format '%p/%o %k %v'\n  quorate consume orders --from 2026-01-31T09:30:00Z --format '%T %v'\n  quorate consume orders --from 15m"
)]
pub struct ConsumeArgs {
    /// Topic: [namespace/]name
    pub topic: String,
    /// Where to begin: earliest, latest, an offset, a time (2026-01-31T09:30:00Z), or how long ago (15m)
    #[arg(long, default_value = "earliest")]
    pub from: String,
    /// Stop after so many messages
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// This partition only
    #[arg(long, short)]
    pub partition: Option<u32>,
    /// %v value, %k key, %o offset, %p partition, %h headers, %T time, %% percent; a newline follows
    #[arg(long, default_value = "%v")]
    pub format: String,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Any observer answers, also without a majority of them. Exit code 10 if something asked about is not\nserved.\n\nExamples:\n  quorate why orders/0\n  quorate why orders\n  quorate why"
)]
pub struct WhyArgs {
    /// Topic and number, as in orders/0; a topic; or nothing: the whole cluster
    pub partition: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A failover is false if the observers gave a leader up by silence alone, or withdrew the\npermit, and the same process was heard again: an upper bound, because a process that stood\nstill for two seconds looks the same. Planned handoffs are not failovers.\n\nExample:\n  quorate slo --since 24h --limit 3"
)]
pub struct SloArgs {
    /// Newest failovers shown phase by phase
    #[arg(long, default_value_t = 10)]
    pub limit: u32,
    /// Count only the last 10m, 24h, 7d … [default: all on record, the newest 1 000]
    #[arg(long, value_parser = parse_span)]
    pub since: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print every effective value and where it comes from
    Show(ConfigArgs),
    /// Check a configuration; says what is wrong
    Lint(ConfigArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ConfigArgs {
    /// Of which kind of process
    #[arg(value_enum)]
    pub kind: ProcessKind,
    #[command(flatten)]
    pub process: ProcessArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProcessKind {
    /// A data node
    Server,
    /// An observer
    Observer,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn global_options_may_stand_behind_the_verb() {
        let args = Args::try_parse_from(["quorate", "node", "list", "--output", "json", "--observers", "a:1,b:2"]);
        let args = args.expect("parses");
        assert_eq!(args.global.output, OutputForm::Json);
        assert_eq!(args.global.observers, ["a:1", "b:2"]);
    }
}
