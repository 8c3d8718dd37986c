//! Hosts that can be cut off: each data node of a cluster, with its supervisor, in a network namespace of its own.
//!
//! ```text
//!          this process, clients, observers                       data node n
//!   data  10.77.0.1 ──── bridge `data` ──── port `data<n>` ═══ `data` 10.77.0.10+n   clients and data nodes
//!   obs   10.77.1.1 ──── bridge `obs`  ──── port `obs<n>`  ═══ `obs`  10.77.1.10+n   observers
//! ```
//! The whole lies in a network namespace that the benchmark itself enters first ([`enter`]): nothing of it is seen
//! outside, no name or address can collide, and the kernel takes all of it away with its last process, however that ends.
//! A direction is cut by the queueing discipline `blackhole`, which drops without a word: no reset, no ICMP. All addresses
//! of neighbours are fixed, or a host that hears nobody would soon no longer know where to send to.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::layout::NODES;
use crate::Error;

/// Where observers, and everything that is no data node, listen for data nodes.
pub const OBSERVERS: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);

/// Names the network namespace that this process has left for one of its own.
const LEFT: &str = "QUORATED_NETWORK_LEFT";

/// Where a data node listens.
#[must_use]
pub fn data_address(node: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host_number(node))
}

fn host_number(node: u64) -> u8 {
    u8::try_from(10 + node).expect("few nodes")
}

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Everything from and to the host.
    All,
    /// Everything to the host.
    Incoming,
    /// Everything between the host and the observers.
    Observers,
}

/// Why hosts cannot be cut off here, and what to do; `None` if they can.
#[must_use]
pub fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a host cannot be cut off here: network namespaces need root; run it as root".to_owned());
    }
    let missing = |(tool, _): &(&str, &str)| {
        let quiet = || Stdio::null();
        Command::new(tool).arg("-V").stdin(quiet()).stdout(quiet()).stderr(quiet()).status().is_err()
    };
    let tools = [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")];
    if let Some((tool, package)) = tools.into_iter().find(missing) {
        return Some(format!("a host cannot be cut off here: the tool {tool} is missing; install {package}"));
    }
    // A container's root may not, and a kernel may lack a part: try it, in a namespace that ends with the attempt.
    let tried = Command::new("unshare").args(["--net", "--", "sh", "-c", ATTEMPT]).stdin(Stdio::null()).output();
    let why = match tried {
        Ok(done) if done.status.success() => return None,
        Ok(done) => String::from_utf8_lossy(&done.stderr).lines().next().unwrap_or("no reason given").to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "a host cannot be cut off here: {why}; run it on a host, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN"
    ))
}

/// Everything that [`Networks`] needs of the kernel.
const ATTEMPT: &str =
    "ip link add qb type bridge && ip link add qv type veth peer name qw && ip link set qv master qb && \
    ip link set qv up && tc qdisc add dev qv root blackhole && unshare --net true";

/// Puts this process into a network namespace of its own, in which [`Networks`] can be made: starts the program anew
/// there, with the same arguments and process id. Comes back at once if it is in one already.
///
/// # Errors
/// It may not, or a tool is missing; the text says what to do.
pub fn enter() -> Result<(), Error> {
    if entered() {
        return Ok(());
    }
    if let Some(why) = unavailable() {
        return Err(Error::new(why));
    }
    let here = namespace("self")?;
    let program = std::env::current_exe().map_err(|e| Error::new(format!("where is this program? {e}")))?;
    let mut command = Command::new("unshare");
    command.arg("--net").arg("--").arg(program).args(std::env::args_os().skip(1)).env(LEFT, here);
    Err(Error::new(format!("unshare --net: {}", command.exec())))
}

/// The variable alone proves nothing: only another namespace than the one it names is one of our own.
fn entered() -> bool {
    let left = std::env::var(LEFT).ok();
    left.is_some_and(|left| namespace("self").is_ok_and(|here| here != left))
}

