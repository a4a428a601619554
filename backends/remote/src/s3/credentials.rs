//! Credentials: from a file, from the environment, or from the instance's metadata service. No text that leaves this
//! engine holds one.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, RetryConfig, StaticCredentialProvider};

use super::http::{Broken, Dial, Pool, Proxy, Tls};
use super::refusal::Refusal;
use super::{SetupError, Surroundings, cause};
use crate::options;

/// Longest credentials file, in bytes.
const FILE_MAX_BYTES: u64 = 64 << 10;
/// How old what was read of the file may be: who rotates keys gives the old ones an hour and more.
const REREAD: Duration = Duration::from_secs(60);
/// The profile that is read.
const PROFILE: &str = "[default]";
/// Where the metadata service answers on an instance.
const METADATA: &str = "http://169.254.169.254";

/// There are no credentials to sign with. The text holds none either.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoCredentials(String);

/// Where credentials come from, and the last ones, which no text may hold.
#[derive(Debug)]
pub(super) struct Keys {
    source: AwsCredentialProvider,
    last: Mutex<Option<Arc<AwsCredential>>>,
}

impl Keys {
    pub(super) fn open(
        options: &options::S3,
        timeout: Duration,
        connect_timeout: Duration,
        around: &Surroundings,
    ) -> Result<Arc<Self>, SetupError> {
        let source: AwsCredentialProvider = match options.credentials {
            options::Credentials::File => {
                let path = options.credentials_file.as_deref().ok_or(SetupError::NoFile)?;
                Arc::new(FileKeys::open(path, REREAD)?)
            }
            options::Credentials::Environment => Arc::new(StaticCredentialProvider::new(from_environment(around)?)),
            options::Credentials::Instance => instance(timeout, connect_timeout, around)?,
        };
        Ok(Arc::new(Self { source, last: Mutex::new(None) }))
    }

    /// The text without any secret that was signed with last.
    pub(super) fn redact(&self, text: String) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(last) = last else { return text };
        let secrets = [Some(last.secret_key.as_str()), last.token.as_deref()];
        let secrets = secrets.into_iter().flatten().filter(|secret| !secret.is_empty());
        secrets.fold(text, |text, secret| text.replace(secret, "***"))
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let told = self.source.get_credential().await;
        let checked = told.map_err(|error| no_credentials(&error)).and_then(|credential| {
            let whole = signable(&credential);
            whole.then_some(credential).ok_or_else(|| NoCredentials("unprintable characters in them".to_owned()))
        });
        let credential = checked
            .map_err(|error| object_store::Error::Unauthenticated { path: String::new(), source: Box::new(error) })?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&credential));
        Ok(credential)
    }
}

/// Only words of this engine: an answer of the metadata service that is not understood may be the credentials.
fn no_credentials(error: &object_store::Error) -> NoCredentials {
    let why = if let Some(refusal) = cause::<Refusal>(error) {
        format!("{} answered {}", refusal.method, refusal.status)
    } else if let Some(broken) = cause::<Broken>(error) {
        broken.to_string()
    } else {
        "an answer that holds none".to_owned()
    };
    NoCredentials(format!("the instance's metadata service: {why}"))
}

/// All of them go into headers.
fn signable(credential: &AwsCredential) -> bool {
    let parts = [Some(&credential.key_id), Some(&credential.secret_key), credential.token.as_ref()];
    parts.into_iter().flatten().all(|part| part.bytes().all(|byte| byte.is_ascii_graphic()))
        && !credential.key_id.is_empty()
        && !credential.secret_key.is_empty()
}

