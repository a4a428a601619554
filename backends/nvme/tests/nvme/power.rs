//! A machine whose power can be cut: what no sync has made durable is kept, lost or torn, sector by sector.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tempfile::TempDir;
use umbp_backend_nvme::port::{Direction, Disk, Done, Medium, Port, Request, Wake};

use crate::common::quick_folder;
use crate::faulty::dice;

const SECTOR_BYTES: u64 = 512;

/// One change of a file that no sync has covered.
struct Change {
    /// Of a piece that is not done yet: its token.
    out: Option<u64>,
    what: What,
}

enum What {
    Bytes(u64, Vec<u8>),
    Length(u64),
    /// A hole: offset and bytes.
    Hole(u64, u64),
}

/// A file as the disk would have it.
struct Tracked {
    /// Keeps the inode from being given to another file.
    _file: File,
    durable: Vec<u8>,
    changes: Vec<Change>,
}

impl Tracked {
    fn new(file: File) -> Self {
        let mut durable = vec![0; file.metadata().unwrap().len() as usize];
        // Through another description, since this one may have O_DIRECT.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        File::open(path).unwrap().read_exact_at(&mut durable, 0).unwrap();
        Self { _file: file, durable, changes: Vec::new() }
    }

    /// Everything that is done becomes durable.
    fn settle(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change { out: Some(_), .. } => self.changes.push(change),
                Change { what: What::Length(length), .. } => self.durable.resize(length as usize, 0),
                Change { what: What::Bytes(offset, bytes), .. } => write(&mut self.durable, offset, &bytes),
                Change { what: What::Hole(offset, length), .. } => zero(&mut self.durable, offset, length),
            }
        }
    }

    /// What a power cut might leave.
    fn cut(&self, state: &mut u64) -> Vec<u8> {
        let mut image = self.durable.clone();
        // All kept, all lost, or each by itself, sector by sector.
        let mood = dice(state) % 4;
        let keep = |state: &mut u64| mood == 0 || (mood > 1 && dice(state).is_multiple_of(2));
        let mut parts: Vec<(u64, &[u8])> = Vec::new();
        // A hole that is kept in part is as good as one of its sectors.
        let nothing = vec![0; SECTOR_BYTES as usize];
        for change in &self.changes {
            match &change.what {
                What::Length(length) if keep(state) => image.resize(*length as usize, 0),
                What::Length(_) => {}
                What::Hole(offset, length) => {
                    let sectors = (*offset..offset + length).step_by(SECTOR_BYTES as usize);
                    parts.extend(sectors.filter(|_| keep(state)).map(|offset| (offset, &*nothing)));
                }
                What::Bytes(offset, bytes) => parts.extend(sectors(*offset, bytes).filter(|_| keep(state))),
            }
        }
        while !parts.is_empty() {
            // In any order too: of two writes to one sector either may be the last.
            let at = if mood == 3 { dice(state) as usize % parts.len() } else { 0 };
            let (offset, bytes) = parts.remove(at);
            // A hole lengthens no file.
            if !std::ptr::eq(bytes.as_ptr(), nothing.as_ptr()) || offset < image.len() as u64 {
                write(&mut image, offset, bytes);
            }
        }
        image
    }
}

fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = (SECTOR_BYTES - offset % SECTOR_BYTES).min(bytes.len() as u64);
    let (head, rest) = bytes.split_at(first as usize);
    let tail = rest.chunks(SECTOR_BYTES as usize).zip(0..);
    std::iter::once((offset, head)).chain(tail.map(move |(part, at)| (offset + first + at * SECTOR_BYTES, part)))
}

/// What was never written stays a hole, as on a disk.
fn write_sparse(path: &Path, image: &[u8]) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(image.len() as u64)?;
    let units = image.chunks(4096).zip((0..).step_by(4096)).filter(|(unit, _)| unit.iter().any(|byte| *byte != 0));
    units.into_iter().try_for_each(|(unit, offset)| file.write_all_at(unit, offset))
}

/// A hole ends where the file does.
fn zero(image: &mut [u8], offset: u64, length: u64) {
    let end = image.len().min((offset + length) as usize);
    image[end.min(offset as usize)..end].fill(0);
}

fn write(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    image.resize(image.len().max(end), 0);
    image[offset as usize..end].copy_from_slice(bytes);
}

#[derive(Default)]
struct State {
    files: HashMap<u64, Tracked>,
    /// The power is gone: nothing is taken any more.
    off: bool,
}