fn namespace(process: &str) -> Result<String, Error> {
    let path = format!("/proc/{process}/ns/net");
    let link = std::fs::read_link(&path).map_err(|e| Error::new(format!("{path}: {e}")))?;
    Ok(link.to_string_lossy().into_owned())
}

/// The networks of a cluster's data nodes; gone when dropped.
#[derive(Debug)]
pub struct Networks {
    hosts: Vec<Host>,
}

/// One data node's namespace, held open by a process that does nothing and ends when its standard input does: with the
/// holder of the other end, however that ends.
#[derive(Debug)]
struct Host {
    holder: Child,
}

impl Networks {
    /// Makes one host for each data node, all connected.
    ///
    /// # Errors
    /// This process is not in a network namespace of its own, or a tool refuses.
    pub fn new() -> Result<Self, Error> {
        if !entered() {
            let what = "cutting hosts off needs a network of this process's own";
            return Err(Error::new(format!("{what}: run it by `quorate bench failover`, which enters one first")));
        }
        let mut hub = String::from("link set lo up\n");
        for (lane, number) in LANES {
            hub += &format!("link add {lane} address {} type bridge\n", mac(number, 1));
            hub += &format!("addr add 10.77.{number}.1/24 dev {lane}\nlink set {lane} up\n");
        }
        let mut networks = Self { hosts: Vec::new() };
        for node in 1..=NODES {
            let host = Host::new()?;
            for (lane, number) in LANES {
                let (mac, holder) = (mac(number, host_number(node)), host.holder.id());
                hub += &format!("link add {lane}{node} type veth peer name {lane} address {mac} netns {holder}\n");
                hub += &format!("link set {lane}{node} master {lane} up\n");
                hub += &neighbour(lane, number, host_number(node));
            }
            networks.hosts.push(host);
        }
        batch(Command::new("ip"), &hub)?;
        for node in 1..=NODES {
            batch(networks.command(node, "ip")?, &inside(node))?;
        }
        Ok(networks)
    }

    /// For `quorate dev --hosts`: a process in each data node's namespace.
    #[must_use]
    pub fn hosts(&self) -> String {
        let holders: Vec<String> = self.hosts.iter().map(|host| host.holder.id().to_string()).collect();
        holders.join(",")
    }

    /// A program on a data node's host.
    ///
    /// # Errors
    /// No such node.
    pub fn command(&self, node: u64, program: impl AsRef<OsStr>) -> Result<Command, Error> {
        let host = usize::try_from(node).ok().and_then(|node| self.hosts.get(node.checked_sub(1)?));
        let host = host.ok_or_else(|| Error::new(format!("node {node} has no host of its own")))?;
        Ok(on_host_of(host.holder.id(), program))
    }

    /// From now on nothing passes in these directions.
    ///
    /// # Errors
    /// A tool refuses.
    pub fn cut(&self, node: u64, cut: Cut) -> Result<(), Error> {
        let lanes: &[&str] = if cut == Cut::Observers { &["obs"] } else { &["data", "obs"] };
        let drop = |device: String| format!("qdisc add dev {device} root blackhole\n");
        let incoming: String = lanes.iter().map(|lane| drop(format!("{lane}{node}"))).collect();
        let outgoing: String = lanes.iter().map(|lane| drop((*lane).to_owned())).collect();
        let mut sides = vec![Batch::start(Command::new("tc"))?];
        if cut != Cut::Incoming {
            sides.push(Batch::start(self.command(node, "tc")?)?);
        }
        // Both tools run already: what follows is one instant.
        for (side, lines) in sides.iter_mut().zip([&incoming, &outgoing]) {
            side.say(lines)?;
        }
        sides.into_iter().try_for_each(Batch::finish)
    }

