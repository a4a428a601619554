//! A real umbpd with real plugins, on folders of its own.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use umbp_plugin_api::built::built;

const START_SECONDS: u64 = 60;
/// The socket is tried after each line that the daemon prints, and at least this often.
const TRY_MS: u64 = 50;

/// Ends with the test.
pub(crate) struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
    _log: std::sync::Mutex<Receiver<String>>,
}

impl Daemon {
    /// Serves on a DRAM tier, and an NVMe tier where a capacity is given.
    pub(crate) fn start(dram: &str, nvme: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = config_text(folder.path(), dram, nvme);
        Self::serve(folder, &text)
    }

    /// Serves on a DRAM tier and a remote one: more of that tier's TOML, its options, and more of the deployment's.
    pub(crate) fn start_remote(dram: &str, tier: &str, options: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plugin = of_workspace("backends/remote/plugin");
        let text = config_text(folder.path(), dram, None);
        let text = format!(
            "{text}[[tier]]\nname = \"remote\"\nbackend = {plugin:?}\ncapacity = \"8GiB\"\n{tier}[tier.options]\n\
             {options}\n{more}"
        );
        Self::serve(folder, &text)
    }

    fn serve(folder: tempfile::TempDir, text: &str) -> Self {
        let config = folder.path().join("umbpd.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(umbpd());
        let mut child = command.arg("--config").arg(&config).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let daemon = Self { child, folder, _log: log.into() };
        daemon.await_socket()
    }

    fn await_socket(mut self) -> Self {
        let deadline = Instant::now() + Duration::from_secs(START_SECONDS);
        let mut printed = Vec::new();
        while UnixStream::connect(self.socket()).is_err() {
            printed.extend(self._log.get_mut().unwrap().recv_timeout(Duration::from_millis(TRY_MS)));
            let ended = self.child.try_wait().unwrap();
            let is_late = Instant::now() > deadline;
            assert!(ended.is_none() && !is_late, "umbpd does not serve ({ended:?}):\n{}", printed.join("\n"));
        }
        self
    }

    /// Its config file.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("umbpd.toml")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("umbpd.sock")
    }

    /// The NVMe tier's file of blocks.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("nvme/data")
    }

    /// Runs umbp against it.
    pub(crate) fn umbp(&self, arguments: &[&str]) -> Output {
        umbp(&self.socket(), arguments)
    }

    /// Runs `umbp replay --json` and reads its report.
    pub(crate) fn replay(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.umbp(&[&["replay", "--json"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{stderr}", output.status);
        assert_eq!(stderr, "", "a program reads this: nothing but the report");
        let report = serde_json::from_slice(&output.stdout).expect("one JSON object on standard output");
        eprintln!("{report}");
        report
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs umbp.
pub(crate) fn umbp(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbp"));
    command.arg("--socket").arg(socket).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn config_text(folder: &Path, dram: &str, nvme: Option<&str>) -> String {
    let plugins = plugins(nvme.is_some());
    let mut text = format!(
        "[daemon]\nsocket = \"umbpd.sock\"\nadmin = \"off\"\nplugin_dirs = [{plugins:?}]\n\
         [[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"{dram}\"\n"
    );
    if let Some(capacity) = nvme {
        let path = folder.join("nvme");
        text += &format!(
            "[[tier]]\nname = \"nvme\"\nbackend = \"nvme\"\ncapacity = \"{capacity}\"\ndeadline = \"60s\"\n\
             [tier.options]\npaths = [{path:?}]\n"
        );
    }
    text
}

/// umbpd: `cargo xtask test` names the folder of the programs; a test that is run by itself builds it.
fn umbpd() -> PathBuf {
    std::env::var_os("UMBP_TEST_BIN")
        .map_or_else(|| of_workspace("umbpd"), |folder| PathBuf::from(folder).join("umbpd"))
}

/// The folder of the tiers' shared objects.
fn plugins(with_nvme: bool) -> PathBuf {
    let mut path = of_workspace("backends/dram/plugin");
    if with_nvme {
        path = of_workspace("backends/nvme/plugin");
    }
    path.parent().unwrap().to_path_buf()
}

fn of_workspace(package: &str) -> PathBuf {
    built(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package), &[])
}
