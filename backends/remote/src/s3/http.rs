//! How requests travel: one pool of connections to one endpoint, no redirection followed, and answers that are no
//! success read here, up to a bound, so that nothing above keeps or prints a body.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::redirect::Policy;

use super::refusal::{Refusal, plain};
use super::{SetupError, Surroundings, innermost};

/// Most bytes of an error's body that are read; what follows goes with its connection.
const ERROR_BODY_MAX_BYTES: usize = 16 << 10;
/// An idle connection is closed after this time, before a server or a gateway on the way does.
const IDLE: Duration = Duration::from_secs(15);

/// The connection broke, or never came to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(String);

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    /// Longest wait for a connection.
    pub(super) connect_timeout: Duration,
    /// Most connections that are kept while idle.
    pub(super) connections: usize,
    /// Whether the endpoint speaks TLS; no certificate is looked for where it does not.
    pub(super) tls: Tls,
    /// Whether a proxy that the environment names is used.
    pub(super) proxy: Proxy,
}

/// Whether an endpoint is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    On,
    Off,
}

/// Whether a proxy may stand between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    Environment,
    None,
}

/// Hands one pool of connections to all that ask.
#[derive(Clone, Debug)]
pub(super) struct Pool(reqwest::Client);

impl Pool {
    pub(super) fn new(dial: Dial, around: &Surroundings) -> Result<Self, SetupError> {
        // One provider for this library; that another part of it was first is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("umbp/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .connect_timeout(dial.connect_timeout)
            .pool_max_idle_per_host(dial.connections)
            .pool_idle_timeout(IDLE);
        if dial.tls == Tls::Off {
            // A machine without certificates can do without TLS.
            builder = builder.tls_certs_only([]);
        } else {
            builder = builder.https_only(true);
        }
        if dial.proxy == Proxy::None {
            builder = builder.no_proxy();
        }
        if let Some((host, address)) = &around.resolve {
            builder = builder.resolve(host, *address);
        }
        builder.build().map(Self).map_err(|error| SetupError::Client(innermost(&error)))
    }
}

impl HttpConnector for Pool {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Pool {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = reqwest::Url::parse(&parts.uri.to_string()).map_err(|error| broken(error.to_string()))?;
        let method = parts.method.to_string();
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        if body.content_length() > 0 {
            *sent.body_mut() = Some(reqwest::Body::wrap(body));
        }
        let response = self.0.execute(sent).await.map_err(|error| broken(words(&error)))?;
        if !response.status().is_success() {
            return Err(refused(&method, response).await);
        }
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let body = HttpResponseBody::new(body.map_err(|error| broken(words(&error))));
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// The kind is one that is never tried again: retries stand above this engine.
fn broken(text: String) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, Broken(text))
}

async fn refused(method: &str, mut response: reqwest::Response) -> HttpError {
    let status = response.status().as_u16();
    let target = response.headers().get(http::header::LOCATION).and_then(|target| target.to_str().ok());
    // Without its path and query, which may hold anything.
    let target = target.and_then(|target| reqwest::Url::parse(target).ok());
    let target = target.map(|target| format!("leads to {}", target.origin().ascii_serialization()));
    let mut body = Vec::new();
    // A body that breaks off is read as far as it came: the status stands.
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = ERROR_BODY_MAX_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == ERROR_BODY_MAX_BYTES {
            break;
        }
    }
    let mut refusal = Refusal::read(method, status, &body);
    if let Some(target) = target.filter(|_| refusal.message.is_empty()) {
        refusal.message = plain(&target);
    }
    HttpError::new(HttpErrorKind::Unknown, refusal)
}

/// What went wrong with a connection, without the URL.
fn words(error: &reqwest::Error) -> String {
    let cause = innermost(error);
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => "no connection in time".to_owned(),
        (true, false) => format!("cannot connect: {cause}"),
        _ => cause,
    }
}
