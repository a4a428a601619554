//! What servers answer instead of a value, in the words of the seam.

use redis::{RedisError, ServerError, Value};

use crate::objects::Fault;
use crate::options::Address;

/// Why a command has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The slot lies on that node from now on.
    Moved(Address),
    /// This key may lie on that node already, while its slot moves there.
    Ask(Address),
    /// Something is there, and it is no string.
    OtherType,
    /// Anything else.
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The value, or why there is none. `host` is the asked server's, which a redirection may leave out.
pub(super) fn settled(value: Value, host: &str) -> Result<Value, Refusal> {
    match value {
        Value::ServerError(error) => Err(refusal(&error, host)),
        value => Ok(value),
    }
}

fn refusal(error: &ServerError, host: &str) -> Refusal {
    match error.code() {
        code @ ("MOVED" | "ASK") => match error.details().and_then(|text| redirection(text, host)) {
            Some(address) if code == "MOVED" => Refusal::Moved(address),
            Some(address) => Refusal::Ask(address),
            None => Refusal::Fault(Fault::Nonsense(format!("a redirection to nowhere: {}", text_of(error)))),
        },
        "WRONGTYPE" => Refusal::OtherType,
        _ => Refusal::Fault(fault_of(error)),
    }
}

/// `slot host:port`, where the host may be empty.
fn redirection(text: &str, host: &str) -> Option<Address> {
    let (_slot, place) = text.split_once(' ')?;
    let (found, port) = place.trim().rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let found = if found.is_empty() { host } else { found.trim_start_matches('[').trim_end_matches(']') };
    Some(Address::Tcp(found.to_owned(), port))
}

/// An error that the server sent in place of a value.
pub(super) fn fault_of(error: &ServerError) -> Fault {
    let word = match error.code() {
        "OOM" => return Fault::Full(text_of(error)),
        "LOADING" => "loading",
        "READONLY" => "readonly",
        "MASTERDOWN" => "master-down",
        "CLUSTERDOWN" => "cluster-down",
        "NOAUTH" | "WRONGPASS" => "auth",
        "NOPERM" => "permission",
        "TRYAGAIN" => "try-again",
        "MISCONF" => "cannot-save",
        "NOREPLICAS" => "no-replicas",
        "ERR" if error.details().is_some_and(|text| text.contains("max number of clients")) => "too-many-clients",
        "ERR" if error.details().is_some_and(|text| text.contains("DB index")) => "database",
        "ERR" if error.details().is_some_and(|text| text.contains("invalid password")) => "auth",
        _ => return Fault::Nonsense(text_of(error)),
    };
    Fault::Refused { word, text: text_of(error) }
}

/// A connection could not be made.
pub(super) fn fault_of_connecting(error: RedisError) -> Fault {
    match ServerError::try_from(error) {
        Ok(error) => fault_of(&error),
        Err(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            // The library's words, and the server's behind them; neither repeats the password.
            let text = error.to_string();
            if text.contains("LOADING") {
                return Fault::Refused { word: "loading", text };
            }
            Fault::Refused { word: "auth", text }
        }
        Err(error) => Fault::Unreachable(error.to_string()),
    }
}

fn text_of(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// An answer of a kind that the command does not have.
pub(super) fn nonsense(value: &Value) -> Fault {
    let kind = match value {
        Value::Nil => "nil",
        Value::Int(_) => "a number",
        Value::BulkString(_) => "a text",
        Value::Array(_) => "a list",
        Value::Okay | Value::SimpleString(_) => "a word",
        _ => "another kind",
    };
    Fault::Nonsense(format!("the server answered with {kind}, which this command does not have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Refusal {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error line");
        settled(value, "10.0.0.7").expect_err("an error")
    }

    #[test]
    fn a_refusal_has_one_word_for_each_state() {
        for (line, word) in [
            ("LOADING Redis is loading the dataset in memory", "loading"),
            ("READONLY You can't write against a read only replica.", "readonly"),
            ("MASTERDOWN Link with MASTER is down", "master-down"),
            ("CLUSTERDOWN Hash slot not served", "cluster-down"),
            ("NOAUTH Authentication required.", "auth"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "auth"),
            ("NOPERM User kv has no permissions to run the 'set' command", "permission"),
            ("MISCONF Errors writing to the AOF file", "cannot-save"),
            ("NOREPLICAS Not enough good replicas to write.", "no-replicas"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "try-again"),
            ("ERR max number of clients reached", "too-many-clients"),
            ("ERR DB index is out of range", "database"),
        ] {
            let Refusal::Fault(Fault::Refused { word: found, text }) = refused(line) else { panic!("{line}") };
            assert_eq!((found, text.as_str()), (word, line));
        }
        assert!(matches!(
            refused("OOM command not allowed when used memory > 'maxmemory'."),
            Refusal::Fault(Fault::Full(_))
        ));
        assert!(matches!(refused("ERR unknown command"), Refusal::Fault(Fault::Nonsense(_))));
        assert_eq!(refused("WRONGTYPE Operation against a key holding the wrong kind of value"), Refusal::OtherType);
    }

    #[test]
    fn a_redirection_names_its_node() {
        let at = |host: &str, port| Address::Tcp(host.to_owned(), port);
        assert_eq!(refused("MOVED 3999 127.0.0.1:6381"), Refusal::Moved(at("127.0.0.1", 6381)));
        assert_eq!(refused("ASK 3999 ::1:6381"), Refusal::Ask(at("::1", 6381)));
        assert_eq!(refused("MOVED 3999 :6381"), Refusal::Moved(at("10.0.0.7", 6381)));
        assert!(matches!(refused("MOVED 3999 here"), Refusal::Fault(Fault::Nonsense(_))));
        assert!(matches!(refused("MOVED"), Refusal::Fault(Fault::Nonsense(_))));
    }
}