    /// Everything passes again.
    ///
    /// # Errors
    /// A tool refuses.
    pub fn heal(&self, node: u64) -> Result<(), Error> {
        for (mut tc, suffix) in [(self.command(node, "tc")?, String::new()), (Command::new("tc"), node.to_string())] {
            let shown = tc.args(["qdisc", "show"]).output().map_err(|e| Error::new(format!("tc qdisc show: {e}")))?;
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let cut =
                |device: &str| shown.lines().any(|l| l.contains("blackhole") && l.contains(&format!(" dev {device} ")));
            let devices = LANES.iter().map(|(lane, _)| format!("{lane}{suffix}")).filter(|device| cut(device));
            let lines: String = devices.map(|device| format!("qdisc del dev {device} root\n")).collect();
            let tc = if suffix.is_empty() { self.command(node, "tc")? } else { Command::new("tc") };
            batch(tc, &lines)?;
        }
        Ok(())
    }
}

/// A program in the network namespace of process `holder`.
#[must_use]
pub fn on_host_of(holder: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", Path::new("/proc").join(holder.to_string()).join("ns/net").display()));
    command.arg("--").arg(program);
    command
}

/// Networks by name and third number of their addresses.
const LANES: [(&str, u8); 2] = [("data", 0), ("obs", 1)];

fn mac(lane: u8, host: u8) -> String {
    format!("02:77:00:00:{lane:02x}:{host:02x}")
}

fn neighbour(device: &str, lane: u8, host: u8) -> String {
    format!("neigh add 10.77.{lane}.{host} lladdr {} dev {device} nud permanent\n", mac(lane, host))
}

/// What is set up on the host of a node itself.
fn inside(node: u64) -> String {
    let mut lines = String::from("link set lo up\n");
    for (lane, number) in LANES {
        lines += &format!("addr add 10.77.{number}.{}/24 dev {lane}\nlink set {lane} up\n", host_number(node));
        lines += &neighbour(lane, number, 1);
        for other in (1..=NODES).filter(|other| *other != node) {
            lines += &neighbour(lane, number, host_number(other));
        }
    }
    lines
}

impl Host {
    fn new() -> Result<Self, Error> {
        let failed = |e: std::io::Error| Error::new(format!("unshare --net cat: {e}"));
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut host = Self { holder: command.spawn().map_err(failed)? };
        // `cat` answers only once the namespace is made.
        let input = host.holder.stdin.as_mut().expect("piped");
        input.write_all(b"\n").and_then(|()| input.flush()).map_err(failed)?;
        let mut answer = [0_u8; 1];
        host.holder.stdout.as_mut().expect("piped").read_exact(&mut answer).map_err(failed)?;
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// `ip` or `tc` that takes its commands from standard input.
struct Batch {
    shown: String,
    child: Child,
}

impl Batch {
    fn start(mut command: Command) -> Result<Self, Error> {
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let shown = format!("{command:?}");
        let child = command.spawn().map_err(|e| Error::new(format!("{shown}: {e}")))?;
        Ok(Self { shown, child })
    }

    fn say(&mut self, lines: &str) -> Result<(), Error> {
        let input = self.child.stdin.take().ok_or_else(|| Error::new("said already"));
        input?.write_all(lines.as_bytes()).map_err(|e| Error::new(format!("{}: {e}", self.shown)))
    }

    fn finish(self) -> Result<(), Error> {
        let output = self.child.wait_with_output().map_err(|e| Error::new(format!("{}: {e}", self.shown)))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::new(format!("{}: {}", self.shown, String::from_utf8_lossy(&output.stderr).trim())))
    }
}

fn batch(command: Command, lines: &str) -> Result<(), Error> {
    let mut batch = Batch::start(command)?;
    batch.say(lines)?;
    batch.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_network_of_its_own_nothing_is_changed() {
        let refused = Networks::new().map(drop);
        assert!(refused.is_err_and(|e| e.to_string().contains("network of this process's own")));
    }

    #[test]
    fn each_host_knows_all_others_but_itself() {
        let lines = inside(2);
        let known: Vec<&str> = lines.lines().filter(|line| line.starts_with("neigh")).collect();
        assert_eq!(known.len(), 6, "{lines}");
        assert!(known.iter().all(|line| !line.contains(&mac(0, host_number(2)))));
    }
}
