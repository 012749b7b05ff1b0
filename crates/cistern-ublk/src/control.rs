//! Devices from their making to their end, by commands to `/dev/ublk-control`.
//!
//! Each command is one submission of an io_uring. Those that wait for others (whoever serves a device) are given up after [`COMMAND_LIMIT`];
//! they have no memory of ours. Never serves a request.

use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    os::fd::AsRawFd,
    time::Duration,
};

use io_uring::{
    IoUring, cqueue, opcode, squeue,
    types::{Fd, SubmitArgs, Timespec},
};

use crate::{
    DEPTH, REQUEST_BYTES_MAX,
    wire::{
        self, ControlCommand, DeviceInfo, PARAMS_BASIC, PARAMS_BYTES, PARAMS_DISCARD, Params, SECTOR_BYTES,
        attribute, control, flag, state,
    },
};

const PATH: &str = "/dev/ublk-control";
/// What a driver must know: a device that outlives its server and sends requests again, and data without memory that is tied to it (Linux 6.5).
const NEEDED: u64 =
    flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | flag::CMD_IOCTL_ENCODE | flag::USER_COPY;
/// How long the kernel may take for a command: to end a device it waits until who serves it has let go.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of one TRIM or WRITE ZEROES at most: as many as a request can say in whole MiB.
const DISCARD_BYTES_MAX: u64 = (1 << 32) - (1 << 20);

/// What a device looks like to who uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// A multiple of `block_bytes`.
    pub size_bytes: u64,
    /// A power of two, at least a sector.
    pub block_bytes: u32,
    pub read_only: bool,
}

/// Where a device is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkState {
    /// Not started, or ended.
    Dead,
    /// Somebody serves it.
    Live,
    /// Who served it is gone: requests wait.
    Orphaned,
    /// A state of newer kernels.
    Other(u16),
}

/// What the kernel tells of a device.
#[derive(Clone, Copy, Debug)]
pub struct UblkInfo {
    pub state: UblkState,
    /// What it was given when it was made, for whoever wants to know it again.
    pub mark: u64,
    /// The process that serves it, or did.
    pub server_pid: i32,
}

