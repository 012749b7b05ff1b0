//! What the kernel asks for: decided purely, from a descriptor and the size.
//!
//! The kernel keeps to what a device was made as. It is checked all the same: a volume that was made smaller has requests beyond its end.

use cistern_nbd::Errno;

use crate::{
    REQUEST_BYTES_MAX,
    wire::{Descriptor, SECTOR_BYTES, op},
};

/// A request that may be run: ranges are not empty and inside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UblkRequest {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, fua: bool },
    Flush,
    Trim { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, no_hole: bool, fua: bool },
}

/// Decides about one descriptor.
pub(crate) fn judge(descriptor: &Descriptor, size_bytes: u64) -> Result<UblkRequest, Errno> {
    let flags = descriptor.op_flags;
    let kind = flags & op::MASK;
    if kind == op::FLUSH {
        return Ok(UblkRequest::Flush);
    }
    let len = u64::from(descriptor.sectors) * SECTOR_BYTES;
    let offset = descriptor.first_sector.checked_mul(SECTOR_BYTES).ok_or(Errno::Inval)?;
    let is_inside = offset.checked_add(len).is_some_and(|end| end <= size_bytes);
    if len == 0 || !is_inside {
        return Err(Errno::Inval);
    }
    let fua = flags & op::FUA != 0;
    match kind {
        op::READ | op::WRITE if len > u64::from(REQUEST_BYTES_MAX) => Err(Errno::Inval),
        op::READ => Ok(UblkRequest::Read { offset, len: len as usize }),
        op::WRITE => Ok(UblkRequest::Write { offset, len: len as usize, fua }),
        op::DISCARD => Ok(UblkRequest::Trim { offset, len }),
        op::WRITE_ZEROES => {
            Ok(UblkRequest::WriteZeroes { offset, len, no_hole: flags & op::NO_UNMAP != 0, fua })
        }
        _ => Err(Errno::NotSup),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(op_flags: u32, first_sector: u64, sectors: u32) -> Result<UblkRequest, Errno> {
        judge(&Descriptor { op_flags, sectors, first_sector, address: 0 }, 1 << 20)
    }

    /// Every operation of a block device is known, with its flags.
    #[test]
    fn operations() {
        use UblkRequest::*;
        assert_eq!(asked(op::READ, 8, 8), Ok(Read { offset: 4096, len: 4096 }));
        assert_eq!(asked(op::WRITE | op::FUA, 0, 8), Ok(Write { offset: 0, len: 4096, fua: true }));
        assert_eq!(asked(op::WRITE | 1 << 11, 0, 8), Ok(Write { offset: 0, len: 4096, fua: false }));
        assert_eq!(asked(op::FLUSH, 77, 0), Ok(Flush));
        assert_eq!(asked(op::DISCARD, 0, 2048), Ok(Trim { offset: 0, len: 1 << 20 }));
        let zeroes = |no_hole, fua| Ok(WriteZeroes { offset: 4096, len: 4096, no_hole, fua });
        assert_eq!(asked(op::WRITE_ZEROES, 8, 8), zeroes(false, false));
        assert_eq!(asked(op::WRITE_ZEROES | op::NO_UNMAP | op::FUA, 8, 8), zeroes(true, true));
    }

    /// Nothing beyond the end, beyond numbers, without a length or of an unknown kind is run.
    #[test]
    fn what_is_refused() {
        for kind in [op::READ, op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            for (first, sectors) in
                [(2041, 8), (2048, 1), (0, 0), (u64::MAX, 8), (u64::MAX >> 9, 8), (0, u32::MAX)]
            {
                assert_eq!(asked(kind, first, sectors), Err(Errno::Inval), "{kind} {first} {sectors}");
            }
        }
        assert_eq!(asked(op::READ, 0, 1025), Err(Errno::Inval), "longer than it has memory for");
        assert_eq!(asked(4, 0, 8), Err(Errno::NotSup));
        assert_eq!(asked(0xff, 0, 8), Err(Errno::NotSup));
    }
}
