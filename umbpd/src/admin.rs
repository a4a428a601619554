//! The page for operators: `/healthz`, `/status` and `/metrics`, on a thread and a runtime of its own, so that it
//! answers whatever the engine's thread and the plugins do.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::core::ticker::Pulse;
use crate::fork::NotInChildren;
use crate::metrics;
use crate::process::now;
use crate::tier::lock;

/// The engine's thread answers a question within this time, or the page says that it did not.
const ANSWER_MS: u64 = 2_000;
/// Questions to the engine's thread that wait; beyond it the page says that it is busy.
pub const QUESTIONS_MAX: usize = 8;
/// A pulse older than this means that the engine's thread does not run.
const PULSE_MAX_MS: u64 = 5_000;

/// A question to the engine's thread: its status.
pub type Question = oneshot::Sender<Value>;

/// What the page knows without asking.
#[derive(Clone)]
pub struct Shared {
    /// None = serving; else why not.
    pub not_serving: Arc<Mutex<Option<String>>>,
    /// Time of the engine's last tick.
    pub pulse: Pulse,
    /// To the engine's thread.
    pub questions: mpsc::Sender<Question>,
}

/// Binds the address, so that a failure is known before the daemon serves.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves on a thread of its own until the daemon ends.
pub fn spawn(listener: TcpListener, shared: Shared) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (daemon, alone) = (shared.questions.clone(), NotInChildren::new(&listener));
    let run = move || {
        let _alone = alone;
        runtime.block_on(async move {
            let page = Router::new().route("/healthz", get(healthz)).route("/status", get(status));
            let page = page.route("/metrics", get(metrics)).with_state(shared);
            let served = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => tokio::select! {
                    served = axum::serve(listener, page).into_future() => served,
                    () = daemon.closed() => Ok(()),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                tracing::error!("the admin page has ended: {error}");
            }
        });
    };
    std::thread::Builder::new().name("umbp-admin".to_owned()).spawn(run).map(drop)
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let reason = lock(&shared.not_serving).clone().or_else(|| {
        let age = now().0.saturating_sub(shared.pulse.load(std::sync::atomic::Ordering::Relaxed)) / 1_000_000;
        (age > PULSE_MAX_MS).then(|| format!("the engine's thread has not ticked for {age} ms"))
    });
    match reason {
        None => (StatusCode::OK, "ok\n").into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn status(State(shared): State<Shared>) -> Response {
    match ask(&shared).await {
        Ok(status) => json_response(StatusCode::OK, &status),
        Err(error) => json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": error })),
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let page = match ask(&shared).await {
        Ok(status) => metrics::page(status).map_err(|_| "the figures could not be written".to_owned()),
        Err(error) => Err(error),
    };
    match page {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// The status, from the engine's thread.
async fn ask(shared: &Shared) -> Result<Value, String> {
    let (answer, wait) = oneshot::channel();
    if shared.questions.try_send(answer).is_err() {
        return Err(format!("{QUESTIONS_MAX} questions wait for the engine's thread already"));
    }
    match tokio::time::timeout(Duration::from_millis(ANSWER_MS), wait).await {
        Ok(Ok(status)) => Ok(status),
        _ => Err(format!("the engine's thread did not answer within {ANSWER_MS} ms")),
    }
}

fn json_response(code: StatusCode, value: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
