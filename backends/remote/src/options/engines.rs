//! The options of each engine.

use std::ops::Range;
use std::path::PathBuf;

use toml::de::DeValue;
use umbp_plugin_api::OptionsError;

use super::Lines;
use super::read::Table;

/// Most addresses of one tier; those of a cluster are only where it is entered.
const ADDRESSES_MAX: usize = 64;
/// Most connections to one server.
const CONNECTIONS_MAX: u64 = 256;
/// The largest number of a database.
const DATABASE_MAX: u64 = 1 << 20;
const REDIS_CONNECTIONS_DEFAULT: u64 = 4;
const S3_CONNECTIONS_DEFAULT: u64 = 16;
const REGION_DEFAULT: &str = "us-east-1";
const TLS: [&str; 4] = ["ca", "cert", "key", "insecure"];

/// How Valkey or Redis servers stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One server.
    Single,
    /// Sentinels tell which server is the master.
    Sentinel,
    /// A cluster, entered at any of the addresses.
    Cluster,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host's name or number, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Where the password is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// None is asked for.
    None,
    /// The first line of a file.
    File(PathBuf),
    /// An environment variable of the daemon.
    Environment(String),
}

/// How a connection is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates that the server's is checked against; the system's where `None`.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, where the server asks for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The server's certificate is not checked.
    pub insecure: bool,
}

/// Options of a Valkey or Redis engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// How the servers stand together.
    pub mode: Mode,
    /// Servers, sentinels, or nodes where a cluster is entered.
    pub addresses: Vec<Address>,
    /// The master's name as the sentinels know it; empty in other modes.
    pub master_name: String,
    /// The user of the server's access list; its default user where `None`.
    pub username: Option<String>,
    /// The user's password.
    pub password: Password,
    /// The database's number.
    pub database: u32,
    /// Encryption, where wanted.
    pub tls: Option<Tls>,
    /// Connections to each server.
    pub connections: usize,
}

/// Where the credentials of an S3 engine come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// `credentials_file`.
    File,
    /// `AWS_ACCESS_KEY_ID` and its like in the daemon's environment.
    Environment,
    /// The instance's metadata service.
    Instance,
}

/// Options of an engine that speaks S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3 {
    /// The server's URL; AWS's own for the region where `None`.
    pub endpoint: Option<String>,
    /// The region, which goes into signatures.
    pub region: String,
    /// The bucket. It has to exist.
    pub bucket: String,
    /// Where the credentials come from.
    pub credentials: Credentials,
    /// The file of `Credentials::File`, and of no other.
    pub credentials_file: Option<PathBuf>,
    /// The bucket stands in the URL's path, not in the host's name.
    pub path_style: bool,
    /// An endpoint without encryption is taken.
    pub allow_http: bool,
    /// Requests at a time.
    pub connections: usize,
}

impl Redis {
    pub(super) fn read(table: &Table<'_>) -> Result<Self, OptionsError> {
        let mode = match table.word("mode", &["single", "sentinel", "cluster"])? {
            None | Some("single") => Mode::Single,
            Some("sentinel") => Mode::Sentinel,
            Some(_) => Mode::Cluster,
        };
        let connections = table.number("connections", 1, CONNECTIONS_MAX)?.unwrap_or(REDIS_CONNECTIONS_DEFAULT);
        let tls = tls(table)?;
        Ok(Self {
            mode,
            addresses: addresses(table, mode, tls.is_some())?,
            master_name: master_name(table, mode)?,
            username: table.filled("username")?.map(|(name, _)| name.to_owned()),
            password: password(table)?,
            database: database(table, mode)?,
            tls,
            connections: connections as usize,
        })
    }

