//! The driver thread of one path: splits transfers into pieces and keeps a bounded number of them in flight.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbp_plugin_api::Status;

use crate::inbox::Command;
use crate::piece::{Active, Piece, Verdict, judge, next_piece, start};
use crate::port::{Direction, Done, Port, Request};
use crate::regions::Registrations;
use crate::store::{Store, monotonic_ns};
use crate::transfer::{Bounce, Reserved, Transfer};
use crate::verify::Loaded;

mod ends;
mod waits;

use waits::leave_direct;

/// Among so many load pieces one store piece goes, so that loads, which go first, do not starve stores for ever.
const LOADS_PER_STORE: u32 = 16;
/// How often transfers are looked over for passed deadlines.
const EXPIRY_TICK: Duration = Duration::from_millis(20);

struct PieceSlot {
    generation: u32,
    piece: Option<Piece>,
}

/// What is left of a transfer that has ended before its last piece: its own memory, and the units of a store. Both stay
/// taken until the kernel has let go.
struct Remains {
    outstanding: u32,
    bounce: Bounce,
    reserved: Option<Reserved>,
}

/// State of the thread. It outlives a panic of [`Self::run`], so that memory is let go only when the kernel has.
pub(crate) struct Driver {
    store: Arc<Store>,
    port: Box<dyn Port>,
    registrations: Registrations,
    actives: Vec<Option<Active>>,
    free_actives: Vec<usize>,
    /// By the index that the active had.
    remains: HashMap<usize, Remains>,
    /// Stores that wait for room, oldest first.
    waiting: VecDeque<Transfer>,
    /// Indices of actives that have bytes left to issue.
    loads: VecDeque<usize>,
    stores: VecDeque<usize>,
    pieces: Vec<PieceSlot>,
    free_pieces: Vec<usize>,
    loads_in_a_row: u32,
    direct: bool,
    /// Pieces that the port has not taken, to be told as failed.
    refused: Vec<Done>,
    stop: Option<Instant>,
    expired_at: Instant,
}

impl Driver {
    /// With `depth` pieces in flight at most.
    pub(crate) fn new(store: Arc<Store>, port: Box<dyn Port>, depth: u32, direct: bool) -> Self {
        let depth = depth as usize;
        Self {
            registrations: Registrations::new(store.host.clone()),
            store,
            port,
            actives: Vec::new(),
            free_actives: Vec::new(),
            remains: HashMap::new(),
            waiting: VecDeque::new(),
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            pieces: (0..depth).map(|_| PieceSlot { generation: 0, piece: None }).collect(),
            free_pieces: (0..depth).rev().collect(),
            loads_in_a_row: 0,
            direct,
            refused: Vec::new(),
            stop: None,
            expired_at: Instant::now(),
        }
    }

    /// Until it is told to stop and everything accepted has ended. An error means that the port is broken.
    pub(crate) fn run(&mut self) -> std::io::Result<()> {
        let mut done = Vec::new();
        loop {
            for command in self.store.inbox.take() {
                self.obey(command);
            }
            self.expire();
            self.place_waiting();
            self.issue();
            if self.idle() && self.stop.is_some() && self.store.inbox.close_if_empty() {
                return Ok(());
            }
            done.append(&mut self.refused);
            let waiting = !self.idle() || self.stop.is_some();
            let tick = if done.is_empty() { EXPIRY_TICK } else { Duration::ZERO };
            self.port.wait(waiting.then_some(tick), &mut done)?;
            for piece in done.drain(..) {
                self.complete_piece(piece);
            }
        }
    }

