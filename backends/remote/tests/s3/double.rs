//! A double of an HTTP server: it answers each request as the test says. For what no real server can be made to say.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use umbp_backend_remote::options;

use crate::weed::{BUCKET, USER, credentials_file};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Lines of the head below the first, in lower case.
    pub(crate) head: String,
}

/// What goes back: the bytes of a whole HTTP answer, or of less than one. The connection ends after it.
pub(crate) type Answer = Vec<u8>;

/// Listens until its process ends, which a test's does.
pub(crate) struct Double {
    pub(crate) port: u16,
    pub(crate) heard: Arc<Mutex<Vec<Request>>>,
}

impl Double {
    pub(crate) fn answering(answer: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A client that hangs up is no trouble.
                let Some(request) = read(&stream) else { continue };
                log.lock().unwrap().push(request.clone());
                let _ = stream.write_all(&answer(&request));
            }
        };
        std::thread::Builder::new().name("double".to_owned()).spawn(serve).unwrap();
        Self { port, heard }
    }

    pub(crate) fn options(&self, folder: &Path) -> options::S3 {
        options::S3 {
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            region: "us-east-1".to_owned(),
            bucket: BUCKET.to_owned(),
            credentials: options::Credentials::File,
            credentials_file: Some(credentials_file(folder, USER.0, USER.1)),
            path_style: true,
            allow_http: true,
            connections: 2,
        }
    }

    /// Methods of the requests so far.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.heard.lock().unwrap().iter().map(|request| request.method.clone()).collect()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? <= 2 {
            break;
        }
        head += &line.to_lowercase();
    }
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or(0, |n| n.trim().parse().unwrap());
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(Request { method, target, head })
}

/// An answer with a body, whole.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

/// An error as S3 words it.
pub(crate) fn error(status: &str, code: &str) -> Answer {
    answer(status, "", format!("<Error><Code>{code}</Code><Message>of the double</Message></Error>").as_bytes())
}