/// The medium.
#[derive(Clone, Default)]
pub(crate) struct Power(Arc<Mutex<State>>);

impl Power {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn on(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.off { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(state) }
    }

    /// Ends all writing, and answers the folder as the next start might find it. Leaves the old one alone.
    pub(crate) fn cut(&self, path: &Path, dice_state: &mut u64) -> TempDir {
        self.state().off = true;
        loop {
            let names = || -> HashSet<_> { std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect() };
            let (before, state, place) = (names(), self.state(), quick_folder());
            let copied = before.iter().all(|name| {
                let Ok(found) = std::fs::metadata(path.join(name)) else { return false };
                match state.files.get(&found.ino()) {
                    Some(tracked) => write_sparse(&place.path().join(name), &tracked.cut(dice_state)).is_ok(),
                    None => std::fs::copy(path.join(name), place.path().join(name)).is_ok(),
                }
            });
            // A snapshot may just have been taking its name.
            if copied && before == names() {
                return place;
            }
        }
    }

    fn wrap(&self, inner: Box<dyn Port>) -> Box<dyn Port> {
        Box::new(PowerPort { inner, power: self.clone(), refused: Vec::new(), stores: HashMap::new() })
    }
}

impl State {
    /// The file, tracked from now on, with what it holds now as durable.
    fn of(&mut self, file: BorrowedFd<'_>) -> (u64, &mut Tracked) {
        let file = File::from(file.try_clone_to_owned().unwrap());
        let inode = file.metadata().unwrap().ino();
        (inode, self.files.entry(inode).or_insert_with(|| Tracked::new(file)))
    }
}

impl Medium for Power {
    fn ring(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        Ok(self.wrap(Disk.ring(depth)?))
    }

    fn threads(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        Ok(self.wrap(Disk.threads(depth)?))
    }

    fn append(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.on()?;
        let what = What::Bytes(offset, bytes.to_vec());
        state.of(file.as_fd()).1.changes.push(Change { out: None, what });
        Disk.append(file, bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.on()?.of(file.as_fd()).1.settle();
        Ok(())
    }

    fn punch(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.on()?;
        state.of(file.as_fd()).1.changes.push(Change { out: None, what: What::Hole(offset, length) });
        Disk.punch(file, offset, length)
    }

    fn extend(&self, file: &File, length: u64) -> io::Result<()> {
        let mut state = self.on()?;
        state.of(file.as_fd()).1.changes.push(Change { out: None, what: What::Length(length) });
        Disk.extend(file, length)
    }
}

struct PowerPort {
    inner: Box<dyn Port>,
    power: Power,
    refused: Vec<Done>,
    /// Inodes of stores that are out.
    stores: HashMap<u64, u64>,
}

impl Port for PowerPort {
    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn attach(&mut self, file: RawFd) -> io::Result<()> {
        self.inner.attach(file)
    }

    unsafe fn register(&mut self, buffer: u16, address: *mut u8, length: usize) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.register(buffer, address, length) }
    }

    fn unregister(&mut self, buffer: u16) {
        self.inner.unregister(buffer);
    }

    unsafe fn push(&mut self, request: Request) {
        let mut state = self.power.state();
        if state.off {
            return self.refused.push(Done { token: request.token, result: -libc::EIO });
        }
        if request.direction == Direction::Store {
            // SAFETY: the driver keeps the file open, and the memory valid, until the piece is done.
            let (file, bytes) = unsafe {
                let bytes = std::slice::from_raw_parts(request.address, request.length as usize);
                (BorrowedFd::borrow_raw(request.file), bytes.to_vec())
            };
            let (inode, tracked) = state.of(file);
            tracked.changes.push(Change { out: Some(request.token), what: What::Bytes(request.offset, bytes) });
            self.stores.insert(request.token, inode);
        }
        drop(state);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.push(request) };
    }

    fn cancel(&mut self, token: u64) {
        self.inner.cancel(token);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        done.append(&mut self.refused);
        let timeout = if done.len() > before { Some(Duration::ZERO) } else { timeout };
        self.inner.wait(timeout, done)?;
        let mut state = self.power.state();
        for piece in &done[before..] {
            let inode = self.stores.remove(&piece.token);
            let Some(tracked) = inode.and_then(|inode| state.files.get_mut(&inode)) else { continue };
            // A short one is continued by the driver, so that all of its bytes are written again or none counts.
            tracked.changes.iter_mut().filter(|change| change.out == Some(piece.token)).for_each(|c| c.out = None);
        }
        Ok(())
    }
}