    pub(super) fn print(&self, lines: &mut Lines) {
        let mode = match self.mode {
            Mode::Single => "single",
            Mode::Sentinel => "sentinel",
            Mode::Cluster => "cluster",
        };
        lines.text("mode", mode);
        let addresses: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        lines.plain("addresses", toml::Value::from(addresses));
        if self.mode == Mode::Sentinel {
            lines.text("master_name", &self.master_name);
        }
        if let Some(username) = &self.username {
            lines.text("username", username);
        }
        match &self.password {
            Password::None => {}
            Password::File(path) => lines.path("password_file", path),
            Password::Environment(name) => lines.text("password_env", name),
        }
        if self.mode != Mode::Cluster {
            lines.plain("database", self.database);
        }
        lines.plain("connections", self.connections);
        match &self.tls {
            None => lines.plain("tls", false),
            Some(tls) => {
                let mut inner = Vec::new();
                let quoted = |path: &PathBuf| toml::Value::from(path.to_string_lossy().into_owned());
                inner.extend(tls.ca.as_ref().map(|path| format!("ca = {}", quoted(path))));
                if let Some((cert, key)) = &tls.client {
                    inner.push(format!("cert = {}, key = {}", quoted(cert), quoted(key)));
                }
                inner.push(format!("insecure = {}", tls.insecure));
                lines.plain("tls", format!("{{ {} }}", inner.join(", ")));
            }
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// `host:port`, `[number]:port`, or `unix:` and a path.
    fn read(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (path.starts_with('/') && !path.contains('\0')).then(|| Self::Unix(path.into()));
        }
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = match host.strip_prefix('[') {
            Some(number) => number.strip_suffix(']').filter(|number| number.parse::<std::net::Ipv6Addr>().is_ok())?,
            None => host,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        let fits = !host.is_empty() && host.chars().all(fits) && (text.starts_with('[') || !host.contains(':'));
        fits.then(|| Self::Tcp(host.to_owned(), port))
    }
}

fn addresses(table: &Table<'_>, mode: Mode, encrypted: bool) -> Result<Vec<Address>, OptionsError> {
    let remedy = "give a list, as in addresses = [\"10.0.0.7:6379\"] or [\"unix:/run/valkey.sock\"]";
    let (list, span) = match table.value("addresses") {
        None => return Err(table.missing("addresses", remedy)),
        Some((DeValue::Array(list), span)) => (list, span),
        Some((_, span)) => return Err(table.wrong("addresses", "no list", remedy, span)),
    };
    let most = if mode == Mode::Single { 1 } else { ADDRESSES_MAX };
    if list.is_empty() || list.len() > most {
        let remedy = match mode {
            Mode::Single => {
                "mode \"single\" takes one address; for several choose \"sentinel\" or \"cluster\"".to_owned()
            }
            _ => format!("give from 1 to {ADDRESSES_MAX}"),
        };
        return Err(table.wrong("addresses", &format!("a list of {}", list.len()), &remedy, span));
    }
    list.iter().map(|entry| address(table, entry.get_ref(), entry.span(), mode, encrypted)).collect()
}

fn address(
    table: &Table<'_>,
    value: &DeValue<'_>,
    span: Range<usize>,
    mode: Mode,
    encrypted: bool,
) -> Result<Address, OptionsError> {
    let forms = "give \"host:port\", \"[::1]:port\" or \"unix:/path\"";
    let DeValue::String(text) = value else {
        return Err(table.wrong("an address", "no text", forms, span));
    };
    if text.contains('@') || text.contains("://") {
        // What stands there may be a password, so it is not repeated.
        let remedy = format!("{forms}; user and password are options of their own (`username`, `password_file`)");
        return Err(table.wrong("an address", "a URL", &remedy, span));
    }
    let Some(address) = Address::read(text) else {
        return Err(table.wrong("an address", &format!("{text:?}"), forms, span));
    };
    if matches!(address, Address::Unix(_)) && (mode != Mode::Single || encrypted) {
        let remedy = "a Unix socket goes with mode \"single\" and without `tls`; give \"host:port\"";
        return Err(table.wrong("an address", &format!("{text:?}"), remedy, span));
    }
    Ok(address)
}

fn master_name(table: &Table<'_>, mode: Mode) -> Result<String, OptionsError> {
    match (table.filled("master_name")?, mode) {
        (Some((name, _)), Mode::Sentinel) => Ok(name.to_owned()),
        (None, Mode::Sentinel) => Err(table.missing("master_name", "give the name that the sentinels monitor")),
        (Some((name, span)), _) => {
            Err(table.wrong("master_name", &format!("{name:?}"), "it goes with mode \"sentinel\"; leave it out", span))
        }
        (None, _) => Ok(String::new()),
    }
}

fn database(table: &Table<'_>, mode: Mode) -> Result<u32, OptionsError> {
    let found = table.number("database", 0, DATABASE_MAX)?.unwrap_or_default();
    if let Some((_, span)) = table.value("database").filter(|_| mode == Mode::Cluster && found != 0) {
        return Err(table.wrong("database", &found.to_string(), "a cluster has number 0 alone; leave it out", span));
    }
    Ok(found as u32)
}

fn password(table: &Table<'_>) -> Result<Password, OptionsError> {
    match (table.path("password_file")?, table.filled("password_env")?) {
        (None, None) => Ok(Password::None),
        (Some(path), None) => Ok(Password::File(path)),
        (None, Some((name, span))) => {
            if name.contains('=') {
                return Err(table.wrong("password_env", "a text with `=`", "give the variable's name alone", span));
            }
            Ok(Password::Environment(name.to_owned()))
        }
        (Some(_), Some((name, span))) => {
            Err(table.wrong("password_env", &format!("{name:?}"), "`password_file` is given too; keep one", span))
        }
    }
}

fn tls(table: &Table<'_>) -> Result<Option<Tls>, OptionsError> {
    let (inner, span) = match table.value("tls") {
        None | Some((DeValue::Boolean(false), _)) => return Ok(None),
        Some((DeValue::Boolean(true), _)) => return Ok(Some(Tls::default())),
        Some((DeValue::Table(inner), span)) => (Table::inner(inner, span.clone(), "tls."), span),
        Some((_, span)) => {
            let remedy = "give true, false or a table, as in tls = { ca = \"/etc/ssl/ca.pem\" }";
            return Err(table.wrong("tls", "neither", remedy, span));
        }
    };
    inner.known_names_only("tls", &TLS, &[], &[])?;
    let client = match (inner.path("cert")?, inner.path("key")?) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (one, _) => {
            let remedy = "`tls.cert` and `tls.key` go together; give both or none";
            return Err(inner.wrong(if one.is_some() { "cert" } else { "key" }, "alone", remedy, span));
        }
    };
    Ok(Some(Tls { ca: inner.path("ca")?, client, insecure: inner.flag("insecure")?.unwrap_or(false) }))
}

impl S3 {
    pub(super) fn read(table: &Table<'_>) -> Result<Self, OptionsError> {
        let (bucket, _) = table.filled("bucket")?.ok_or_else(|| table.missing("bucket", "name one that exists"))?;
        let allow_http = table.flag("allow_http")?.unwrap_or(false);
        let file = table.path("credentials_file")?;
        let credentials = match table.word("credentials", &["file", "environment", "instance"])? {
            Some("file") => Credentials::File,
            Some("instance") => Credentials::Instance,
            None if file.is_some() => Credentials::File,
            None | Some(_) => Credentials::Environment,
        };
        if credentials == Credentials::File && file.is_none() {
            return Err(table.missing("credentials_file", "credentials = \"file\" reads them from there"));
        }
        if let Some((_, span)) = table.value("credentials_file").filter(|_| credentials != Credentials::File) {
            let remedy = "it goes with credentials = \"file\"; leave it out";
            return Err(table.wrong("credentials_file", "given", remedy, span));
        }
        Ok(Self {
            endpoint: endpoint(table, allow_http)?,
            region: table.filled("region")?.map_or(REGION_DEFAULT, |(region, _)| region).to_owned(),
            bucket: bucket.to_owned(),
            credentials,
            credentials_file: file,
            path_style: table.flag("path_style")?.unwrap_or(true),
            allow_http,
            connections: table.number("connections", 1, CONNECTIONS_MAX)?.unwrap_or(S3_CONNECTIONS_DEFAULT) as usize,
        })
    }

