//! An S3 server: SeaweedFS, whole, in one process.
//!
//! It checks signatures, conditions and rights. Behind the S3 gateway the same objects are files of SeaweedFS's own
//! file server, which needs no signature: there a test makes its buckets, looks at what is stored, and plants what no
//! client would write.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::http::{self, Answer};
use crate::ports::Port;
use crate::process::Process;
use crate::servers::Servers;
use crate::wait::until;

/// The bucket of the tests.
pub const BUCKET: &str = "blocks";
/// A bucket that anybody may write, for requests without a signature.
pub const OPEN_BUCKET: &str = "open";
/// The region that requests are signed for; SeaweedFS takes any.
pub const REGION: &str = "us-east-1";

/// An access key and its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The access key.
    pub access_key: &'static str,
    /// Its secret.
    pub secret: &'static str,
}

/// May read, write and list [`BUCKET`].
pub const WRITER: Credentials = Credentials { access_key: "writer-key", secret: "writer-secret" };
/// May read and list [`BUCKET`], and is denied to write.
pub const READER: Credentials = Credentials { access_key: "reader-key", secret: "reader-secret" };

/// The parts of SeaweedFS that listen, as the command line names them; each has a port for clients and one for gRPC.
const PARTS: [&str; 4] = ["master", "volume", "filer", "s3"];

/// The server; killed when a test drops it.
#[derive(Debug)]
pub struct S3 {
    process: Process,
    folder: TempDir,
    program: Vec<String>,
    /// Client and gRPC port of each of [`PARTS`].
    ports: Vec<[Port; 2]>,
}

impl S3 {
    /// Starts it with both buckets, and waits until it stores and answers.
    pub fn start(servers: &Servers) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("s3.json"), identities()).expect("the identities are written");
        std::fs::create_dir(folder.path().join("data")).expect("a folder for its data");
        let ports: Vec<[Port; 2]> = PARTS.iter().map(|_| [Port::reserve(), Port::reserve()]).collect();
        let program = command_line(&servers.weed, &ports);
        let process = launch(&program, &folder);
        let mut server = Self { process, folder, program, ports };
        server.await_answer();
        for bucket in [BUCKET, OPEN_BUCKET] {
            // A folder there is a bucket.
            let made = server.filer("POST", &format!("/buckets/{bucket}/"), &[]);
            assert!(made.status < 300, "make bucket {bucket}: {}", made.head);
        }
        server
    }

    /// `host:port` of the S3 gateway.
    pub fn address(&self) -> String {
        self.ports[3][0].address()
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The object of this key in [`BUCKET`], read behind the gateway's back.
    pub fn peek(&self, key: &str) -> Option<Vec<u8>> {
        let answer = self.filer("GET", &path(key), &[]);
        match answer.status {
            200 => Some(answer.body),
            404 => None,
            _ => panic!("read {key}: {}", answer.head),
        }
    }

    /// Puts bytes under this key of [`BUCKET`] behind the gateway's back.
    pub fn plant(&self, key: &str, bytes: &[u8]) {
        let answer = self.filer("PUT", &path(key), bytes);
        assert!(answer.status < 300, "write {key}: {}", answer.head);
    }

    /// Removes what is under this key of [`BUCKET`] behind the gateway's back.
    pub fn remove(&self, key: &str) {
        let answer = self.filer("DELETE", &path(key), &[]);
        assert!(answer.status < 300, "remove {key}: {}", answer.head);
    }

    /// The keys in [`BUCKET`], sorted.
    pub fn keys(&self) -> Vec<String> {
        let (mut keys, mut folders) = (Vec::new(), vec![String::new()]);
        while let Some(folder) = folders.pop() {
            for (name, is_folder) in self.listed(&folder) {
                if is_folder { folders.push(format!("{name}/")) } else { keys.push(name) }
            }
        }
        keys.sort();
        keys
    }

    /// What lies in a folder of the bucket, by its whole name, and whether it is a folder.
    fn listed(&self, folder: &str) -> Vec<(String, bool)> {
        const LIMIT: usize = 100_000;
        let path = format!("{}?limit={LIMIT}", path(folder));
        let answer = http::ask(&self.ports[2][0].address(), "GET", &path, &["Accept: application/json"], &[]);
        let answer = answer.unwrap_or_else(|error| panic!("list {path}: {error}\n{}", self.process.said()));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        // Each entry begins with its path, and no name of ours has a quote.
        let entries = text.split("\"FullPath\":").skip(1);
        let entry = |entry: &str| {
            let name = entry.split('"').nth(1)?.strip_prefix(&format!("/buckets/{BUCKET}/"))?.to_owned();
            let mode: u32 = entry.split("\"Mode\":").nth(1)?.split(',').next()?.trim().parse().ok()?;
            // The top bit of Go's file mode.
            Some((name, mode >> 31 == 1))
        };
        entries.map(|text| entry(text).unwrap_or_else(|| panic!("no entry of a listing: {text}"))).collect()
    }

    /// Stops it where it is: it accepts connections and answers nothing.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.process.cont();
    }

    /// Kills it; connections are reset and new ones refused.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it if it runs, starts it again on the same ports with what it had, and waits until it answers.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = launch(&self.program, &self.folder);
        self.await_answer();
    }

    fn filer(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = http::ask(&self.ports[2][0].address(), method, path, &[], body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.process.said()))
    }

    /// A gateway that is well and a file that can be written (the volumes have come).
    fn await_answer(&mut self) {
        let (filer, gateway) = (self.ports[2][0].address(), self.address());
        until("SeaweedFS stores and answers", || {
            let ended = self.process.ended();
            assert!(ended.is_none(), "{:?} ended ({ended:?}):\n{}", self.program, self.process.said());
            let is_well = |method: &str, address: &str, path: &str, body: &[u8]| {
                http::ask(address, method, path, &[], body).is_ok_and(|answer| answer.status < 300)
            };
            let is_up = is_well("GET", &gateway, "/healthz", &[]) && is_well("PUT", &filer, "/probe", b"probe");
            is_up.then_some(())
        });
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.process.kill();
        // Whatever its folders, it listens on sockets in one fixed place, and a killed one leaves them there.
        for (part, ports) in PARTS.iter().zip(&self.ports) {
            for (kind, port) in ["", "-grpc"].iter().zip(ports) {
                let _ = std::fs::remove_file(format!("/tmp/seaweedfs-{part}{kind}-{}.sock", port.number()));
            }
        }
    }
}

