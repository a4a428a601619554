//! Does O_DIRECT really work here? Opening a file with it proves nothing: some file systems take the flag and fail the
//! first read (F3), so a pattern is written, read back and compared, through the port that will be used.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};

use super::{Direction, Port, Request};
use crate::folder::Folder;
use crate::format::UNIT_BYTES;
use crate::transfer::Bounce;

/// What the probe found.
pub(crate) enum Probed {
    /// O_DIRECT works at units; what statx(2) reports is named.
    Direct(String),
    /// It does not, and why.
    Buffered(String),
}

/// Units that the probe moves, more than one so that a length is proved as well as an offset.
const PROBE_UNITS: usize = 2;
const PROBE_DEADLINE: Duration = Duration::from_secs(10);
const PROBE_TOKEN: u64 = 1;

/// Tries a temporary file of the folder.
pub(crate) fn probe(folder: &Folder, port: &mut dyn Port) -> Probed {
    let result = try_direct(folder, port);
    let _ = std::fs::remove_file(folder.file("probe.tmp"));
    result.map_or_else(Probed::Buffered, Probed::Direct)
}

fn try_direct(folder: &Folder, port: &mut dyn Port) -> Result<String, String> {
    let file = folder.open_file("probe.tmp", libc::O_DIRECT | libc::O_TRUNC);
    let file = file.map_err(|error| format!("the file system refuses O_DIRECT: {error}"))?;
    let reported = alignment(&file)?;
    let length = PROBE_UNITS * UNIT_BYTES as usize;
    let mut written = Bounce::new(length);
    for (index, byte) in written.bytes_mut().iter_mut().enumerate() {
        *byte = (index / 7) as u8 ^ (index >> 8) as u8;
    }
    move_all(port, &file, Direction::Store, &mut written)?;
    let mut read = Bounce::new(length);
    move_all(port, &file, Direction::Load, &mut read)?;
    if read.bytes() != written.bytes() {
        return Err("an aligned O_DIRECT read does not give back what was written".to_owned());
    }
    // A plain read has to agree as well, since the store may be opened without O_DIRECT another time.
    let mut plain = vec![0; length];
    let path = folder.file("probe.tmp");
    let again = File::open(path).and_then(|file| file.read_exact_at(&mut plain, 0));
    if again.is_err() || plain != written.bytes() {
        return Err("a plain read does not give back what O_DIRECT wrote".to_owned());
    }
    Ok(reported)
}

fn alignment(file: &File) -> Result<String, String> {
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let Ok(found) = found.map_err(|_| ()) else { return Ok("4096-byte alignment assumed".to_owned()) };
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok("4096-byte alignment assumed".to_owned());
    }
    let (memory, offset) = (u64::from(found.stx_dio_mem_align), u64::from(found.stx_dio_offset_align));
    if memory == 0 || offset == 0 {
        return Err("statx reports that the file system has no O_DIRECT".to_owned());
    }
    if !UNIT_BYTES.is_multiple_of(memory) || !UNIT_BYTES.is_multiple_of(offset) {
        return Err(format!("O_DIRECT here needs {memory}-byte memory and {offset}-byte offsets; 4096 is used"));
    }
    Ok(format!("4096-byte alignment ({offset} needed)"))
}

fn move_all(port: &mut dyn Port, file: &File, direction: Direction, memory: &mut Bounce) -> Result<(), String> {
    let length = memory.bytes().len();
    let request = Request {
        token: PROBE_TOKEN,
        direction,
        file: file.as_raw_fd(),
        address: memory.bytes_mut().as_mut_ptr(),
        length: length as u32,
        offset: 0,
        buffer: None,
    };
    // SAFETY: `memory` outlives the piece, since this function waits for it below, and leaks it otherwise.
    unsafe { port.push(request) };
    let deadline = Instant::now() + PROBE_DEADLINE;
    let mut done = Vec::new();
    while done.is_empty() && Instant::now() < deadline {
        if let Err(error) = port.wait(Some(Duration::from_millis(100)), &mut done) {
            memory.leak();
            return Err(format!("the probe cannot wait: {error}"));
        }
    }
    let verb = if direction == Direction::Load { "read" } else { "write" };
    match done.first() {
        None => {
            memory.leak();
            Err(format!("an O_DIRECT {verb} takes longer than {} s", PROBE_DEADLINE.as_secs()))
        }
        Some(piece) if piece.result == length as i32 => Ok(()),
        Some(piece) if piece.result >= 0 => Err(format!("an O_DIRECT {verb} moved {} of {length} bytes", piece.result)),
        Some(piece) => Err(format!("an O_DIRECT {verb} fails: {}", io::Error::from_raw_os_error(-piece.result))),
    }
}