fn instance(
    timeout: Duration,
    connect_timeout: Duration,
    around: &Surroundings,
) -> Result<AwsCredentialProvider, SetupError> {
    // Credentials go over no proxy.
    let pool = Pool::new(Dial { connect_timeout, connections: 1, tls: Tls::Off, proxy: Proxy::None }, around)?;
    let named = (around.environment)("AWS_EC2_METADATA_SERVICE_ENDPOINT").filter(|name| !name.is_empty());
    let store = AmazonS3Builder::new()
        .with_bucket_name("none")
        .with_metadata_endpoint(named.as_deref().unwrap_or(METADATA).trim_end_matches('/'))
        .with_retry(RetryConfig { max_retries: 0, retry_timeout: timeout, ..RetryConfig::default() })
        .with_http_connector(pool)
        .build()
        .map_err(|error| SetupError::Client(error.to_string()))?;
    Ok(Arc::clone(store.credentials()))
}

fn from_environment(around: &Surroundings) -> Result<AwsCredential, SetupError> {
    let read = |name| (around.environment)(name).filter(|value| !value.is_empty());
    let needed = |name| read(name).ok_or(SetupError::Variable { name });
    let credential = AwsCredential {
        key_id: needed("AWS_ACCESS_KEY_ID")?,
        secret_key: needed("AWS_SECRET_ACCESS_KEY")?,
        token: read("AWS_SESSION_TOKEN"),
    };
    if !signable(&credential) {
        return Err(SetupError::VariablesUnprintable);
    }
    Ok(credential)
}

/// The credentials of a file, which may be written anew at any time.
#[derive(Debug)]
struct FileKeys {
    path: PathBuf,
    every: Duration,
    /// What was read last, and when it was last tried.
    last: Mutex<(Arc<AwsCredential>, Instant)>,
}

impl FileKeys {
    fn open(path: &Path, every: Duration) -> Result<Self, SetupError> {
        let first = Arc::new(from_file(path)?);
        Ok(Self { path: path.to_owned(), every, last: Mutex::new((first, Instant::now())) })
    }

    fn last(&self) -> MutexGuard<'_, (Arc<AwsCredential>, Instant)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CredentialProvider for FileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        {
            let mut last = self.last();
            if last.1.elapsed() < self.every {
                return Ok(Arc::clone(&last.0));
            }
            // One reads; the others go on with what is there.
            last.1 = Instant::now();
        }
        let path = self.path.clone();
        // A file that is being written, or refused, changes nothing: the server tells when the old ones are over.
        if let Ok(Ok(read)) = tokio::task::spawn_blocking(move || from_file(&path)).await {
            self.last().0 = Arc::new(read);
        }
        Ok(Arc::clone(&self.last().0))
    }
}

fn from_file(path: &Path) -> Result<AwsCredential, SetupError> {
    let fault = |fault: String| SetupError::File { path: path.to_owned(), fault };
    let unreadable = |error: std::io::Error| fault(format!("{error}; name a file that the daemon may read"));
    // A pipe without a writer would hang here.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    // The daemon's own, or root's: whoever else owns it could give it another content.
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(fault(format!("it belongs to user {}; chown it to user {user}, the daemon's", metadata.uid())));
    }
    if metadata.mode() & 0o007 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(fault(format!("its mode is {mode:o}, open to all users; chmod 600 it")));
    }
    if !metadata.is_file() {
        return Err(fault("it is no regular file; name one".to_owned()));
    }
    let mut text = String::new();
    file.by_ref().take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    let credential = profile(&text).map_err(|wrong| fault(wrong.to_owned()))?;
    if !signable(&credential) {
        return Err(fault("a value in it is empty or has unprintable characters; copy it anew".to_owned()));
    }
    Ok(credential)
}

