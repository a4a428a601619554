//! What the engine needs to begin, and why it may not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::options;

/// The value of an environment variable of the daemon, by its name.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What the engine takes from around it and not from its options.
pub struct Surroundings {
    /// Where credentials of the environment are read.
    pub environment: Environment,
    /// A host's name and where it leads, in place of the resolver's answer.
    pub resolve: Option<(String, SocketAddr)>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { environment: Box::new(|name| std::env::var(name).ok()), resolve: None }
    }
}

/// What the engine needs of the tier's options.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// The engine's own options.
    pub s3: &'a options::S3,
    /// What every name begins with.
    pub prefix: &'a str,
    /// Longest wait for the answer to one call.
    pub timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
}

/// Why the engine cannot be set up. Each names the option, its value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The endpoint is no URL that a request can go to.
    #[error("endpoint = {endpoint:?}: {fault}")]
    Endpoint {
        /// As the options say.
        endpoint: String,
        /// What is wrong, and what to give.
        fault: &'static str,
    },
    /// The bucket's name is none.
    #[error("bucket = {0:?}: give 3 to 63 letters, digits, `.`, `-` and `_`")]
    Bucket(String),
    /// The region's name is none.
    #[error("region = {0:?}: give letters, digits, `-` and `_`, as in \"us-east-1\"")]
    Region(String),
    /// Credentials are to come from a file, and none is named.
    #[error("option `credentials_file` is missing: credentials = \"file\" reads them from there")]
    NoFile,
    /// The credentials file cannot be used.
    #[error("credentials_file = {path:?}: {fault}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and the remedy; no part of its content.
        fault: String,
    },
    /// A variable that holds credentials is not set.
    #[error("credentials = \"environment\": {name} is not set; set it for the daemon, or name a credentials_file")]
    Variable {
        /// Its name.
        name: &'static str,
    },
    /// Credentials that no header can hold.
    #[error("credentials = \"environment\": unprintable characters in an AWS_ variable; set it anew")]
    VariablesUnprintable,
    /// The HTTP client cannot be built.
    #[error("no HTTP client for S3: {0}; where it is about certificates, SSL_CERT_FILE may name the trusted ones")]
    Client(String),
}