    fn idle(&self) -> bool {
        self.actives.len() == self.free_actives.len() && self.waiting.is_empty()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Transfer(transfer) if transfer.awaited.is_some() => {
                self.store.host.count("awaited_room", 1);
                self.waiting.push_back(*transfer);
            }
            Command::Transfer(transfer) => self.enqueue(*transfer),
            Command::Cancel(ids) => {
                self.end_early(|transfer| ids.contains(&transfer.ticket.id()).then_some(Status::CANCELLED))
            }
            Command::Register { address, length, reply } => {
                let _ = reply.send(self.registrations.add(&mut *self.port, address.0, length));
            }
            Command::Unregister { buffers, reply } => {
                self.registrations.remove(&mut *self.port, &buffers);
                let _ = reply.send(());
            }
            Command::Stop(deadline) => self.stop = Some(deadline),
        }
    }

    fn enqueue(&mut self, transfer: Transfer) {
        let direction = transfer.direction;
        let active = Active {
            address: transfer.buffer.address,
            span: transfer.operation.length,
            transfer,
            issued: 0,
            outstanding: 0,
            started: false,
            failure: None,
            bounce: None,
        };
        let index = self.free_actives.pop().unwrap_or_else(|| {
            self.actives.push(None);
            self.actives.len() - 1
        });
        self.actives[index] = Some(active);
        self.queue(direction).push_back(index);
    }

    fn queue(&mut self, direction: Direction) -> &mut VecDeque<usize> {
        match direction {
            Direction::Load => &mut self.loads,
            Direction::Store => &mut self.stores,
        }
    }

    /// Ends transfers for which `verdict` has a status: at once, unless the kernel is at work in the host's memory.
    /// Then the port is asked to cancel, and the transfer ends with its last piece.
    fn end_early(&mut self, verdict: impl Fn(&Transfer) -> Option<Status>) {
        for transfer in std::mem::take(&mut self.waiting) {
            match verdict(&transfer) {
                Some(status) => transfer.fail(status, 0),
                None => self.waiting.push_back(transfer),
            }
        }
        for index in 0..self.actives.len() {
            let Some(active) = self.actives[index].as_mut().filter(|active| active.failure.is_none()) else { continue };
            let Some(status) = verdict(&active.transfer) else { continue };
            active.failure = Some((status, 0));
            let outstanding = active.outstanding;
            self.loads.retain(|&other| other != index);
            self.stores.retain(|&other| other != index);
            if outstanding == 0 {
                self.finish(index);
                continue;
            }
            for (slot, out) in self.pieces.iter().enumerate() {
                if out.piece.is_some_and(|piece| piece.active == index) {
                    self.port.cancel(token(slot, out.generation));
                }
            }
            self.leave_behind(index);
        }
    }

    /// Ends a transfer whose pieces are out, if they move memory of its own.
    fn leave_behind(&mut self, index: usize) {
        let Some(active) = self.actives[index].take_if(|active| active.bounce.is_some()) else { return };
        let Active { mut transfer, failure, bounce, outstanding, .. } = active;
        let reserved = transfer.reserved.take();
        self.remains.extend(bounce.map(|bounce| (index, Remains { outstanding, bounce, reserved })));
        let (status, errno) = failure.unwrap_or((Status::FAILED, 0));
        self.store.fail(transfer, status, errno);
    }

    /// A piece of a transfer that has ended already.
    fn complete_late(&mut self, index: usize) {
        self.store.host.count("late_completions", 1);
        let Some(remains) = self.remains.get_mut(&index) else { return };
        remains.outstanding -= 1;
        if remains.outstanding == 0 {
            self.remains.remove(&index);
            self.free_actives.push(index);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.expired_at) < EXPIRY_TICK {
            return;
        }
        self.expired_at = now;
        let stopped = self.stop.is_some_and(|deadline| now >= deadline);
        let time = monotonic_ns();
        self.end_early(|transfer| match transfer.operation.deadline_ns {
            _ if stopped => Some(Status::CANCELLED),
            deadline if deadline != 0 && time >= deadline => Some(Status::TIMED_OUT),
            _ => None,
        });
    }

    fn issue(&mut self) {
        while !self.free_pieces.is_empty() {
            let store_turn = self.loads_in_a_row >= LOADS_PER_STORE && !self.stores.is_empty();
            let direction = if self.loads.is_empty() || store_turn { Direction::Store } else { Direction::Load };
            let Some(&index) = self.queue(direction).front() else { return };
            self.loads_in_a_row = if direction == Direction::Load { self.loads_in_a_row + 1 } else { 0 };
            let Some(active) = self.actives[index].as_mut() else {
                self.queue(direction).pop_front();
                continue;
            };
            if !active.started {
                // What cannot even begin fails alone (D5).
                if catch_unwind(AssertUnwindSafe(|| start(active, &self.store, self.direct))).is_err() {
                    self.store.host.count("panics", 1);
                    active.failure = Some((Status::FAILED, 0));
                }
            }
            if active.failure.is_some() || active.issued >= active.span {
                self.queue(direction).pop_front();
                if self.actives[index].as_ref().is_some_and(|active| active.outstanding == 0) {
                    self.finish(index);
                }
                continue;
            }
            let piece = next_piece(index, active, self.direct);
            if active.issued >= active.span {
                self.queue(direction).pop_front();
            }
            self.push(piece);
        }
    }

    fn push(&mut self, piece: Piece) {
        let Some(slot) = self.free_pieces.pop() else { return };
        let Some(active) = self.actives[piece.active].as_mut() else { return };
        active.outstanding += 1;
        self.pieces[slot].piece = Some(piece);
        self.send(slot, piece);
    }

    fn send(&mut self, slot: usize, piece: Piece) {
        let Some(active) = self.actives[piece.active].as_ref() else { return };
        let direction = active.transfer.direction;
        let request = Request {
            token: token(slot, self.pieces[slot].generation),
            direction,
            file: self.store.data.as_raw_fd(),
            address: piece.address,
            length: piece.length,
            offset: piece.offset,
            buffer: piece.buffer,
        };
        // SAFETY: the memory is the host's buffer, granted until the completion, or the transfer's own bounce buffer;
        // both stay until no piece is outstanding.
        let pushed = catch_unwind(AssertUnwindSafe(|| unsafe { self.port.push(request) }));
        if pushed.is_err() {
            // The port has not taken it. It fails its transfer, and no other (D5).
            self.store.host.count("panics", 1);
            self.refused.push(Done { token: request.token, result: -libc::EIO });
        }
    }

    /// The slot and piece of a token, if the token is the current one of its slot.
    fn slot_of(&self, token: u64) -> Option<(usize, Piece)> {
        let (slot, generation) = (token as u32 as usize, (token >> 32) as u32);
        let found = self.pieces.get(slot).filter(|slot| slot.generation == generation)?;
        found.piece.map(|piece| (slot, piece))
    }

    fn free_piece(&mut self, slot: usize) {
        self.pieces[slot].piece = None;
        self.renew(slot);
        self.free_pieces.push(slot);
    }

    /// From now on, tokens of the slot that were given before name nothing.
    fn renew(&mut self, slot: usize) {
        self.pieces[slot].generation = self.pieces[slot].generation.wrapping_add(1) & 0x7fff_ffff;
    }

    fn complete_piece(&mut self, done: Done) {
        let Some((slot, mut piece)) = self.slot_of(done.token) else {
            self.store.host.count("stray_completions", 1);
            return;
        };
        let Some(active) = self.actives[piece.active].as_mut() else {
            self.free_piece(slot);
            return self.complete_late(piece.active);
        };
        match judge(active, &mut piece, done.result, self.direct) {
            Verdict::Again if active.failure.is_none() => {
                self.store.host.count("short_transfers", 1);
                return self.send_again(slot, piece);
            }
            Verdict::Undirect
                if active.failure.is_none() && piece.direct && leave_direct(&mut self.direct, &self.store) =>
            {
                piece.direct = false;
                return self.send_again(slot, piece);
            }
            Verdict::Undirect => active.failure = active.failure.or(Some((Status::IO, libc::EINVAL))),
            Verdict::Again | Verdict::Done => {}
            Verdict::Failed(status, errno) => active.failure = active.failure.or(Some((status, errno))),
        }
        active.outstanding -= 1;
        let ended = active.outstanding == 0 && (active.issued >= active.span || active.failure.is_some());
        self.free_piece(slot);
        if ended {
            // A failed transfer may still wait for its turn, and its place will be taken anew.
            self.loads.retain(|&index| index != piece.active);
            self.stores.retain(|&index| index != piece.active);
            self.finish(piece.active);
        }
    }

    fn send_again(&mut self, slot: usize, piece: Piece) {
        self.pieces[slot].piece = Some(piece);
        // A doubled completion of the part that is done must not pass for the rest's.
        self.renew(slot);
        self.send(slot, piece);
    }

    fn finish(&mut self, index: usize) {
        let Some(active) = self.actives[index].take() else { return };
        self.free_actives.push(index);
        let Active { transfer, failure, bounce, .. } = active;
        if let Some((status, errno)) = failure {
            return self.store.fail(transfer, status, errno);
        }
        match transfer.direction {
            Direction::Load => self.store.verifier.verify(Loaded { store: self.store.clone(), transfer, bounce }),
            Direction::Store => self.store.keeper.put(transfer),
        }
    }
}

/// What a piece is known by: a slot, and how often it was taken.
fn token(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | slot as u64
}
