//! Every stable reason has a page that says what happened, whether it was applied, and what to do.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::path::PathBuf;

use quorate_proto::reasons::{all, is_consistent, usual_fate, UsualFate};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1::Error;

fn pages() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/errors")
}

#[test]
fn every_reason_has_a_page_in_five_parts() {
    for reason in all() {
        let name = reason.as_str_name();
        let path = pages().join(format!("{name}.md"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(text.starts_with(&format!("# {name}\n")), "{name}: title");
        for part in ["**What happened.** ", "**Applied?** ", "**What to do.** ", "**Command.** ", "**Expected.** "] {
            assert!(text.contains(part), "{name}: {part}");
        }
        let fate = match usual_fate(reason) {
            UsualFate::NotApplied => "**Applied?** No. `maybe_applied` is false",
            UsualFate::Unknown => "**Applied?** Unknown. `maybe_applied` is true",
            UsualFate::Either => "**Applied?** `maybe_applied` says",
        };
        assert!(text.contains(fate), "{name}: the page disagrees with the code about fate");
    }
}

#[test]
fn every_page_belongs_to_a_reason() {
    for entry in std::fs::read_dir(pages()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(name == "README" || Reason::from_str_name(&name).is_some(), "{name} is no reason");
    }
    assert_eq!(all().count(), 34, "new reasons go at the end, without a gap");
}

#[test]
fn decisive_is_the_opposite_of_maybe_applied_for_each_reason() {
    for reason in all() {
        let refusal = Refusal::new(reason, "what", "topic/0", "action");
        let unknown = refusal.clone().of_unknown_fate();
        for refusal in [refusal, unknown] {
            assert_eq!(refusal.decisive(), !refusal.maybe_applied, "{reason:?}");
            assert_eq!(is_consistent(&refusal), usual_fate(reason).allows(refusal.maybe_applied));
            let told = Refusal::from(Error::from(refusal.clone()));
            assert_eq!((told.reason, told.maybe_applied), (refusal.reason, refusal.maybe_applied));
            assert!(refusal.to_string().contains(if refusal.decisive() {
                "; not applied; "
            } else {
                "may have been applied"
            }));
        }
    }
}