/// The path of a key behind the gateway's back.
fn path(key: &str) -> String {
    format!("/buckets/{BUCKET}/{key}")
}

fn identities() -> String {
    let identity = |name: &str, who: &Credentials, actions: &str| {
        let Credentials { access_key, secret } = who;
        format!(
            r#"{{"name":"{name}","credentials":[{{"accessKey":"{access_key}","secretKey":"{secret}"}}],
                "actions":[{actions}]}}"#
        )
    };
    let actions = |words: &[&str]| words.iter().map(|w| format!("\"{w}:{BUCKET}\"")).collect::<Vec<_>>().join(",");
    let writer = identity("writer", &WRITER, &actions(&["Read", "Write", "List"]));
    let reader = identity("reader", &READER, &actions(&["Read", "List"]));
    let anybody = format!(r#"{{"name":"anonymous","actions":["Read:{OPEN_BUCKET}","Write:{OPEN_BUCKET}"]}}"#);
    format!(r#"{{"identities":[{writer},{reader},{anybody}]}}"#)
}

fn command_line(weed: &Path, ports: &[[Port; 2]]) -> Vec<String> {
    let mut words = vec![weed.display().to_string()];
    let fixed = "-logtostderr=true server -ip=127.0.0.1 -ip.bind=127.0.0.1 -dir=data -filer -s3 -s3.config=s3.json \
                 -s3.iam=false -s3.port.iceberg=0 -s3.port.lance=0 -master.telemetry=false -master.electionTimeout=1s \
                 -master.volumeSizeLimitMB=256 -volume.max=16 -volume.minFreeSpace=1";
    words.extend(fixed.split(' ').map(str::to_owned));
    for (part, [client, grpc]) in PARTS.iter().zip(ports) {
        words.push(format!("-{part}.port={}", client.number()));
        words.push(format!("-{part}.port.grpc={}", grpc.number()));
    }
    words
}

fn launch(program: &[String], folder: &TempDir) -> Process {
    let mut command = Command::new(&program[0]);
    // Its own settings come from the folder it runs in, and from the home folder of whoever runs it.
    command.args(&program[1..]).current_dir(folder.path()).env("HOME", folder.path());
    Process::start(command, &folder.path().join("log"))
}
