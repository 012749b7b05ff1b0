//! What is next, from all that can be seen.

use super::*;

fn goal(fs: Fs, way: Way) -> StackGoal {
    let mount = (fs != Fs::Zfs).then(|| PathBuf::from("/srv/tank"));
    let (name, url) = ("tank".to_owned(), "s3://bucket/tank".to_owned());
    StackGoal { name, url, fs, mount, id: None, share: None, take_over: false, way }
}

fn label() -> PoolLabel {
    PoolLabel {
        name: "tank".into(),
        guid: 17,
        ashift: 12,
        host_id: 1,
        host_name: "here".into(),
        is_exported: true,
        is_destroyed: false,
    }
}

fn served() -> ServedAs {
    ServedAs { read_only: false, latched: None, dirty_bytes: 0, shared: false }
}

/// Nothing is there.
fn nothing() -> StackState {
    StackState {
        served: None,
        claim: HeldBy::Free,
        device: None,
        is_stale: false,
        content: None,
        partition: None,
        pool: None,
        mounted: Vec::new(),
        unmounted: Vec::new(),
        sharing: Sharing { server: NfsServer::Runs, ..Sharing::default() },
        holders: Vec::new(),
        host_id: 1,
    }
}

fn attached(content: OnDevice) -> StackState {
    StackState {
        served: Some(served()),
        claim: HeldBy::Ours,
        device: Some("/dev/nbd0".into()),
        content: Some(content),
        ..nothing()
    }
}

fn imported() -> StackState {
    StackState {
        pool: Some(Pool { guid: 17, health: "ONLINE".into() }),
        mounted: vec!["/tank".into()],
        ..attached(OnDevice::Pool(label()))
    }
}

fn steps(goal: &StackGoal, mut seen: StackState) -> Vec<StackStep> {
    let mut steps = Vec::new();
    while let Some(step) = next(goal, &seen).expect("nothing hinders it") {
        seen = supposed(goal, &seen, &step);
        if step == StackStep::Attach {
            seen.content = Some(OnDevice::Blank);
        }
        steps.push(step);
        assert!(steps.len() < 10, "{steps:?}");
    }
    steps
}

fn refused(goal: &StackGoal, seen: &StackState) -> String {
    next(goal, seen).expect_err("refused").text
}

/// The whole way up and down, and what is left of it from wherever somebody stopped.
#[test]
fn the_way_up_and_the_way_down() {
    let (up, down) = (Way::Up, Way::Down { keep_dirty: false });
    let zfs = goal(Fs::Zfs, up);
    assert_eq!(steps(&zfs, nothing()), [StackStep::Serve, StackStep::Attach, StackStep::Make]);
    assert_eq!(steps(&zfs, attached(OnDevice::Blank)), [StackStep::Make]);
    let found = attached(OnDevice::Pool(label()));
    assert_eq!(steps(&zfs, found.clone()), [StackStep::Import { force: false }, StackStep::Mount]);
    assert_eq!(steps(&zfs, imported()), []);
    let half = StackState { unmounted: vec!["tank/home".into()], ..imported() };
    assert_eq!(steps(&zfs, half), [StackStep::Mount]);
    let xfs = goal(Fs::Xfs, up);
    assert_eq!(
        steps(&xfs, nothing()),
        [StackStep::Serve, StackStep::Attach, StackStep::Make, StackStep::Mount]
    );

    let dirty = Some(ServedAs { dirty_bytes: 1, ..served() });
    let zfs = goal(Fs::Zfs, down);
    let all = [StackStep::Export, StackStep::Detach, StackStep::Drain, StackStep::Stop { keep_dirty: false }];
    let busy = StackState { served: dirty.clone(), ..imported() };
    assert_eq!(steps(&zfs, busy.clone()), all);
    let kept = goal(Fs::Zfs, Way::Down { keep_dirty: true });
    assert_eq!(
        steps(&kept, busy),
        [StackStep::Export, StackStep::Detach, StackStep::Stop { keep_dirty: true }]
    );
    let daemon_gone = StackState { served: None, content: None, ..imported() };
    let known = StackGoal { id: Some("17".into()), ..zfs.clone() };
    let all = [StackStep::Serve, StackStep::Export, StackStep::Detach, StackStep::Stop { keep_dirty: false }];
    assert_eq!(steps(&known, daemon_gone), all);
    assert_eq!(steps(&zfs, nothing()), []);
    let left = StackState { claim: HeldBy::Ours, ..nothing() };
    assert_eq!(steps(&zfs, left.clone()), [StackStep::Serve, StackStep::Stop { keep_dirty: false }]);
    assert_eq!(steps(&kept, left), []);
    assert_eq!(steps(&zfs, StackState { claim: HeldBy::Others, ..nothing() }), []);
    let xfs = goal(Fs::Xfs, down);
    let mounted = StackState { mounted: vec!["/srv/tank".into()], ..attached(OnDevice::Blank) };
    let all = [StackStep::Unmount, StackStep::Detach, StackStep::Stop { keep_dirty: false }];
    assert_eq!(steps(&xfs, mounted), all);
    let shared = StackState { served: Some(ServedAs { shared: true, ..served() }), ..nothing() };
    assert_eq!(steps(&zfs, shared), []);
}

