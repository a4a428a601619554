//! What an answer that is not a success means: S3's error codes, and the words that a tier counts and logs.

use crate::objects::Fault;

/// Longest text of a server that is repeated, in characters; the rest is cut off.
const TEXT_MAX_CHARS: usize = 200;

/// An answer with a status that is not a success. Of the body only code and message are kept: the body of a
/// `SignatureDoesNotMatch` repeats the signed headers, a session's token among them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{method} answered {status}{}{code}{}{message}", gap(code, " "), gap(message, ": "))]
pub(super) struct Refusal {
    /// The HTTP method that was answered.
    pub(super) method: String,
    /// The HTTP status.
    pub(super) status: u16,
    /// S3's code for the error; empty where the body is none of S3's.
    pub(super) code: String,
    /// The server's own words.
    pub(super) message: String,
}

fn gap(text: &str, gap: &'static str) -> &'static str {
    if text.is_empty() { "" } else { gap }
}

impl Refusal {
    /// Reads the body of an error, of which the end may be missing.
    pub(super) fn read(method: &str, status: u16, body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let text = |name| plain(element(&body, name).unwrap_or_default());
        Self { method: method.to_owned(), status, code: text("Code"), message: text("Message") }
    }

    /// There is no such object. A 404 that does not say so may come from anything that listens there.
    pub(super) fn absent(&self) -> bool {
        self.status == 404 && ["NoSuchKey", "NoSuchVersion", "NotFound"].contains(&self.code.as_str())
    }

    /// The condition of a conditional store does not hold: the name is taken.
    pub(super) fn taken(&self) -> bool {
        // Some servers answer as if it had been a conditional read.
        self.status == 412 || self.status == 304
    }

    /// Another call is at the same name, and what becomes of it is not known yet.
    pub(super) fn contended(&self) -> bool {
        self.status == 409
    }

    /// The server does not know what it was asked for.
    pub(super) fn unknown(&self) -> bool {
        self.status == 501 || self.code == "NotImplemented"
    }

    /// The range begins past the end of the object.
    pub(super) fn past_end(&self) -> bool {
        self.status == 416
    }

    /// As a fault of the call, with the server's words.
    pub(super) fn fault(&self, mut text: String) -> Fault {
        match self.word() {
            Word::State("permission") if self.method == "GET" && self.code == "AccessDenied" => {
                text.push_str(" (of a missing object too, S3 says so to a user without s3:ListBucket)");
                Fault::Refused { word: "permission", text }
            }
            Word::State(word) => Fault::Refused { word, text },
            Word::Full => Fault::Full(text),
            Word::Down => Fault::Unreachable(text),
            Word::Nonsense => Fault::Nonsense(text),
        }
    }

    fn word(&self) -> Word {
        match self.code.as_str() {
            "SignatureDoesNotMatch" => return Word::State("signature"),
            "RequestTimeTooSkewed" => return Word::State("clock"),
            "NoSuchBucket" | "InvalidBucketName" => return Word::State("no-bucket"),
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => return Word::State("auth"),
            "InvalidAccessKeyId" | "AccessDenied" => return Word::State("permission"),
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect" => return Word::State("region"),
            "SlowDown" | "ServiceUnavailable" | "TooManyRequests" | "RequestLimitExceeded" => {
                return Word::State("throttled");
            }
            // A body that came too slowly: the network's fault, if anybody's.
            "RequestTimeout" => return Word::Down,
            // Ceph's QuotaExceeded, MinIO's XMinioAdminBucketQuotaExceeded and XMinioStorageFull.
            code if code.contains("Quota") || code.contains("StorageFull") => return Word::Full,
            code if code.starts_with("Throttling") => return Word::State("throttled"),
            _ => {}
        }
        match self.status {
            300..=399 => Word::State("redirect"),
            401 | 403 => Word::State("permission"),
            409 => Word::State("conflict"),
            429 | 503 => Word::State("throttled"),
            507 => Word::Full,
            // It answers, and at once. A server that has no room may say so of stores alone.
            500 => Word::State("internal"),
            502 | 504..=599 => Word::Down,
            _ => Word::Nonsense,
        }
    }
}

enum Word {
    State(&'static str),
    Full,
    Down,
    Nonsense,
}

/// The text between the first pair of tags of that name. An error's document is flat, and names no other so.
fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<').map_or(rest, |(text, _)| text))
}

/// A server's words for one line of a log: no control characters, and not too many.
pub(super) fn plain(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str) -> Refusal {
        Refusal::read("GET", status, format!("<Error><Code>{code}</Code><Message>why</Message></Error>").as_bytes())
    }

    #[test]
    fn each_state_of_the_server_has_one_word() {
        let words = [
            (403, "SignatureDoesNotMatch", "signature"),
            (403, "RequestTimeTooSkewed", "clock"),
            (500, "InternalError", "internal"),
            (404, "NoSuchBucket", "no-bucket"),
            (400, "ExpiredToken", "auth"),
            (400, "AuthorizationHeaderMalformed", "region"),
            (301, "PermanentRedirect", "region"),
            (308, "", "redirect"),
            (503, "SlowDown", "throttled"),
            (503, "", "throttled"),
            (429, "", "throttled"),
            (409, "OperationAborted", "conflict"),
        ];
        for (status, code, expected) in words {
            let fault = refusal(status, code).fault("text".to_owned());
            assert_eq!(fault, Fault::Refused { word: expected, text: "text".to_owned() }, "{status} {code}");
        }
    }

    #[test]
    fn who_may_not_read_is_told_which_permission_may_be_missing() {
        for (status, code) in [(403, "InvalidAccessKeyId"), (403, "AccessDenied"), (403, "Other"), (401, "")] {
            for method in ["GET", "PUT"] {
                let refusal = Refusal { method: method.to_owned(), ..refusal(status, code) };
                let fault = refusal.fault(String::new());
                let Fault::Refused { word: "permission", text } = fault else { panic!("{status} {code}: {fault:?}") };
                let expected = method == "GET" && code == "AccessDenied";
                assert_eq!(text.contains("s3:ListBucket"), expected, "{method} {code}");
            }
        }
    }

    #[test]
    fn full_storage_is_full_and_a_broken_server_is_unreachable() {
        let text = || "text".to_owned();
        for (status, code) in [(403, "QuotaExceeded"), (507, "XMinioStorageFull"), (507, "")] {
            assert_eq!(refusal(status, code).fault(text()), Fault::Full(text()), "{status} {code}");
        }
        for (status, code) in [(502, ""), (504, ""), (400, "RequestTimeout")] {
            assert_eq!(refusal(status, code).fault(text()), Fault::Unreachable(text()), "{status} {code}");
        }
    }

    #[test]
    fn an_object_is_absent_only_where_the_server_says_so() {
        assert!(refusal(404, "NoSuchKey").absent());
        assert!(!refusal(404, "NoSuchBucket").absent());
        assert!(!Refusal::read("GET", 404, b"<html>no such page</html>").absent());
        assert!(!refusal(403, "NoSuchKey").absent());
    }

    #[test]
    fn of_a_body_only_code_and_message_are_kept() {
        let body = b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>The signature\ndiffers\
            </Message><CanonicalRequest>x-amz-security-token:TOKEN</CanonicalRequest></Error>";
        let refusal = Refusal::read("PUT", 403, body);
        assert_eq!(refusal.to_string(), "PUT answered 403 SignatureDoesNotMatch: The signature differs");
        assert_eq!(Refusal::read("GET", 502, b"").to_string(), "GET answered 502");
    }

    #[test]
    fn a_long_or_cut_body_is_no_trouble() {
        let long = format!("<Code>{}", "x".repeat(10_000));
        assert_eq!(Refusal::read("GET", 400, long.as_bytes()).code.len(), TEXT_MAX_CHARS);
        assert_eq!(Refusal::read("GET", 400, b"<Code>Slow\xff\xfe").code, "Slow\u{fffd}\u{fffd}");
    }
}
