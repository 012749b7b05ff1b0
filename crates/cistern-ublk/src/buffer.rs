//! The data of requests, between the kernel's pages and memory of ours: one copy each way, at a position of `/dev/ublkcN` that a request has.

use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    os::fd::AsRawFd,
};

use bytes::Bytes;
use cistern_nbd::ReadPiece;

/// Zeroes to copy from.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
/// Pieces of memory of one system call.
const PIECES_MAX: usize = 1024;

/// The data of a write.
pub(crate) fn take(device: &File, at: u64, len: usize) -> Result<Bytes> {
    let mut data = Vec::with_capacity(len);
    while data.len() < len {
        let left = len - data.len();
        let free = &mut data.spare_capacity_mut()[..left];
        // SAFETY: the memory is ours and has as many bytes.
        let got = unsafe {
            let position = (at + (len - left) as u64) as i64;
            libc::pread(device.as_raw_fd(), free.as_mut_ptr().cast(), left, position)
        };
        match done(got)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            // SAFETY: the kernel has written so many.
            got => unsafe { data.set_len(data.len() + got) },
        }
    }
    Ok(Bytes::from(data))
}

/// Answers a read.
pub(crate) fn give(device: &File, at: u64, pieces: &[ReadPiece]) -> Result<()> {
    let mut parts: Vec<&[u8]> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match piece {
            ReadPiece::Data(data) => parts.push(data),
            ReadPiece::Zeroes(len) => {
                let mut left = usize::try_from(*len).map_err(|_| ErrorKind::InvalidData)?;
                while left > 0 {
                    let part = left.min(ZEROES.len());
                    parts.push(&ZEROES[..part]);
                    left -= part;
                }
            }
        }
    }
    let (mut at, mut parts) = (at, &mut parts[..]);
    while !parts.is_empty() {
        let vectors: Vec<libc::iovec> = parts
            .iter()
            .take(PIECES_MAX)
            .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() })
            .collect();
        // SAFETY: the vectors name memory that is borrowed meanwhile, and is only read.
        let written =
            unsafe { libc::pwritev(device.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, at as i64) };
        let mut written = done(written)?;
        if written == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        at += written as u64;
        while let Some(first) = parts.first_mut() {
            if written < first.len() {
                *first = &first[written..];
                break;
            }
            written -= first.len();
            parts = &mut parts[1..];
        }
    }
    Ok(())
}

fn done(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// What is given piece by piece is what is taken at once, with zeroes longer than what they are copied from.
    #[test]
    fn there_and_back() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[9; 1 << 20], 0).expect("written");
        let mut pieces = vec![ReadPiece::Zeroes(100 << 10), ReadPiece::Data(Bytes::from(vec![1; 5000]))];
        pieces.extend((0..3000).map(|i| ReadPiece::Data(Bytes::from(vec![i as u8; 7]))));
        pieces.push(ReadPiece::Zeroes(1));
        give(&file, 4096, &pieces).expect("given");
        let mut wanted = vec![0; 100 << 10];
        wanted.extend([1; 5000]);
        wanted.extend((0..3000).flat_map(|i| [i as u8; 7]));
        wanted.push(0);
        assert_eq!(take(&file, 4096, wanted.len()).expect("taken"), wanted);
        assert_eq!(take(&file, 0, 4096).expect("taken"), [9; 4096][..]);
        assert_eq!(
            take(&file, (1 << 20) - 10, 11).expect_err("behind the end").kind(),
            ErrorKind::UnexpectedEof
        );
    }
}