/// What is not what it should be is refused, with what it is.
#[test]
fn what_somebody_has_to_decide() {
    let zfs = goal(Fs::Zfs, Way::Up);
    let pool = |change: fn(&mut PoolLabel)| {
        let mut label = label();
        change(&mut label);
        attached(OnDevice::Pool(label))
    };
    assert!(refused(&zfs, &pool(|l| l.ashift = 9)).contains("blocks of 512 bytes"));
    assert!(refused(&zfs, &pool(|l| l.name = "other".into())).contains("holds pool other"));
    assert!(refused(&zfs, &pool(|l| l.is_destroyed = true)).contains("was destroyed"));
    assert!(
        refused(&zfs, &attached(OnDevice::Other("a partition table".into()))).contains("a partition table")
    );
    let ext4 = OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() };
    assert!(refused(&zfs, &attached(ext4.clone())).contains("holds ext4 u, and not zfs"));
    assert!(
        refused(&goal(Fs::Xfs, Way::Up), &pool(|_| ())).contains("holds pool tank (guid 17), and not xfs")
    );
    let known = StackGoal { id: Some("18".into()), ..zfs.clone() };
    assert!(refused(&known, &pool(|_| ())).contains("is known as 18"));
    assert!(refused(&known, &attached(OnDevice::Blank)).contains("is known to have been there"));

    let foreign = pool(|l| (l.host_id, l.is_exported) = (2, false));
    assert!(refused(&zfs, &foreign).contains("did not export it"));
    let taking = StackGoal { take_over: true, ..zfs.clone() };
    assert_eq!(next(&taking, &foreign).expect("allowed"), Some(StackStep::Import { force: true }));
    let crashed = pool(|l| l.is_exported = false);
    assert_eq!(next(&zfs, &crashed).expect("its own"), Some(StackStep::Import { force: false }));

    let other = Some(Pool { guid: 99, health: "ONLINE".into() });
    assert!(
        refused(&zfs, &StackState { pool: other.clone(), ..pool(|_| ()) }).contains("not on this volume")
    );
    let unattached = StackState { served: Some(served()), pool: other.clone(), ..nothing() };
    assert!(refused(&zfs, &unattached).contains("not on this volume"));
    let suspended = Some(Pool { guid: 17, health: "SUSPENDED".into() });
    assert!(refused(&zfs, &StackState { pool: suspended.clone(), ..imported() }).contains("is suspended"));
    let read_only = StackState { served: Some(ServedAs { read_only: true, ..served() }), ..nothing() };
    assert!(refused(&zfs, &read_only).contains("read-only"));
    let latched =
        StackState { served: Some(ServedAs { latched: Some("taken over".into()), ..served() }), ..nothing() };
    assert!(refused(&zfs, &latched).contains("taken over"));
    let nowhere = StackGoal { mount: None, ..goal(Fs::Ext4, Way::Up) };
    assert!(refused(&nowhere, &attached(ext4.clone())).contains("to be mounted"));
    let elsewhere = StackState { mounted: vec!["/mnt".into()], ..attached(ext4) };
    assert!(refused(&goal(Fs::Ext4, Way::Up), &elsewhere).contains("mounted on /mnt, not on /srv/tank"));

    let down = goal(Fs::Zfs, Way::Down { keep_dirty: false });
    let busy = StackState { holders: vec!["process 7 (vi)".into()], ..imported() };
    assert!(refused(&down, &busy).contains("process 7 (vi)"));
    assert!(refused(&down, &StackState { pool: suspended, ..imported() }).contains("is suspended"));
    let stale = StackState { is_stale: true, ..imported() };
    assert!(refused(&down, &stale).contains("before another host had it"));
    assert!(refused(&zfs, &stale).contains("before another host had it"));
    // A pool of that name that is on something else is not ours to export.
    let not_ours = StackState { pool: other, mounted: Vec::new(), ..attached(OnDevice::Pool(label())) };
    assert_eq!(next(&down, &not_ours).expect("nothing hinders it"), Some(StackStep::Detach));
}

