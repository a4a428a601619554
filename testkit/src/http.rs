//! Enough of HTTP/1.1 for a server's own pages: one request on one connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server that does not answer for so long is taken for one that does not answer.
const ANSWER_SECONDS: u64 = 10;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The head, as it came.
    pub head: String,
    /// The body, whole.
    pub body: Vec<u8>,
}

/// Sends one request to `host:port`, with more lines of its head, and reads the answer to its end.
pub fn ask(address: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(ANSWER_SECONDS)))?;
    let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP/1.1"))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let rest = &bytes[at + 4..];
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { chunks(rest)? } else { rest.to_vec() };
    Some(Answer { status, head, body })
}

fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let at = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..at]).ok()?.split(';').next()?, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend(rest.get(at + 2..at + 2 + length)?);
        rest = rest.get(at + 4 + length..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_with_a_length_and_in_chunks_are_read_and_torn_ones_are_none() {
        let check = |text: &str, expected: Option<&str>| {
            let body = parse(text.as_bytes()).map(|answer| String::from_utf8(answer.body).unwrap());
            assert_eq!(body.as_deref(), expected, "{text}");
        };
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some("ok"));
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n", Some("abc"));
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", None);
        check("HTTP/1.1 200 OK\r\n", None);
        check("+OK\r\n\r\n", None);
    }
}