    pub(super) fn print(&self, lines: &mut Lines) {
        if let Some(endpoint) = &self.endpoint {
            lines.text("endpoint", endpoint);
        }
        lines.text("region", &self.region);
        lines.text("bucket", &self.bucket);
        let credentials = match self.credentials {
            Credentials::File => "file",
            Credentials::Environment => "environment",
            Credentials::Instance => "instance",
        };
        lines.text("credentials", credentials);
        if let Some(path) = &self.credentials_file {
            lines.path("credentials_file", path);
        }
        lines.plain("path_style", self.path_style);
        lines.plain("allow_http", self.allow_http);
        lines.plain("connections", self.connections);
    }
}

fn endpoint(table: &Table<'_>, allow_http: bool) -> Result<Option<String>, OptionsError> {
    let Some((text, span)) = table.filled("endpoint")? else { return Ok(None) };
    if text.contains('@') {
        let remedy = "give a URL such as \"https://s3.example:9000\"; credentials are options of their own";
        return Err(table.wrong("endpoint", "a URL with a user", remedy, span));
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        let remedy = "give a URL such as \"https://s3.example:9000\"";
        return Err(table.wrong("endpoint", &format!("{text:?}"), remedy, span));
    }
    if text.starts_with("http://") && !allow_http {
        let remedy = "without encryption everyone on the way reads the blocks; give https, or allow_http = true";
        return Err(table.wrong("endpoint", &format!("{text:?}"), remedy, span));
    }
    Ok(Some(text.to_owned()))
}
