//! What the gate answers to every kind of request, as a table.

use super::*;
use crate::wire::BASE_ALLOCATION_ID;
use proptest::prelude::*;

const SIZE: u64 = 1 << 20;
const MOMENT: Moment = Moment { size_bytes: SIZE };
const NONE: Contexts = Contexts(0);
const BASE: Contexts = Contexts(1);
const COMPACT: Terms = Terms {
    extended: false,
    structured: false,
    contexts: NONE,
    read_only: false,
    fast_zero: true,
    aligned: true,
};
const EXTENDED: Terms = Terms {
    extended: true,
    structured: true,
    contexts: BASE,
    read_only: false,
    fast_zero: true,
    aligned: true,
};
const MAX: u64 = PAYLOAD_BYTES_MAX as u64;

fn header(command: u16, flags: u16, offset: u64, length: u64) -> Header {
    Header { flags, command, cookie: 7, offset, length }
}

/// The errno and the payload of a refusal.
fn refused(command: u16, flags: u16, offset: u64, length: u64, terms: &Terms) -> Option<(Errno, u64)> {
    match judge(&header(command, flags, offset, length), terms, &MOMENT) {
        Verdict::Refuse { refusal, payload } => Some((refusal.errno, payload)),
        _ => None,
    }
}

/// Beyond the end: reads and hints are wrong (EINVAL), writes find no space (ENOSPC).
#[test]
fn beyond_the_end() {
    for (command, errno) in [
        (cmd::READ, Errno::Inval),
        (cmd::WRITE, Errno::NoSpc),
        (cmd::TRIM, Errno::Inval),
        (cmd::CACHE, Errno::Inval),
        (cmd::WRITE_ZEROES, Errno::NoSpc),
        (cmd::BLOCK_STATUS, Errno::Inval),
    ] {
        let payload = if command == cmd::WRITE { cmd_flag::PAYLOAD_LEN } else { 0 };
        for (offset, length) in [(SIZE - 512, 1024), (SIZE, 512), (u64::MAX - 511, 1024)] {
            let got = refused(command, payload, offset, length, &EXTENDED);
            let bytes = if command == cmd::WRITE { length } else { 0 };
            assert_eq!(got, Some((errno, bytes)), "command {command} at {offset} for {length}");
        }
    }
}

/// Commands and flags nobody has defined are EINVAL, and the connection goes on.
#[test]
fn unknown_commands_and_flags() {
    assert_eq!(refused(8, 0, 0, 512, &COMPACT), Some((Errno::Inval, 0)));
    assert_eq!(refused(u16::MAX, 0, 0, 512, &COMPACT), Some((Errno::Inval, 0)));
    for command in [cmd::READ, cmd::FLUSH, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(refused(command, 1 << 6, 0, 512, &EXTENDED), Some((Errno::Inval, 0)));
    }
    assert_eq!(refused(cmd::WRITE, 1 << 15, 0, 512, &COMPACT), Some((Errno::Inval, 512)));
    // A payload where the command has none is consumed first.
    assert_eq!(refused(cmd::READ, cmd_flag::PAYLOAD_LEN, 0, 512, &EXTENDED), Some((Errno::Inval, 512)));
    assert_eq!(refused(99, cmd_flag::PAYLOAD_LEN, 0, 77, &EXTENDED), Some((Errno::Inval, 77)));
}

/// Flags belong to what was negotiated: DF to structured replies, FAST_ZERO to exports that have
/// it, the payload flag to extended headers. FUA is accepted everywhere.
#[test]
fn flags_follow_the_negotiation() {
    assert_eq!(refused(cmd::READ, cmd_flag::DF, 0, 512, &COMPACT), Some((Errno::Inval, 0)));
    assert_eq!(refused(cmd::READ, cmd_flag::DF, 0, 512, &EXTENDED), None);
    let slow = Terms { fast_zero: false, ..COMPACT };
    assert_eq!(refused(cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 512, &slow), Some((Errno::Inval, 0)));
    assert_eq!(refused(cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 512, &COMPACT), None);
    assert_eq!(refused(cmd::WRITE, cmd_flag::PAYLOAD_LEN, 0, 512, &COMPACT), Some((Errno::Inval, 512)));
    for command in [cmd::READ, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(refused(command, cmd_flag::FUA, 0, 512, &EXTENDED), None);
    }
    assert_eq!(refused(cmd::FLUSH, cmd_flag::FUA, 0, 0, &COMPACT), None);
}