/// What is mounted is shared last and no more before it is unmounted, whether a pool or a line for the server says it; what is shared otherwise is shared
/// anew, and what is to be shared with nobody is not.
#[test]
fn who_has_it_over_nfs() {
    let clients = vec!["10.0.0.0/24".parse().expect("a network")];
    let shared = |seen: StackState, declared: Option<String>, missing: bool| {
        let exports =
            seen.mounted.iter().map(|at| NfsExport { at: at.clone(), client: "10.0.0.0/24".into() });
        let exports = if missing { Vec::new() } else { exports.collect() };
        let missing = if missing { vec!["tank".into()] } else { Vec::new() };
        StackState { sharing: Sharing { server: NfsServer::Runs, declared, missing, exports }, ..seen }
    };
    let with = |server: NfsServer, seen: &StackState| StackState {
        sharing: Sharing { server, ..seen.sharing.clone() },
        ..seen.clone()
    };
    let ext4 = attached(OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() });
    let mounted = StackState { mounted: vec!["/srv/tank".into()], ..ext4.clone() };
    for (fs, found, up) in
        [(Fs::Zfs, attached(OnDevice::Pool(label())), imported()), (Fs::Ext4, ext4, mounted)]
    {
        let to =
            |share: Option<&Vec<ShareClient>>, way: Way| StackGoal { share: share.cloned(), ..goal(fs, way) };
        let (any, listed, nobody) =
            (to(None, Way::Up), to(Some(&clients), Way::Up), to(Some(&Vec::new()), Way::Up));
        let declared = listed.declaration();
        assert!(declared.as_ref().is_some_and(|text| text.contains("10.0.0.0/24")), "{declared:?}");
        assert_eq!(steps(&listed, found.clone()).last(), Some(&StackStep::Share));
        assert!(!steps(&any, found).contains(&StackStep::Share));
        assert_eq!(steps(&any, up.clone()), []);
        assert_eq!(steps(&nobody, up.clone()), []);

        // As it should be; another list; what the server does not have, after it was started again.
        let is_shared = shared(up.clone(), declared.clone(), false);
        assert_eq!(steps(&listed, is_shared.clone()), []);
        assert_eq!(steps(&any, is_shared.clone()), []);
        assert_eq!(steps(&nobody, is_shared.clone()), [StackStep::Unshare { for_good: true }]);
        assert_eq!(steps(&listed, shared(up.clone(), Some("rw=other".into()), false)), [StackStep::Share]);
        let lost = shared(up.clone(), declared.clone(), true);
        assert_eq!(steps(&listed, lost.clone()), [StackStep::Share]);
        assert_eq!(steps(&any, lost.clone()), [StackStep::Share]);
        assert_eq!(steps(&nobody, lost.clone()), [StackStep::Unshare { for_good: true }]);
        // Shared by somebody else.
        assert_eq!(steps(&any, shared(up.clone(), None, false)), []);
        assert_eq!(steps(&nobody, shared(up.clone(), None, false)), [StackStep::Unshare { for_good: true }]);

        // Without a server it is up as far as nobody asked for more, and what was asked for is refused before anything is done.
        for (server, why) in [(NfsServer::Missing, "has no NFS server"), (NfsServer::Stopped, "does not run")]
        {
            for seen in [nothing(), lost.clone()] {
                assert!(refused(&listed, &with(server, &seen)).contains(why));
                assert!(can_be_shared(&any, &with(server, &seen)).is_ok());
                assert!(can_be_shared(&nobody, &with(server, &seen)).is_ok());
            }
            assert_eq!(steps(&any, with(server, &lost)), []);
        }

        let end = if fs == Fs::Zfs { StackStep::Export } else { StackStep::Unmount };
        for share in [None, Some(&clients), Some(&Vec::new())] {
            let down = to(share, Way::Down { keep_dirty: false });
            let first = steps(&down, is_shared.clone());
            assert_eq!(first[..2], [StackStep::Unshare { for_good: false }, end.clone()]);
            assert_eq!(steps(&down, with(NfsServer::Stopped, &up))[0], end);
        }
    }
}

