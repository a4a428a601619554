//! How a connection is made: to one address, or to the master that the sentinels name.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates, Value, cmd,
};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::bypass::{Bypass, Shelf};
use super::fault::{Refusal, fault_of_connecting, nonsense, settled};
use crate::objects::Fault;
use crate::options::{Address, Password, Redis, Tls};

/// A connection whose bytes nobody acknowledges for so long is gone, whatever its end says.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);
/// One that has nothing to say for so long is asked whether it is there: who stands between may have forgotten it.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The longest file of a secret or of certificates, in bytes.
const FILE_MAX_BYTES: usize = 1 << 20;

/// Who we are, and how a server is spoken to.
pub(super) struct Access {
    username: Option<String>,
    password: Password,
    database: i64,
    tls: Option<(TlsCertificates, bool)>,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
}

/// Where a link leads.
pub(super) enum Place {
    /// To one address.
    Fixed(Address),
    /// To the master that most likely is one: sentinels name it, and it says so itself.
    Master {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// The master's name.
        name: String,
    },
}

impl Access {
    /// Reads certificates, and the secret once, so that a missing one is told at start.
    pub(super) fn new(options: &Redis, timeout: Duration, connect_timeout: Duration) -> Result<Self, String> {
        let access = Self {
            username: options.username.clone(),
            password: options.password.clone(),
            database: i64::from(options.database),
            tls: options.tls.as_ref().map(certificates).transpose()?,
            connect_timeout,
            timeout,
        };
        access.secret()?;
        if access.tls.is_some() {
            // Another part of the process may have chosen one already, which serves as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(access)
    }

    /// Read for each connection, so that a secret can be changed while the daemon runs.
    fn secret(&self) -> Result<Option<String>, String> {
        match &self.password {
            Password::None => Ok(None),
            Password::File(path) => {
                let bytes = read(path, "password_file")?;
                let text =
                    String::from_utf8(bytes).map_err(|_| format!("password_file {}: no text", path.display()))?;
                let line = text.lines().next().unwrap_or_default();
                if line.is_empty() {
                    return Err(format!("password_file {}: its first line is empty", path.display()));
                }
                Ok(Some(line.to_owned()))
            }
            Password::Environment(name) => match std::env::var(name) {
                Ok(secret) if !secret.is_empty() => Ok(Some(secret)),
                _ => Err(format!("password_env {name}: the daemon's environment has no such variable")),
            },
        }
    }

    /// A new connection, authenticated where `whole`; a sentinel is asked without. Large answers go past the library
    /// where `past`, but not behind TLS, which is the library's.
    async fn connect(&self, address: &Address, whole: bool, past: bool) -> Result<Wire, Fault> {
        // A little less than a call has: it is the connection's own failure, and it is dropped.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.timeout - self.timeout / 50));
        let client = self.client(address, whole)?;
        if past && self.tls.is_none() {
            let settings = client.get_connection_info().redis_settings();
            let made = match address {
                Address::Tcp(host, port) => past_library(tcp(host, *port).await, settings, config).await,
                Address::Unix(path) => past_library(UnixStream::connect(path).await, settings, config).await,
            };
            return made.map_err(fault_of_connecting);
        }
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(fault_of_connecting)?;
        Ok(Wire { connection, shelf: Arc::default(), _driver: None })
    }

    fn client(&self, address: &Address, whole: bool) -> Result<Client, Fault> {
        let tls = self.tls.as_ref();
        let place = match (address, tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp(host, port), Some((_, insecure))) => {
                let (host, port, insecure) = (host.clone(), *port, *insecure);
                ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }
            }
        };
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if whole {
            settings = settings.set_db(self.database);
            if let Some(username) = &self.username {
                settings = settings.set_username(username);
            }
            if let Some(secret) = self.secret().map_err(|text| Fault::Refused { word: "auth", text })? {
                settings = settings.set_password(secret);
            }
        }
        let tcp =
            TcpSettings::default().set_nodelay(true).set_user_timeout(UNACKNOWLEDGED_MAX).set_keepalive(keepalive());
        let info = place.into_connection_info().map_err(fault_of_connecting)?;
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        match tls {
            None => Client::open(info).map_err(fault_of_connecting),
            Some((certificates, _)) => Client::build_with_tls(info, certificates.clone()).map_err(fault_of_connecting),
        }
    }
}

/// A connection that is made.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) connection: MultiplexedConnection,
    /// Where large answers are, if they go past the library.
    pub(super) shelf: Arc<Shelf>,
    _driver: Option<Arc<Driver>>,
}

/// What moves the bytes, until nobody has the connection any more.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn past_library(
    stream: std::io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
    settings: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> redis::RedisResult<Wire> {
    let shelf = Arc::<Shelf>::default();
    let stream = Bypass::new(stream?, shelf.clone());
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
    let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
    Ok(Wire { connection, shelf, _driver: Some(driver) })
}