/// The data of a write follows whether its flag says so or not: qemu does not set it.
#[test]
fn a_write_has_its_data_with_or_without_the_flag() {
    let moment = Moment { size_bytes: SIZE };
    for flags in [0, cmd_flag::PAYLOAD_LEN, cmd_flag::FUA] {
        let verdict = judge(&header(cmd::WRITE, flags, 0, 4096), &EXTENDED, &moment);
        assert!(matches!(verdict, Verdict::Run { payload: 4096, .. }), "{flags}: {verdict:?}");
    }
}

/// Lengths that carry data are bounded by 32 MiB; lengths of effect only by the export.
#[test]
fn lengths() {
    let moment = Moment { size_bytes: 1 << 50 };
    let judge =
        |command, flags, length, terms: &Terms| judge(&header(command, flags, 0, length), terms, &moment);
    let errno = |verdict| match verdict {
        Verdict::Refuse { refusal, .. } => Some(refusal.errno),
        _ => None,
    };
    assert!(matches!(judge(cmd::READ, 0, MAX, &EXTENDED), Verdict::Run { .. }));
    assert_eq!(errno(judge(cmd::READ, 0, MAX + 512, &EXTENDED)), Some(Errno::Inval));
    assert_eq!(errno(judge(cmd::READ, cmd_flag::DF, MAX + 512, &EXTENDED)), Some(Errno::Overflow));
    assert!(matches!(judge(cmd::WRITE, 0, MAX, &COMPACT), Verdict::Run { payload: MAX, .. }));
    assert_eq!(errno(judge(cmd::WRITE, 0, MAX + 512, &COMPACT)), Some(Errno::Inval));
    assert!(matches!(judge(cmd::WRITE, 0, 2 * MAX + 512, &COMPACT), Verdict::HangUp(_)));
    let flag = cmd_flag::PAYLOAD_LEN;
    assert!(matches!(judge(cmd::WRITE, flag, MAX + 512, &EXTENDED), Verdict::HangUp(_)));
    assert!(matches!(judge(cmd::TRIM, flag, u64::MAX, &EXTENDED), Verdict::HangUp(_)));
    for command in [cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE, cmd::BLOCK_STATUS] {
        assert!(matches!(judge(command, 0, 1 << 50, &EXTENDED), Verdict::Run { payload: 0, .. }));
    }
}

/// Requests that are empty are EINVAL, and so are those that are not aligned to 512 bytes, of a client that agreed to
/// that; a flush has no range at all.
#[test]
fn shape_of_ranges() {
    for command in [cmd::READ, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(refused(command, 0, 0, 0, &EXTENDED), Some((Errno::Inval, 0)));
        assert_eq!(refused(command, 0, 1, 512, &EXTENDED), Some((Errno::Inval, 0)));
        assert_eq!(refused(command, 0, 0, 511, &EXTENDED), Some((Errno::Inval, 0)));
    }
    let free = Terms { aligned: false, ..EXTENDED };
    for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(refused(command, 0, 1, 1, &free), None);
        assert_eq!(refused(command, 0, SIZE - 1, 1, &free), None);
        assert!(refused(command, 0, SIZE - 1, 2, &free).is_some());
    }
    assert_eq!(refused(cmd::WRITE, 0, 0, 0, &COMPACT), Some((Errno::Inval, 0)));
    assert_eq!(refused(cmd::WRITE, 0, 0, 513, &COMPACT), Some((Errno::Inval, 513)));
    assert_eq!(refused(cmd::FLUSH, 0, 0, 512, &COMPACT), Some((Errno::Inval, 0)));
    assert_eq!(refused(cmd::FLUSH, 0, 512, 0, &COMPACT), Some((Errno::Inval, 0)));
}

/// A size that is no multiple of 512 leaves its tail out of reach, never a half sector in it.
#[test]
fn odd_sizes() {
    let moment = Moment { size_bytes: 1000 };
    let verdict = |length| judge(&header(cmd::READ, 0, 0, length), &COMPACT, &moment);
    assert!(matches!(verdict(512), Verdict::Run { .. }));
    assert!(matches!(verdict(1024), Verdict::Refuse { .. }));
}

/// A read-only export permits no write of any kind and everything else.
#[test]
fn read_only() {
    let terms = Terms { read_only: true, ..EXTENDED };
    for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(refused(command, 0, 0, 512, &terms), Some((Errno::Perm, 0)));
    }
    assert_eq!(refused(cmd::WRITE, cmd_flag::PAYLOAD_LEN, 0, 512, &terms), Some((Errno::Perm, 512)));
    for command in [cmd::READ, cmd::CACHE, cmd::BLOCK_STATUS] {
        assert_eq!(refused(command, 0, 0, 512, &terms), None);
    }
    assert_eq!(refused(cmd::FLUSH, 0, 0, 0, &terms), None);
}

