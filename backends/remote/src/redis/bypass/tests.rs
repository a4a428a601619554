//! What comes out is what came in, with a number for each large text, however the bytes are cut.

use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

/// Gives its bytes in pieces of these lengths, in turn.
struct Cut {
    bytes: Vec<u8>,
    at: usize,
    lengths: Vec<usize>,
    turn: usize,
}

impl AsyncRead for Cut {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let length = self.lengths[self.turn % self.lengths.len()];
        self.turn += 1;
        let end = (self.at + length.min(out.remaining())).min(self.bytes.len());
        out.put_slice(&self.bytes[self.at..end]);
        self.at = end;
        Poll::Ready(Ok(()))
    }
}

/// Reads all of it, so many bytes at a time.
fn read(bytes: &[u8], lengths: &[usize], room: usize, shelf: &Arc<Shelf>) -> Result<Vec<u8>> {
    let stream = Cut { bytes: bytes.to_vec(), at: 0, lengths: lengths.to_vec(), turn: 0 };
    let mut stream = Bypass::new(stream, shelf.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut all, mut some) = (Vec::new(), vec![0; room]);
        loop {
            match stream.read(&mut some).await? {
                0 => return Ok(all),
                count => all.extend_from_slice(&some[..count]),
            }
        }
    })
}

/// The answers in what was read, each as the server sent it.
fn answers(read: &[u8], waiting: &Waiting) -> Vec<Value> {
    let mut parser = redis::Parser::new();
    let mut rest = read;
    // The parser reads ahead: it is done when it finds nothing more.
    std::iter::from_fn(|| parser.parse_value(&mut rest).ok()).map(|value| waiting.whole(value)).collect()
}

fn text(length: usize) -> (Vec<u8>, Value) {
    let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
    let sent = [format!("${length}\r\n").as_bytes(), &bytes[..], END].concat();
    (sent, Value::BulkString(bytes))
}

fn answer() -> impl Strategy<Value = (Vec<u8>, Value)> {
    let least = LEAST_BYTES as usize;
    let length = prop_oneof![0..100usize, least - 3..least + 3, least..4 * least];
    prop_oneof![
        length.prop_map(text),
        Just((b"$-1\r\n".to_vec(), Value::Nil)),
        Just((b"+OK\r\n".to_vec(), Value::Okay)),
        any::<u32>().prop_map(|number| (format!(":{number}\r\n").into_bytes(), Value::Int(number.into()))),
        (0..3usize, 0..2 * least).prop_map(|(count, length)| {
            let (sent, value) = text(length);
            let list = Value::Array([Value::Okay].into_iter().chain(vec![value; count]).collect());
            ([format!("*{}\r\n+OK\r\n", count + 1).into_bytes(), sent.repeat(count)].concat(), list)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_answer_is_whole_however_it_is_cut(
        sent in proptest::collection::vec(answer(), 1..8),
        lengths in proptest::collection::vec(prop_oneof![1..16usize, 1..100_000usize], 1..6),
        room in prop_oneof![1..16usize, 1..100_000usize],
    ) {
        let shelf = Arc::<Shelf>::default();
        let waiting: Vec<Waiting> = sent.iter().map(|_| shelf.wait()).collect();
        let bytes: Vec<u8> = sent.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let read = read(&bytes, &lengths, room, &shelf).unwrap();
        let large = |value: &Value| matches!(value, Value::BulkString(bytes) if bytes.len() as u64 >= LEAST_BYTES);
        let past = sent.iter().filter(|(_, value)| large(value)).count();
        prop_assert_eq!(shelf.pieces().pieces.len(), past);
        let values: Vec<Value> = sent.into_iter().map(|(_, value)| value).collect();
        prop_assert_eq!(answers(&read, &waiting[0]), values);
        prop_assert_eq!(shelf.pieces().pieces.len(), 0);
    }

    #[test]
    fn a_stream_that_ends_early_or_makes_no_sense_ends_and_invents_nothing(
        bytes in proptest::collection::vec(prop_oneof![Just(b'$'), Just(b'*'), Just(b'9'), Just(b'\r'), Just(b'\n'),
            any::<u8>()], 0..200),
        lengths in proptest::collection::vec(1..40usize, 1..4),
    ) {
        let shelf = Arc::<Shelf>::default();
        let _waiting = shelf.wait();
        if let Ok(read) = read(&bytes, &lengths, 64, &shelf) {
            // Nothing of what came is large, so all of it passed, or the beginning of it.
            prop_assert!(bytes.starts_with(&read), "{:?}", read);
        }
    }
}

#[test]
fn a_text_that_is_cut_off_ends_the_stream_before_it() {
    let shelf = Arc::<Shelf>::default();
    let _waiting = shelf.wait();
    let (sent, _) = text(100_000);
    assert_eq!(read(&sent[..99_000], &[4096], 8192, &shelf).unwrap(), b"");
    assert!(shelf.pieces().pieces.is_empty());
}

#[test]
fn a_text_that_does_not_end_where_it_says_is_an_error() {
    let shelf = Arc::<Shelf>::default();
    let _waiting = shelf.wait();
    let (mut sent, _) = text(100_000);
    sent.extend_from_slice(b"+OK\r\n");
    sent.remove(50);
    let error = read(&sent, &[4096], 8192, &shelf).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn what_is_longer_than_any_object_is_thrown_away_and_the_next_answer_is_whole() {
    let shelf = Arc::<Shelf>::default();
    let waiting = shelf.wait();
    let length = MOST_BYTES as usize + 1;
    let sent = [format!("${length}\r\n").as_bytes(), &vec![7; length], b"\r\n+OK\r\n"].concat();
    let read = read(&sent, &[1 << 20], 8192, &shelf).unwrap();
    assert_eq!(answers(&read, &waiting), [Value::BulkString(vec![0]), Value::Okay]);
}

#[test]
fn pieces_of_callers_that_have_gone_do_not_pile_up() {
    let shelf = Arc::<Shelf>::default();
    shelf.put(vec![1]);
    assert_eq!(shelf.pieces().pieces.len(), 0, "nobody waits");
    let one = shelf.wait();
    for number in 0..10 {
        shelf.put(vec![number]);
    }
    assert_eq!(shelf.pieces().pieces.len(), 1 + SPARE_MAX);
    let number = shelf.put(vec![42]);
    assert_eq!(one.whole(Value::Int(number)), Value::BulkString(vec![42]));
    assert_eq!(one.whole(Value::Int(number)), Value::Int(number), "it is taken once");
    drop(one);
    assert_eq!(shelf.pieces().pieces.len(), 0);
}
