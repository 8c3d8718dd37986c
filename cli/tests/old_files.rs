//! What earlier builds left on disk opens and serves: every record in its place, and new ones after them. The archives are
//! made by `.ci/old-files`, each by the build of its day; they only ever come to be more.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{binary, quorate, sample, scrape, take_away, until};
use quorate_chaos::cluster::Cluster;
use quorate_proto::file_header::{FileHeader, FileKind};

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/old");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut found: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    found.sort();
    found
}

/// Starts this build on what `archive` holds; the rows of `rows.txt` are those that its cluster had acknowledged.
fn opened(archive: &Path) -> (Cluster, Vec<String>) {
    let mut rows = Vec::new();
    let unpack = |root: &Path| {
        let beside = root.parent().expect("below a temporary directory");
        let done = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(beside).status().expect("tar runs");
        assert!(done.success(), "{}", archive.display());
        let text = std::fs::read_to_string(root.join("rows.txt")).expect("its rows");
        std::fs::remove_file(root.join("rows.txt")).expect("its rows");
        rows = text.lines().map(str::to_owned).collect();
    };
    let cluster = Cluster::start_on_copy(binary(), unpack);
    (cluster.unwrap_or_else(|e| panic!("{}: {e}", archive.display())), rows)
}

fn stored(cluster: &Cluster, count: usize) -> Vec<String> {
    let count = count.to_string();
    let args = ["consume", "orders", "--from", "earliest", "--count", &count, "--timeout", "60s"];
    let text = quorate(cluster, &[&args[..], &["--format", "%p %o %k %v"]].concat()).ok().text();
    let mut rows: Vec<_> = text.lines().map(str::to_owned).collect();
    rows.sort();
    rows
}

#[test]
fn what_earlier_builds_left_on_disk_opens_with_every_record_in_its_place_and_goes_on() {
    let archives = archives();
    assert!(archives.len() >= 2, "{archives:?}");
    for archive in archives {
        let (cluster, rows) = opened(&archive);
        assert!(rows.len() > 500, "{}", archive.display());
        assert!(stored(&cluster, rows.len()) == rows, "{}: records differ", archive.display());
        let new = ["produce", "orders", "--key", "account-1", "--idempotency-key", "new", "--output", "json"];
        let done = common::pipe(cluster.command().args(new), b"after the change of builds\n").ok().json();
        assert_eq!(done["committed"], 1, "{}: {done}", archive.display());
        let all = stored(&cluster, rows.len() + 1);
        let added: Vec<_> = all.iter().filter(|row| !rows.contains(row)).collect();
        assert!(matches!(added[..], [row] if row.ends_with(" account-1 after the change of builds")), "{added:?}");
        // Time is an index that these builds did not write.
        let from = ["consume", "orders", "--from", "2000-01-01T00:00:00Z", "--count", "500", "--timeout", "60s"];
        assert_eq!(quorate(&cluster, &from).ok().text().lines().count(), 500);
    }
}

/// A segment of this data node.
fn segment(cluster: &Cluster, node: u64) -> PathBuf {
    let partitions = cluster.files().data(&format!("node-{node}")).join("partitions");
    let inside = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        entries.map(|entry| entry.expect("readable").path()).collect()
    };
    let generations = inside(&partitions).into_iter().flat_map(|group| inside(&group));
    let mut files = generations.flat_map(|generation| inside(&generation));
    files.find(|file| file.extension().is_some_and(|ext| ext == "segment")).expect("a segment")
}

#[test]
fn what_a_newer_build_wrote_is_refused_by_its_version_and_is_neither_damage_nor_repaired() {
    let newest = archives().pop().expect("archives");
    let (mut cluster, rows) = opened(&newest);
    // A file that no checkpoint covers is not looked at: it is written again from the log.
    let new = ["produce", "orders", "--key", "account-1", "--idempotency-key", "new", "--output", "json"];
    common::pipe(cluster.command().args(new), b"uncovered\n").ok();
    let uncovered =
        || sample(&scrape(cluster.ports().node_metrics(1)), "quorate_uncheckpointed_bytes").expect("a sample");
    until("something uncovered", || (uncovered() > 0.0).then_some(()));
    until("a checkpoint", || (uncovered() == 0.0).then_some(()));
    take_away(&cluster, &[1]);
    let path = segment(&cluster, 1);
    let mut bytes = std::fs::read(&path).expect("readable");
    let newer = FileHeader { version: 2, ..FileHeader::current(FileKind::Segment) }.encode();
    bytes[..newer.len()].copy_from_slice(&newer);
    std::fs::write(&path, &bytes).expect("writable");
    cluster.start_alone("server", 1).unwrap_or_else(|e| panic!("{e}"));
    until("the refusal", || {
        let logs = cluster.logs();
        (logs.contains("has format version 2") && logs.contains("use a newer version")).then_some(())
    });
    let all = stored(&cluster, rows.len() + 1);
    assert!(rows.iter().all(|row| all.contains(row)), "the others go on");
    assert!(std::fs::read(&path).expect("still there") == bytes, "the file was changed");
}
