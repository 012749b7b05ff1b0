use std::collections::BTreeMap;

use super::*;

const DAY_MS: u64 = 86_400_000;
/// 2024-02-29 12:30:45.
const NOW: u64 = 1_709_209_845_000;

fn id(n: u64) -> SnapshotId {
    SnapshotId(uuid::Uuid::from_u128(u128::from(n)))
}

fn here() -> Marks {
    Maker::Backup.marks("s3://here/tank")
}

/// One with the number `n` as id and position, made so many days ago, as it arrives.
fn snapshot(n: u64, days_ago: u64) -> SnapshotStatus {
    let made_ms = NOW - days_ago * DAY_MS;
    SnapshotStatus {
        name: schedule::dated("backup-", made_ms),
        id: id(n),
        made_ms,
        size_bytes: 512,
        at: Some(n),
        holds: Vec::new(),
        clones: BTreeMap::new(),
        receiving: None,
        is_bookmark: false,
    }
}

fn bookmark(n: u64, days_ago: u64) -> SnapshotStatus {
    SnapshotStatus { is_bookmark: true, ..snapshot(n, days_ago) }
}

fn held(snapshot: SnapshotStatus) -> SnapshotStatus {
    SnapshotStatus { holds: vec!["court".to_owned()], ..snapshot }
}

fn cloned(mut snapshot: SnapshotStatus) -> SnapshotStatus {
    snapshot.clones.insert(cistern_engine::units::VolumeId(uuid::Uuid::nil()), "../clone".to_owned());
    snapshot
}

/// As it is made for a place.
fn to(marks: &Marks, snapshot: SnapshotStatus) -> SnapshotStatus {
    let name = marks.name(snapshot.made_ms, &BTreeSet::new());
    SnapshotStatus { name, ..snapshot }
}

/// What is done, as words.
fn words(changes: &[(String, SnapshotChange)], all: &[SnapshotStatus]) -> Vec<String> {
    let number =
        |name: &String| all.iter().find(|s| s.name == *name).expect("one of these").at.expect("a place");
    let word = |change: &SnapshotChange| match change {
        SnapshotChange::Remove => "remove",
        SnapshotChange::LeaveBookmark => "bookmark",
        other => panic!("{other:?}"),
    };
    changes.iter().map(|(name, change)| format!("{} {}", word(change), number(name))).collect()
}

/// Names say when and for which place, none is given twice, and nothing that people would write by hand is taken for one.
#[test]
fn names_of_what_is_made() {
    let (here, there) = (here(), Maker::Backup.marks("s3://there/tank"));
    let mut taken = BTreeSet::new();
    let mut names = Vec::new();
    for _ in 0..3 {
        let name = here.name(NOW, &taken);
        cistern_engine::snapshot::check_name(&name).expect("a name");
        assert!(there.arrived(&name).is_none() && !Maker::Backup.has_brought(&name), "{name}");
        let arrived = here.arrived(&name).expect("one of these").to_owned();
        assert!(Maker::Backup.has_brought(&arrived) && !Maker::Copy.has_brought(&arrived), "{arrived}");
        names.push(arrived);
        taken.insert(name);
    }
    assert_eq!(names[..2], ["backup-2024-02-29T12:30:45", "backup-2024-02-29T12:30:46"]);
    for other in [
        "backup-before-upgrade",
        "backup-2024-02-29",
        "backup-2024-02-29T12:30:4x",
        "backup-2024-02-29T12:30:45.",
        "backup-2024-02-29T12:30:45-mine",
        "auto-2024-02-29T12:30:45",
        "2024-02-29T12:30:45",
        "backup-",
    ] {
        assert!(!Maker::Backup.has_brought(other), "{other}");
        assert!(here.arrived(&format!("{other}{}", here.suffix)).is_none(), "{other}");
    }
}

/// Where it arrives, it has no name of another one.
#[test]
fn names_where_they_arrive() {
    let (here, mut made) = (here(), snapshot(1, 0));
    made.name = here.name(NOW, &BTreeSet::new());
    let there =
        [snapshot(2, 0), SnapshotStatus { name: "backup-2024-02-29T12:30:46".to_owned(), ..snapshot(3, 0) }];
    let name = |there: &[SnapshotStatus]| here.name_there(&made, there);
    assert_eq!(name(&[]), "backup-2024-02-29T12:30:45");
    assert_eq!(name(&[snapshot(1, 0)]), "backup-2024-02-29T12:30:45", "that is itself");
    assert_eq!(name(&there), "backup-2024-02-29T12:30:47");
}

