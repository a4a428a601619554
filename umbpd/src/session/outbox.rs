//! What waits to be sent to one client, in order and bounded.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use umbp_protocol::encode_event;
use umbp_protocol::message::Event;

/// Most bytes that wait before news of residency and tier states is dropped; the client then gets one Resync.
pub const NEWS_BYTES_MAX: usize = 1 << 20;
/// Most messages that wait before such news is dropped.
pub const NEWS_MESSAGES_MAX: usize = 1024;
/// Most bytes that wait in all; a client that lets this many come together does not read, and its session ends.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Most messages that wait in all, with the same end.
pub const WAITING_MESSAGES_MAX: usize = 128 * 1024;

/// A frame and the fds beside it.
pub struct Outgoing {
    /// The frame.
    pub bytes: Vec<u8>,
    /// Sent with its first byte.
    pub fds: Vec<Arc<OwnedFd>>,
}

/// Frames on their way to one client.
#[derive(Default)]
pub struct Outbox {
    queue: VecDeque<Outgoing>,
    waiting_bytes: usize,
    /// Bytes of the first frame that are sent already.
    sent: usize,
    /// A Resync waits: further news is dropped until it is sent.
    resync: bool,
    /// A request is being answered: promotions of its lease come after its reply.
    answering: bool,
    held_back: Vec<Outgoing>,
    /// News dropped.
    pub dropped: u64,
}

impl Outbox {
    /// Queues an event. `fds` go beside it.
    pub fn push_event(&mut self, boot_id: u64, event: &Event, fds: Vec<Arc<OwnedFd>>) {
        let is_news = matches!(event, Event::Removed { .. } | Event::TierState { .. } | Event::Resync);
        if is_news && self.resync {
            self.dropped += 1;
            return;
        }
        if is_news && (self.waiting_bytes > NEWS_BYTES_MAX || self.queue.len() > NEWS_MESSAGES_MAX) {
            self.dropped += 1;
            self.resync = true;
            return self.push(Outgoing { bytes: encode_event(boot_id, &Event::Resync), fds: Vec::new() });
        }
        let outgoing = Outgoing { bytes: encode_event(boot_id, event), fds };
        if self.answering && matches!(event, Event::Promoted { .. }) {
            self.waiting_bytes += outgoing.bytes.len();
            return self.held_back.push(outgoing);
        }
        self.push(outgoing);
    }

    /// From now on promotions wait for the next reply.
    pub fn begin_answer(&mut self) {
        self.answering = true;
    }

    /// Queues a reply, and what had to come after it.
    pub fn push_reply(&mut self, reply: Outgoing) {
        self.push(reply);
        self.end_answer();
    }

    /// Queues the reply to a request that later ones may have overtaken. What another reply holds back stays so.
    pub fn push_late_reply(&mut self, reply: Outgoing) {
        self.push(reply);
    }

    /// The request needs no reply now.
    pub fn end_answer(&mut self) {
        self.answering = false;
        for outgoing in std::mem::take(&mut self.held_back) {
            self.waiting_bytes -= outgoing.bytes.len();
            self.push(outgoing);
        }
    }

    fn push(&mut self, outgoing: Outgoing) {
        self.waiting_bytes += outgoing.bytes.len();
        self.queue.push_back(outgoing);
    }

    /// The client does not read.
    pub fn is_over(&self) -> bool {
        self.waiting_bytes > WAITING_BYTES_MAX || self.queue.len() + self.held_back.len() > WAITING_MESSAGES_MAX
    }

    /// Nothing waits to be sent now.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// What to send next: bytes, and fds if none of the bytes was sent yet.
    pub fn front(&self) -> Option<(&[u8], &[Arc<OwnedFd>])> {
        let first = self.queue.front()?;
        let fds: &[Arc<OwnedFd>] = if self.sent == 0 { &first.fds } else { &[] };
        Some((&first.bytes[self.sent..], fds))
    }