/// A stream to whichever of a host's addresses answers first.
async fn tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let mut streams: FuturesUnordered<_> = addresses.map(TcpStream::connect).collect();
    let mut last = std::io::Error::other(format!("{host} has no address"));
    while let Some(stream) = streams.next().await {
        match stream {
            Ok(stream) => {
                let socket = SockRef::from(&stream);
                socket.set_tcp_nodelay(true)?;
                socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
                socket.set_tcp_keepalive(&keepalive())?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3)
}

impl Place {
    /// For messages.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Fixed(address) => address.to_string(),
            Self::Master { name, .. } => format!("master {name}"),
        }
    }

    /// The host, for redirections that leave it out.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Fixed(Address::Tcp(host, _)) => host,
            _ => "",
        }
    }

    /// A new connection to there. Large answers go past the library where `past`, if they can.
    pub(super) async fn connect(&self, access: &Access, past: bool) -> Result<Wire, Fault> {
        let whole = async {
            match self {
                Self::Fixed(address) => access.connect(address, true, past).await,
                Self::Master { sentinels, name } => master(access, sentinels, name, past).await,
            }
        };
        let late = || Fault::Unreachable(format!("no connection within {:?}", access.connect_timeout));
        tokio::time::timeout(access.connect_timeout, whole).await.unwrap_or_else(|_| Err(late()))
    }
}

/// A connection to the master: the first sentinel that names one which says so itself is believed.
async fn master(access: &Access, sentinels: &[Address], name: &str, past: bool) -> Result<Wire, Fault> {
    let mut asked: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| master_of(access, sentinel, name, past)).collect();
    let mut last = Fault::Unreachable("no sentinel".to_owned());
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(wire) => return Ok(wire),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

async fn master_of(access: &Access, sentinel: &Address, name: &str, past: bool) -> Result<Wire, Fault> {
    let mut wire = access.connect(sentinel, false, false).await?;
    let mut ask = cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = asked(&mut wire.connection, &ask).await?;
    let Value::Array(parts) = &answer else {
        let text = format!("sentinel {sentinel} knows no master {name:?}: check `master_name`");
        return Err(Fault::Refused { word: "no-master", text });
    };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return Err(nonsense(&answer)) };
    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok()).ok_or_else(|| nonsense(&answer))?;
    let address = Address::Tcp(String::from_utf8_lossy(host).into_owned(), port);
    // A sentinel may not have heard yet that the master is one no more.
    let mut wire = access.connect(&address, true, past).await?;
    match asked(&mut wire.connection, &cmd("ROLE")).await? {
        Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => Ok(wire),
        _ => Err(Fault::Unreachable(format!("{address} is no master, though sentinel {sentinel} says so"))),
    }
}

async fn asked(connection: &mut MultiplexedConnection, command: &redis::Cmd) -> Result<Value, Fault> {
    let value = connection.send_packed_command(command).await.map_err(fault_of_connecting)?;
    settled(value, "").map_err(|refusal| match refusal {
        Refusal::Fault(fault) => fault,
        other => Fault::Nonsense(format!("{other:?}")),
    })
}

fn certificates(tls: &Tls) -> Result<(TlsCertificates, bool), String> {
    let client_tls = match &tls.client {
        None => None,
        Some((cert, key)) => {
            Some(ClientTlsConfig { client_cert: chain(cert, "tls.cert")?, client_key: read(key, "tls.key")? })
        }
    };
    let root_cert = tls.ca.as_ref().map(|path| chain(path, "tls.ca")).transpose()?;
    let certificates = TlsCertificates { client_tls, root_cert };
    // Only to have them read now: the address is nobody's.
    let nobody = ConnectionAddr::TcpTls { host: "localhost".to_owned(), port: 1, insecure: false, tls_params: None };
    Client::build_with_tls(nobody, certificates.clone()).map_err(|error| format!("tls: {error}"))?;
    Ok((certificates, tls.insecure))
}

/// A file that has a certificate in it; the library takes one without for an empty list.
fn chain(path: &Path, option: &str) -> Result<Vec<u8>, String> {
    let bytes = read(path, option)?;
    match CertificateDer::pem_slice_iter(&bytes).next() {
        Some(Ok(_)) => Ok(bytes),
        _ => Err(format!("{option} {}: no certificate is in it; give a PEM file", path.display())),
    }
}

fn read(path: &Path, option: &str) -> Result<Vec<u8>, String> {
    let most = FILE_MAX_BYTES;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes));
    file.map_err(|error| format!("{option} {}: {error}", path.display()))?;
    if bytes.len() > most {
        return Err(format!("{option} {}: {} bytes are no such file", path.display(), bytes.len()));
    }
    Ok(bytes)
}
