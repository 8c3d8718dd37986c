//! How the file system under a directory is mounted, as far as the write-ahead log is concerned.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the mounts of this process stand, see `proc_pid_mountinfo(5)`.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The mount point under which `dir` lies, if that file system tells its device of every block as it is freed (`discard`):
/// each commit of its journal then waits for the device, and flushes with it. `None` also where that cannot be known.
pub(crate) fn discards(dir: &Path) -> Option<PathBuf> {
    discards_in(&fs::read_to_string(MOUNTS).ok()?, &fs::canonicalize(dir).ok()?)
}

fn discards_in(mounts: &str, dir: &Path) -> Option<PathBuf> {
    let mounts = mounts.lines().filter_map(|line| {
        // id, parent, device, root, mount point, options, optional fields, `-`, type, source, super options
        let mut fields = line.split(' ').skip(4);
        let (point, options) = (unescape(fields.next()?), fields.next()?);
        let of_super = fields.skip_while(|field| *field != "-").nth(3).unwrap_or_default();
        let discard = options.split(',').chain(of_super.split(',')).any(|option| option == "discard");
        dir.starts_with(&point).then_some((point, discard))
    });
    // Of mounts over one another the last one counts.
    let under = mounts.reduce(|under, other| {
        let deeper = other.0.components().count() >= under.0.components().count();
        if deeper {
            other
        } else {
            under
        }
    });
    under.filter(|(_, discard)| *discard).map(|(point, _)| point)
}

/// Blanks and the like are written as octal numbers.
fn unescape(field: &str) -> PathBuf {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard,resuid=1
30 22 254:1 / /var/lib/quorate rw,noatime - xfs /dev/vdb rw,attr2
31 22 254:2 / /srv/with\\040blank rw - ext4 /dev/vdc rw,discard
32 22 0:5 / /srv/nodiscard rw - ext4 /dev/vdd rw,nodiscard
";

    #[test]
    fn the_deepest_mount_above_a_directory_counts() {
        let found = |dir: &str| discards_in(MOUNTS, Path::new(dir));
        assert_eq!(found("/home/somebody"), Some("/".into()));
        assert_eq!(found("/var/lib/quorate/wal"), None);
        assert_eq!(found("/var/lib/quorate-2/wal"), Some("/".into()), "a name is no prefix");
        assert_eq!(found("/srv/with blank/wal"), Some("/srv/with blank".into()));
        assert_eq!(found("/srv/nodiscard"), None);
        assert_eq!(discards_in("garbage\n\n1 2 3", Path::new("/")), None);
    }
}
