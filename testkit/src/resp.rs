//! The protocol of Valkey and Redis (RESP2), as much as set-up and a look at what is stored need.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A server that does not answer for so long is taken for one that does not answer.
const ANSWER_SECONDS: u64 = 5;
/// Longest value that is read, in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// An answer of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status, such as `OK`.
    Status(String),
    /// An error, its word in front.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes, or none.
    Bytes(Option<Vec<u8>>),
    /// Several answers.
    List(Vec<Reply>),
}

impl Reply {
    /// The number. Panics at another answer.
    pub fn integer(&self) -> i64 {
        if let Self::Integer(number) = self { *number } else { panic!("not a number: {self:?}") }
    }

    /// The bytes, if there are some. Panics at another answer.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { bytes.as_deref() } else { panic!("not bytes: {self:?}") }
    }

    /// A status, an error or bytes as text; empty for all else.
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Error(text) => text.clone(),
            Self::Bytes(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// The answers. Panics at another one.
    pub fn list(&self) -> &[Self] {
        if let Self::List(list) = self { list } else { panic!("not a list: {self:?}") }
    }

    /// Whether it is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Status(text) if text == "OK")
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Bytes(None) => write!(f, "nothing"),
            Self::Bytes(Some(bytes)) => write!(f, "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])),
            Self::List(list) => f.debug_list().entries(list).finish(),
        }
    }
}

/// One connection.
pub struct Resp {
    stream: BufReader<Box<dyn Stream>>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Resp {
    /// Connects to `host:port` or `unix:/path`.
    pub fn connect(address: &str) -> io::Result<Self> {
        let time = Some(Duration::from_secs(ANSWER_SECONDS));
        let stream: Box<dyn Stream> = if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(time)?;
            Box::new(stream)
        } else {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(time)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        };
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its answer; an error of the server is an answer too.
    pub fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(word);
            request.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("no answer of RESP2: {line:?}"));
        let (kind, rest) = line.strip_suffix("\r\n").and_then(|line| line.split_at_checked(1)).ok_or_else(strange)?;
        let number = || rest.parse::<i64>().map_err(|_| strange());
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Bytes(None),
                Ok(length) if length > VALUE_BYTES_MAX => return Err(strange()),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bytes(Some(bytes))
                }
            },
            "*" => Reply::List((0..number()?).map(|_| self.reply()).collect::<io::Result<_>>()?),
            _ => return Err(strange()),
        })
    }
}
