//! Listening sockets, with errors that say who is in the way.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};

use tonic::transport::server::TcpIncoming;

/// Why an address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error("{what}: port {port} is in use by {holder}; stop it, or choose another port", port = address.port())]
    InUse {
        /// What was to listen, e.g. "peer listener".
        what: String,
        /// Where.
        address: SocketAddr,
        /// Who, as far as the system lets us see.
        holder: String,
    },
    /// Anything else.
    #[error("{what}: can't listen on {address}: {source}")]
    Io {
        /// What was to listen.
        what: String,
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// Binds a TCP listener.
///
/// # Errors
/// [`ListenError::InUse`] names the process that has the port, if it can be seen.
pub fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { what: what.into(), address, holder: holder(address.port()) },
        _ => ListenError::Io { what: what.into(), address, source },
    })
}

/// Binds and hands the listener to tonic, with `tcp_nodelay` on every accepted connection: the server builder's
/// own setting is ignored for a custom listener. Call it within a runtime.
///
/// # Errors
/// As [`bind`].
pub fn incoming(what: &str, address: SocketAddr) -> Result<(SocketAddr, TcpIncoming), ListenError> {
    let io_error = |source| ListenError::Io { what: what.into(), address, source };
    let listener = bind(what, address)?;
    let bound = listener.local_addr().map_err(io_error)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(io_error)?;
    Ok((bound, TcpIncoming::from(listener).with_nodelay(Some(true))))
}

/// Who listens on a port, from `/proc`; best effort.
fn holder(port: u16) -> String {
    let unknown = || "another process".to_owned();
    let Some(inode) = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| listening_inode(table, port)) else {
        return unknown();
    };
    let wanted = format!("socket:[{inode}]");
    let Ok(processes) = fs::read_dir("/proc") else { return unknown() };
    let is_pid = |name: &std::ffi::OsStr| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
    for process in processes.flatten().filter(|entry| is_pid(&entry.file_name())) {
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let owns = files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy() == wanted));
        if owns {
            let pid = process.file_name().to_string_lossy().into_owned();
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return format!("{} (process {pid})", name.trim());
        }
    }
    unknown()
}

fn listening_inode(table: &str, port: u16) -> Option<String> {
    let local = format!(":{port:04X}");
    fs::read_to_string(table).ok()?.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let address = fields.nth(1)?;
        // State 0A: listening; the inode is the tenth field.
        (address.ends_with(&local) && fields.nth(1)? == "0A").then(|| fields.nth(5).map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_names_its_holder() {
        let first = bind("test listener", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind("test listener", address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("test listener: port {} is in use by ", address.port())), "{error}");
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
    }
}