/// A pool is told from another one of its name by its guid: that of the label, or the one that is known where nobody can look.
#[test]
fn pools_are_told_by_their_guid() {
    let pool = Pool { guid: 17, health: "ONLINE".into() };
    let on_it = OnDevice::Pool(label());
    assert!(pool.is_on(Some(&on_it), None) && pool.is_on(Some(&on_it), Some("18")));
    assert!(pool.is_on(None, Some("17")));
    let other = Pool { guid: 18, ..pool.clone() };
    assert!(!other.is_on(Some(&on_it), Some("18")) && !other.is_on(None, Some("17")));
    assert!(!pool.is_on(None, None) && !pool.is_on(Some(&OnDevice::Blank), None));
}

/// From everything that can be seen, each way ends, and on the way down nothing goes that something still stands on.
#[test]
fn nothing_goes_that_something_stands_on() {
    let mut all = 0;
    for bits in 0..1u32 << 11 {
        let bit = |n: u32| bits & (1 << n) != 0;
        let (fs, keep_dirty) = (if bit(0) { Fs::Zfs } else { Fs::Ext4 }, bit(1));
        let content = match bit(0) {
            true => OnDevice::Pool(label()),
            false => OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() },
        };
        let has_device = bit(3);
        let seen = StackState {
            served: bit(2).then(|| ServedAs { dirty_bytes: u64::from(bit(4)), shared: bit(8), ..served() }),
            claim: if bit(5) { HeldBy::Ours } else { HeldBy::Free },
            device: has_device.then(|| "/dev/nbd0".into()),
            content: has_device.then_some(content),
            pool: (bit(0) && bit(6)).then(|| Pool { guid: 17, health: "ONLINE".into() }),
            mounted: if bit(7) { vec!["/srv/tank".into()] } else { Vec::new() },
            ..nothing()
        };
        let exports = seen
            .mounted
            .iter()
            .filter(|_| bit(9))
            .map(|at| NfsExport { at: at.clone(), client: "nas".into() });
        let exports = exports.collect();
        let seen = StackState { sharing: Sharing { exports, ..seen.sharing.clone() }, ..seen };
        for way in [Way::Up, Way::Down { keep_dirty }] {
            let share = bit(10).then(|| vec!["nas".parse().expect("a host")]);
            let goal = StackGoal { share, id: Some(if bit(0) { "17" } else { "u" }.into()), ..goal(fs, way) };
            let mut seen = seen.clone();
            for turn in 0.. {
                assert!(turn < 10, "{way:?} from {bits:b} does not end");
                let Ok(Some(step)) = next(&goal, &seen) else { break };
                let on_device = seen.pool.is_some() || !seen.mounted.is_empty();
                match &step {
                    StackStep::Unmount | StackStep::Export => {
                        assert!(seen.sharing.exports.is_empty(), "{bits:b}");
                    }
                    StackStep::Detach => assert!(!on_device && seen.served.is_some(), "{bits:b}"),
                    StackStep::Stop { keep_dirty: kept } => {
                        let dirty = seen.served.as_ref().expect("it is served").dirty_bytes;
                        assert!(!on_device && seen.device.is_none(), "{bits:b}");
                        assert!(dirty == 0 || (*kept && keep_dirty), "{bits:b}");
                    }
                    _ => {}
                }
                seen = supposed(&goal, &seen, &step);
                if step == StackStep::Attach {
                    seen.content = Some(OnDevice::Filesystem { fs: Fs::Ext4, uuid: "u".into() });
                    if fs == Fs::Zfs {
                        seen.content = Some(OnDevice::Pool(label()));
                    }
                }
                all += 1;
            }
        }
    }
    assert!(all > 1000, "{all} steps were taken");
}