    /// This many bytes of the front went out.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        self.waiting_bytes -= bytes;
        if self.queue.front().is_some_and(|first| self.sent >= first.bytes.len()) {
            self.queue.pop_front();
            self.sent = 0;
            if self.queue.is_empty() {
                self.resync = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbp_protocol::message::{Acquired, LeaseId, MissReason, RemovedReason};
    use umbp_protocol::{Decoder, Kind};

    fn news() -> Event {
        Event::Removed { tier: 0, reason: RemovedReason::Evicted, keys: [].into() }
    }

    fn drain(outbox: &mut Outbox) -> Vec<(Kind, u16)> {
        let mut decoder = Decoder::new();
        while let Some((bytes, _)) = outbox.front() {
            let count = bytes.len().min(7);
            decoder.feed(&bytes[..count]);
            outbox.sent(count);
        }
        std::iter::from_fn(|| decoder.next_frame().expect("frames")).map(|frame| (frame.kind, frame.opcode)).collect()
    }

    #[test]
    fn overflowing_news_becomes_one_resync_and_flows_again_once_read() {
        let mut outbox = Outbox::default();
        for _ in 0..3 * NEWS_MESSAGES_MAX {
            outbox.push_event(1, &news(), Vec::new());
        }
        assert_eq!(outbox.dropped as usize, 2 * NEWS_MESSAGES_MAX - 1);
        let sent = drain(&mut outbox);
        assert_eq!(sent.len(), NEWS_MESSAGES_MAX + 2);
        assert_eq!(sent.iter().filter(|(_, opcode)| *opcode == umbp_protocol::frame::opcode::RESYNC).count(), 1);
        outbox.push_event(1, &news(), Vec::new());
        assert_eq!((drain(&mut outbox).len(), outbox.waiting_bytes()), (1, 0));
    }

    #[test]
    fn a_promotion_never_overtakes_the_reply_that_names_its_lease() {
        let mut outbox = Outbox::default();
        outbox.begin_answer();
        let item = Acquired::Miss(MissReason::Absent);
        outbox.push_event(1, &Event::Promoted { lease: LeaseId(1), index: 0, item }, Vec::new());
        outbox.push_event(1, &Event::SegmentsAdded { segments: Vec::new() }, Vec::new());
        let reply = umbp_protocol::encode_reply(5, 1, &umbp_protocol::message::Reply::SegmentUnmapped);
        outbox.push_reply(Outgoing { bytes: reply, fds: Vec::new() });
        let kinds: Vec<Kind> = drain(&mut outbox).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [Kind::Event, Kind::Reply, Kind::Event]);
        assert_eq!(outbox.waiting_bytes(), 0);
    }

    #[test]
    fn a_late_reply_lets_nothing_pass_that_another_one_holds_back() {
        let mut outbox = Outbox::default();
        let item = Acquired::Miss(MissReason::Absent);
        let promoted = Event::Promoted { lease: LeaseId(1), index: 0, item };
        let reply = || {
            let bytes = umbp_protocol::encode_reply(5, 1, &umbp_protocol::message::Reply::SegmentUnmapped);
            Outgoing { bytes, fds: Vec::new() }
        };
        outbox.begin_answer();
        outbox.push_event(1, &promoted, Vec::new());
        outbox.push_late_reply(reply());
        let kinds = |outbox: &mut Outbox| drain(outbox).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(kinds(&mut outbox), [Kind::Reply]);
        outbox.push_reply(reply());
        assert_eq!(kinds(&mut outbox), [Kind::Reply, Kind::Event]);
        // A request whose own reply comes later holds nothing back any longer.
        outbox.begin_answer();
        outbox.push_event(1, &promoted, Vec::new());
        outbox.end_answer();
        assert_eq!(kinds(&mut outbox), [Kind::Event]);
        assert_eq!(outbox.waiting_bytes(), 0);
    }
}