/// When one has arrived, it becomes a bookmark; the bookmark before it goes, and what was left of runs that were killed. Again, as after a
/// kill in the middle, what is done is not done twice.
#[test]
fn the_newest_is_a_bookmark_and_the_rest_goes() {
    let here = here();
    let all = [bookmark(1, 3), snapshot(2, 2), snapshot(3, 1), snapshot(4, 0)].map(|s| to(&here, s));
    assert_eq!(words(&here.settle(&all, id(4)), &all), ["remove 1", "remove 2", "remove 3", "bookmark 4"]);
    let all = [snapshot(3, 1), bookmark(4, 0)].map(|s| to(&here, s));
    assert_eq!(words(&here.settle(&all, id(4)), &all), ["remove 3"]);
    assert!(here.settle(&all[1..], id(4)).is_empty());
    assert!(here.settle(&all, id(9)).is_empty(), "the newest is not there");
}

/// What runs left that did not come to their end: what they made for this place and is no bookmark, whatever else there is.
#[test]
fn what_runs_left_that_did_not_come_to_their_end() {
    let (here, there) = (here(), Maker::Backup.marks("s3://there/tank"));
    let all = [
        to(&here, bookmark(1, 9)),
        to(&here, snapshot(2, 8)),
        to(&there, snapshot(3, 7)),
        snapshot(4, 6),
        to(&Maker::Copy.marks("s3://here/tank"), snapshot(5, 5)),
        to(&here, snapshot(6, 4)),
    ];
    assert_eq!(here.left(&all).map(|left| left.id).collect::<Vec<_>>(), [id(2), id(6)]);
}

/// What belongs to others stays: what is for another place, what has arrived here itself from elsewhere, what somebody holds or cloned, what has
/// another name, and what is newer.
#[test]
fn what_belongs_to_others_stays() {
    let (here, there) = (here(), Maker::Backup.marks("s3://there/tank"));
    let mut by_hand = snapshot(6, 4);
    by_hand.name = "backup-before-upgrade".to_owned();
    let all = [
        to(&there, bookmark(1, 9)),
        to(&there, snapshot(2, 8)),
        snapshot(3, 7),
        to(&here, held(snapshot(4, 6))),
        to(&here, cloned(snapshot(5, 5))),
        by_hand,
        to(&Maker::Copy.marks("s3://here/tank"), snapshot(7, 3)),
        to(&here, snapshot(8, 2)),
        to(&here, snapshot(9, 1)),
    ];
    assert_eq!(words(&here.settle(&all, id(8)), &all), ["bookmark 8"]);
}

/// Of what has arrived, what the rules do not keep goes: but nothing that has another name, is held or cloned, and never the newest, also where
/// the clock was set back before it.
#[test]
fn what_the_rules_do_not_keep_goes() {
    let keep: Schedule = "1d:2".parse().expect("rules");
    let mut by_hand = snapshot(2, 7);
    by_hand.name = "monday".to_owned();
    let all = [
        snapshot(1, 8),
        by_hand,
        held(snapshot(3, 6)),
        cloned(snapshot(4, 5)),
        bookmark(5, 4),
        snapshot(6, 3),
        snapshot(7, 2),
        snapshot(8, 1),
    ];
    let names = |numbers: &[usize]| numbers.iter().map(|n| all[n - 1].name.clone()).collect::<Vec<_>>();
    assert_eq!(Maker::Backup.expired(&keep, &all, id(8)), names(&[1, 6]));
    assert_eq!(
        Maker::Backup.expired(&keep, &all, id(6)),
        names(&[1]),
        "the newest, by a clock that was set back"
    );
    assert!(Maker::Copy.expired(&keep, &all, id(8)).is_empty());
}

/// A copy goes on from the newest that both have, by id and not by name; not from what is hidden there, what is newer, or what a rollback left.
#[test]
fn the_newest_that_both_have() {
    let to = snapshot(9, 0);
    let all = [bookmark(1, 5), snapshot(2, 4), bookmark(3, 3), snapshot(4, 2), to.clone(), snapshot(10, 0)];
    let common = |theirs: &[SnapshotStatus], left: u64| {
        newest_common(&all, theirs, &to, |base| base.at != Some(left)).map(|base| base.at.expect("a place"))
    };
    let renamed = SnapshotStatus { name: "other".to_owned(), at: Some(77), ..snapshot(2, 4) };
    assert_eq!(common(&[snapshot(1, 5), renamed.clone()], 0), Some(2));
    assert_eq!(common(&[snapshot(1, 5), renamed.clone()], 2), Some(1), "from 2 it is not known");
    assert_eq!(common(&[bookmark(3, 3)], 0), Some(3));
    assert_eq!(common(&[to.clone(), snapshot(10, 0)], 0), None, "neither itself nor what is newer");
    let hidden = SnapshotStatus { name: "~4".to_owned(), ..snapshot(4, 2) };
    assert_eq!(common(&[hidden], 0), None);
    let same_name = SnapshotStatus { id: id(44), ..snapshot(4, 2) };
    assert_eq!(common(&[same_name], 0), None);
}