/// The driver. Takes CAP_SYS_ADMIN.
pub struct UblkControl {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl UblkControl {
    /// Opens the driver, and sees that it knows what is needed.
    ///
    /// # Errors
    /// `NotFound` where the module is not loaded, `Unsupported` where the kernel is too old.
    pub fn open() -> Result<UblkControl> {
        let file = File::options().read(true).write(true).open(PATH)?;
        let ring = IoUring::builder().build(2)?;
        let mut control = UblkControl { file, ring };
        let mut features = 0_u64;
        let get = ControlCommand { device: u32::MAX, queue: u16::MAX, ..ControlCommand::default() };
        // SAFETY: the driver writes as many bytes as the number has.
        let told = unsafe { control.command(control::GET_FEATURES, get, Some(&mut features)) };
        match told {
            Ok(_) if features & NEEDED == NEEDED => Ok(control),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(e),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "the ublk driver of this kernel is too old (6.5 is the first that serves)",
            )),
        }
    }

    /// Makes a device of this number, with a mark that [`info`](Self::info) tells again. It cannot be seen before it is started.
    ///
    /// # Errors
    /// `AlreadyExists` where there is one.
    pub fn make(&mut self, device: u32, mark: u64, shape: Shape) -> Result<()> {
        let mut info = DeviceInfo {
            queues: 1,
            depth: DEPTH,
            request_bytes_max: REQUEST_BYTES_MAX,
            device,
            flags: NEEDED,
            server_flags: mark,
            ..DeviceInfo::default()
        };
        let add = ControlCommand { device, queue: u16::MAX, ..ControlCommand::default() };
        // SAFETY: the driver reads and writes as many bytes as the structure has.
        unsafe { self.command(control::ADD_DEV, add, Some(&mut info)) }?;
        let mut params = params(shape);
        let set = ControlCommand { device, queue: u16::MAX, ..ControlCommand::default() };
        // SAFETY: the driver reads at most as many bytes as the structure says and has.
        let done = unsafe { self.command(control::SET_PARAMS, set, Some(&mut params)) };
        done.map(drop).inspect_err(|_| drop(self.delete(device)))
    }

    /// Shows a device that a process serves.
    pub fn start(&mut self, device: u32, server_pid: u32) -> Result<()> {
        self.plain(control::START_DEV, device, u64::from(server_pid))
    }

    /// Readies an orphaned device for another server; one that is ready stays so. `ResourceBusy` while the old one has not let go.
    pub fn begin_recovery(&mut self, device: u32) -> Result<()> {
        match self.plain(control::START_USER_RECOVERY, device, 0) {
            // So says the kernel where nobody has served it since.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            done => done,
        }
    }

    /// Hands the requests that wait to the process that serves now.
    pub fn end_recovery(&mut self, device: u32, server_pid: u32) -> Result<()> {
        self.plain(control::END_USER_RECOVERY, device, u64::from(server_pid))
    }

    /// Takes a device away from who uses it: what waits there fails.
    pub fn stop(&mut self, device: u32) -> Result<()> {
        self.plain(control::STOP_DEV, device, 0)
    }

    /// Ends a device, started or not, once who serves it has let go.
    pub fn delete(&mut self, device: u32) -> Result<()> {
        self.plain(control::DEL_DEV, device, 0)
    }

    /// What the kernel tells of a device; `NotFound` where there is none.
    pub fn info(&mut self, device: u32) -> Result<UblkInfo> {
        let mut info = DeviceInfo::default();
        let get = ControlCommand { device, queue: u16::MAX, ..ControlCommand::default() };
        // SAFETY: the driver writes as many bytes as the structure has.
        let told = unsafe { self.command(control::GET_DEV_INFO, get, Some(&mut info)) };
        told.map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV | libc::EINVAL) => Error::new(ErrorKind::NotFound, "there is no such device"),
            _ => e,
        })?;
        let state = match info.state {
            state::DEAD => UblkState::Dead,
            state::LIVE => UblkState::Live,
            state::QUIESCED => UblkState::Orphaned,
            other => UblkState::Other(other),
        };
        Ok(UblkInfo { state, mark: info.server_flags, server_pid: info.server_pid })
    }

    fn plain(&mut self, op: u32, device: u32, data: u64) -> Result<()> {
        let command = ControlCommand { device, queue: u16::MAX, data, ..ControlCommand::default() };
        // SAFETY: the driver gets no memory.
        unsafe { self.command::<()>(op, command, None) }.map(drop)
    }

    /// Has a command done.
    ///
    /// # Safety
    /// The driver may read and write as many bytes as `payload` has.
    unsafe fn command<T>(
        &mut self,
        op: u32,
        mut command: ControlCommand,
        payload: Option<&mut T>,
    ) -> Result<i32> {
        let limit = Timespec::from(COMMAND_LIMIT);
        let mut wait = SubmitArgs::new().timespec(&limit);
        if let Some(payload) = payload {
            command.address = payload as *mut T as u64;
            command.len = u16::try_from(size_of::<T>()).expect("structures of the kernel are small");
            wait = SubmitArgs::new(); // it waits for nobody, and the memory has to stay until it is done
        }
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), op).cmd(command.bytes()).build();
        // SAFETY: the payload is borrowed until the command is done.
        unsafe { self.ring.submission().push(&entry) }.expect("there is one command at a time");
        while let Err(e) = self.ring.submitter().submit_with_args(1, &wait) {
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ETIME) => {
                    self.ring = IoUring::builder().build(2)?; // what comes of the command belongs to nobody
                    return Err(Error::new(ErrorKind::TimedOut, "the kernel does not answer"));
                }
                _ => return Err(e),
            }
        }
        let done = self.ring.completion().next().expect("one was waited for").result();
        if done < 0 { Err(Error::from_raw_os_error(-done)) } else { Ok(done) }
    }
}

fn params(shape: Shape) -> Params {
    assert!(shape.block_bytes.is_power_of_two() && u64::from(shape.block_bytes) >= SECTOR_BYTES);
    assert!(shape.size_bytes.is_multiple_of(u64::from(shape.block_bytes)));
    let shift = shape.block_bytes.trailing_zeros() as u8;
    let discard_sectors = (DISCARD_BYTES_MAX / wire::SECTOR_BYTES) as u32;
    let read_only = if shape.read_only { attribute::READ_ONLY } else { 0 };
    Params {
        len: PARAMS_BYTES,
        types: PARAMS_BASIC | PARAMS_DISCARD,
        attributes: attribute::VOLATILE_CACHE | attribute::FUA | read_only,
        logical_shift: shift,
        physical_shift: shift,
        optimal_shift: 16,
        minimal_shift: shift,
        request_sectors_max: REQUEST_BYTES_MAX / SECTOR_BYTES as u32,
        sectors: shape.size_bytes / SECTOR_BYTES,
        discard_granularity: shape.block_bytes,
        discard_sectors_max: discard_sectors,
        zeroes_sectors_max: discard_sectors,
        discard_segments_max: 1,
        ..Params::default()
    }
}