/// Reads the profile `[default]` of an AWS credentials file.
fn profile(text: &str) -> Result<AwsCredential, &'static str> {
    let (mut inside, mut found) = (false, false);
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            inside = line == PROFILE;
            found |= inside;
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| inside) else { continue };
        let value = Some(value.trim().to_owned());
        match name.trim() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => token = value,
            // Settings of other programs.
            _ => {}
        }
    }
    if !found {
        return Err("it has no profile [default]; write one, as `aws configure` does");
    }
    Ok(AwsCredential {
        key_id: key_id.ok_or("its profile [default] lacks aws_access_key_id; add it")?,
        secret_key: secret_key.ok_or("its profile [default] lacks aws_secret_access_key; add it")?,
        token: token.filter(|token| !token.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const GOOD: &str = "# of the cache\n[other]\naws_access_key_id = X\n\n[default]\naws_access_key_id = AKIA1\n\
        aws_secret_access_key=abc/def+g==\nregion = eu-west-1\n; end\n";

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn the_default_profile_is_read_and_no_other() {
        let (_folder, path) = file(GOOD, 0o600);
        let read = from_file(&path).unwrap();
        assert_eq!((read.key_id.as_str(), read.secret_key.as_str()), ("AKIA1", "abc/def+g=="));
        assert_eq!(read.token, None);
        let with_token = format!("{GOOD}aws_session_token = tok\n");
        assert_eq!(profile(&with_token).unwrap().token.as_deref(), Some("tok"));
    }

    #[test]
    fn a_file_that_all_may_read_is_refused_with_the_remedy() {
        for mode in [0o644, 0o604, 0o602, 0o777] {
            let (_folder, path) = file(GOOD, mode);
            let refused = from_file(&path).unwrap_err().to_string();
            assert!(refused.contains("chmod 600") && refused.contains("credentials_file"), "{refused}");
        }
        let (_folder, path) = file(GOOD, 0o640);
        assert!(from_file(&path).is_ok(), "a group of the operator's choice may read it");
    }

    #[test]
    fn a_file_that_says_too_little_is_refused_without_its_content() {
        let cases = [
            ("", "[default]"),
            ("aws_access_key_id = SECRET1\n", "[default]"),
            ("[default]\naws_access_key_id = SECRET1\n", "aws_secret_access_key"),
            ("[default]\naws_secret_access_key = SECRET1\n", "aws_access_key_id"),
            ("[default]\naws_access_key_id = a\naws_secret_access_key = SECRET1\u{e9}\n", "unprintable"),
            ("[default]\naws_access_key_id =\naws_secret_access_key = SECRET1\n", "empty"),
        ];
        for (text, expected) in cases {
            let (_folder, path) = file(text, 0o600);
            let refused = from_file(&path).unwrap_err().to_string();
            assert!(refused.contains(expected) && !refused.contains("SECRET1"), "{refused}");
        }
        let refused = from_file(Path::new("/nonexistent/credentials")).unwrap_err().to_string();
        assert!(refused.contains("/nonexistent/credentials"), "{refused}");
    }

    #[test]
    fn keys_that_are_written_anew_are_used_and_a_bad_file_changes_nothing() {
        let (_folder, path) = file(GOOD, 0o600);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let used = |keys: &FileKeys| runtime.block_on(keys.get_credential()).unwrap().key_id.clone();
        let (often, seldom) = (FileKeys::open(&path, Duration::ZERO).unwrap(), FileKeys::open(&path, REREAD).unwrap());
        assert_eq!((used(&often), used(&seldom)), ("AKIA1".to_owned(), "AKIA1".to_owned()));
        std::fs::write(&path, GOOD.replace("AKIA1", "AKIA2")).unwrap();
        assert_eq!((used(&often), used(&seldom)), ("AKIA2".to_owned(), "AKIA1".to_owned()));
        std::fs::write(&path, "[default]\n").unwrap();
        assert_eq!(used(&often), "AKIA2");
        std::fs::write(&path, GOOD).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(used(&often), "AKIA2");
    }

    #[test]
    fn the_environment_is_asked_by_its_names() {
        let around = |given: &'static [(&str, &str)]| Surroundings {
            environment: Box::new(move |name| given.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned())),
            resolve: None,
        };
        let read = from_environment(&around(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")])).unwrap();
        assert_eq!((read.key_id.as_str(), read.secret_key.as_str(), read.token), ("a", "b", None));
        let lacks = from_environment(&around(&[("AWS_ACCESS_KEY_ID", "a")])).unwrap_err().to_string();
        assert!(lacks.contains("AWS_SECRET_ACCESS_KEY"), "{lacks}");
    }
}