/// The payload of a block status names each known context at most once, and a range in bounds.
#[test]
fn status_filters() {
    let payload = |len: u64, ids: &[u32]| {
        let ids = ids.iter().flat_map(|id| id.to_be_bytes());
        len.to_be_bytes().into_iter().chain(ids).collect::<Vec<u8>>()
    };
    let decide = |bytes: &[u8]| filter(512, true, bytes, &EXTENDED, &MOMENT);
    let request = |contexts| Request::BlockStatus { offset: 512, len: 1024, one_range: true, contexts };
    assert_eq!(decide(&payload(1024, &[BASE_ALLOCATION_ID])), Ok(Some(request(BASE))));
    let both = Terms { contexts: Contexts(0b101), ..EXTENDED };
    let decide_both = |ids: &[u32]| filter(512, true, &payload(1024, ids), &both, &MOMENT);
    assert_eq!(decide_both(&[3, 1]), Ok(Some(request(Contexts(0b101)))));
    assert_eq!(decide_both(&[3]), Ok(Some(request(Contexts(0b100)))));
    assert!(decide_both(&[2]).is_err() && decide_both(&[3, 3]).is_err() && decide_both(&[u32::MAX]).is_err());
    assert_eq!(decide(&payload(1024, &[])), Ok(None));
    assert!(decide(&payload(1024, &[2])).is_err());
    assert!(decide(&payload(1024, &[BASE_ALLOCATION_ID, BASE_ALLOCATION_ID])).is_err());
    assert!(decide(&payload(SIZE, &[BASE_ALLOCATION_ID])).is_err());
    assert!(decide(&[0; 7]).is_err());

    let flags = cmd_flag::PAYLOAD_LEN;
    assert_eq!(refused(cmd::BLOCK_STATUS, flags, 0, 12, &EXTENDED), None);
    assert_eq!(refused(cmd::BLOCK_STATUS, flags, 0, 13, &EXTENDED), Some((Errno::Inval, 13)));
    assert_eq!(refused(cmd::BLOCK_STATUS, flags, 0, 4, &EXTENDED), Some((Errno::Inval, 4)));
    assert_eq!(refused(cmd::BLOCK_STATUS, flags, 0, 8 + 4 * 17, &EXTENDED), Some((Errno::Inval, 76)));
    assert_eq!(refused(cmd::BLOCK_STATUS, 0, 0, 512, &COMPACT), Some((Errno::Inval, 0)));
}

proptest! {
    /// Whatever a header says, a request that may run lies inside the export, is not empty and aligned
    /// where that was agreed, and no payload beyond the bound is ever waited for.
    #[test]
    fn whatever_runs_is_in_bounds(
        flags: u16, command in prop_oneof![0u16..9, any::<u16>()],
        offset in prop_oneof![(0u64..4096).prop_map(|n| n * 512), any::<u64>()],
        length in prop_oneof![(0u64..4096).prop_map(|n| n * 512), any::<u64>()],
        extended: bool, structured: bool, contexts: u16, read_only: bool, fast_zero: bool, aligned: bool,
        size_bytes in prop_oneof![Just(SIZE), any::<u64>()],
    ) {
        let contexts = Contexts(contexts);
        let terms = Terms { extended, structured, contexts, read_only, fast_zero, aligned };
        let moment = Moment { size_bytes };
        match judge(&header(command, flags, offset, length), &terms, &moment) {
            Verdict::Run { request, payload } => {
                prop_assert!(payload <= MAX);
                match request {
                    Request::Flush => {}
                    Request::FilteredStatus { .. } => prop_assert!(payload <= 8 + 4 * FILTER_IDS_MAX),
                    Request::Read { offset, len, .. } | Request::Write { offset, len, .. }
                    | Request::Trim { offset, len, .. } | Request::WriteZeroes { offset, len, .. }
                    | Request::Cache { offset, len } | Request::BlockStatus { offset, len, .. } => {
                        prop_assert!(len > 0);
                        prop_assert!(!aligned || len % 512 == 0 && offset % 512 == 0);
                        prop_assert!(offset.checked_add(len).is_some_and(|end| end <= size_bytes));
                    }
                }
            }
            Verdict::Refuse { payload, .. } => prop_assert!(payload <= SKIP_BYTES_MAX),
            Verdict::Disconnect => prop_assert_eq!(command, cmd::DISC),
            Verdict::HangUp(_) => prop_assert!(length > MAX),
        }
    }
}
