//! Numbers and layouts of the kernel, from `include/uapi/linux/ublk_cmd.h`.

use std::mem::size_of;

/// Bytes of the sectors in which the kernel counts.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Number of an ioctl, as `asm-generic/ioctl.h` makes it of direction, size, type and number.
const fn number(direction: u32, size: usize, nr: u32) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | nr
}
const fn reads(nr: u32) -> u32 {
    number(2, size_of::<ControlCommand>(), nr)
}
const fn changes(nr: u32) -> u32 {
    number(3, size_of::<ControlCommand>(), nr)
}

/// Commands to `/dev/ublk-control`.
pub(crate) mod control {
    use super::{changes, reads};

    pub(crate) const GET_DEV_INFO: u32 = reads(0x02);
    pub(crate) const ADD_DEV: u32 = changes(0x04);
    pub(crate) const DEL_DEV: u32 = changes(0x05);
    pub(crate) const START_DEV: u32 = changes(0x06);
    pub(crate) const STOP_DEV: u32 = changes(0x07);
    pub(crate) const SET_PARAMS: u32 = changes(0x08);
    pub(crate) const START_USER_RECOVERY: u32 = changes(0x10);
    pub(crate) const END_USER_RECOVERY: u32 = changes(0x11);
    pub(crate) const GET_FEATURES: u32 = reads(0x13);
}

/// Commands to `/dev/ublkcN`.
pub(crate) mod io {
    use super::{IoCommand, number};
    use std::mem::size_of;

    pub(crate) const FETCH: u32 = number(3, size_of::<IoCommand>(), 0x20);
    pub(crate) const COMMIT_AND_FETCH: u32 = number(3, size_of::<IoCommand>(), 0x21);
}

/// Flags of a device, and what a driver knows of.
pub(crate) mod flag {
    /// It stays when who serves it ends.
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    /// What was under way then is asked again.
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered as ioctls are.
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Data is read from and written to `/dev/ublkcN`.
    pub(crate) const USER_COPY: u64 = 1 << 7;
}

/// States of a device.
pub(crate) mod state {
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    pub(crate) const QUIESCED: u16 = 2;
}

/// Attributes of a device.
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// Kinds of parameters that are set.
pub(crate) const PARAMS_BASIC: u32 = 1 << 0;
pub(crate) const PARAMS_DISCARD: u32 = 1 << 1;

/// Operations of requests, and their flags.
pub(crate) mod op {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
    pub(crate) const MASK: u32 = 0xff;
    pub(crate) const FUA: u32 = 1 << 13;
    pub(crate) const NO_UNMAP: u32 = 1 << 15;
}

/// Where the descriptors of a device's first queue are mapped, and the data of its requests read and written.
pub(crate) const DESCRIPTORS_AT: i64 = 0;
const DATA_AT: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

/// Position in `/dev/ublkcN` of the data of a request of the first queue.
pub(crate) const fn data_at(tag: u16) -> u64 {
    DATA_AT + ((tag as u64) << TAG_SHIFT)
}

const _: () = assert!(crate::REQUEST_BYTES_MAX as u64 <= 1 << TAG_SHIFT);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ControlCommand {
    pub(crate) device: u32,
    pub(crate) queue: u16,
    pub(crate) len: u16,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) path_len: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DeviceInfo {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) pad0: u16,
    pub(crate) request_bytes_max: u32,
    pub(crate) device: u32,
    pub(crate) server_pid: i32,
    pub(crate) pad1: u32,
    pub(crate) flags: u64,
    /// What the server keeps there; the driver does not look at it.
    pub(crate) server_flags: u64,
    pub(crate) owner: u64,
    pub(crate) reserved: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Params {
    pub(crate) len: u32,
    pub(crate) types: u32,
    pub(crate) attributes: u32,
    pub(crate) logical_shift: u8,
    pub(crate) physical_shift: u8,
    pub(crate) optimal_shift: u8,
    pub(crate) minimal_shift: u8,
    pub(crate) request_sectors_max: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) boundary_mask: u64,
    pub(crate) discard_alignment: u32,
    pub(crate) discard_granularity: u32,
    pub(crate) discard_sectors_max: u32,
    pub(crate) zeroes_sectors_max: u32,
    pub(crate) discard_segments_max: u16,
    pub(crate) reserved: u16,
    /// What the kernel has behind that is not ours to set.
    pub(crate) rest: u32,
}

/// Bytes of it that are.
pub(crate) const PARAMS_BYTES: u32 = 60;

/// What a request asks for, as the kernel writes it where it is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) op_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) first_sector: u64,
    pub(crate) address: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IoCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) address: u64,
}

impl ControlCommand {
    /// As it stands in a submission of 128 bytes.
    pub(crate) fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

impl IoCommand {
    /// As it stands in a submission.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

const _: () = assert!(size_of::<ControlCommand>() == 32 && size_of::<DeviceInfo>() == 64);
const _: () =
    assert!(std::mem::offset_of!(Params, rest) == PARAMS_BYTES as usize && size_of::<Descriptor>() == 24);
const _: () = assert!(size_of::<IoCommand>() == 16);
