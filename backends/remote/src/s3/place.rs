//! The URL of a bucket, in either style, checked so far that no request below it can fail to be formed.

use reqwest::Url;
use reqwest::header::HeaderValue;

use super::SetupError;
use crate::options;

/// Bounds of a bucket's name, in bytes, as S3 has them.
const BUCKET_BYTES: std::ops::RangeInclusive<usize> = 3..=63;

/// The bucket's URL, without a slash at its end.
pub(super) fn bucket_url(options: &options::S3) -> Result<String, SetupError> {
    let options::S3 { bucket, region, .. } = options;
    let all = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
    if !BUCKET_BYTES.contains(&bucket.len()) || !all(bucket, ".-_") || bucket.contains("..") {
        return Err(SetupError::Bucket(bucket.clone()));
    }
    // It goes into the name of AWS's endpoint and into the header that signs.
    if region.is_empty() || !all(region, "-_") {
        return Err(SetupError::Region(region.clone()));
    }
    let endpoint = options.endpoint.clone().unwrap_or_else(|| aws(region));
    let wrong = |fault| SetupError::Endpoint { endpoint: endpoint.clone(), fault };
    let mut url = Url::parse(&endpoint).map_err(|_| wrong("it is no URL; give one as \"https://s3.example:9000\""))?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("give scheme, host and port alone"));
    }
    match url.scheme() {
        "https" => {}
        "http" if options.allow_http => {}
        "http" => return Err(wrong("give https, or allow_http = true")),
        _ => return Err(wrong("give https")),
    }
    if options.path_style {
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{bucket}"));
    } else {
        let Some(host) = url.domain().map(|host| format!("{bucket}.{host}")) else {
            return Err(wrong(
                "path_style = false puts the bucket before a host's name; give one, or path_style = true",
            ));
        };
        if url.set_host(Some(&host)).is_err() {
            return Err(wrong("no host's name can begin with this bucket's; give path_style = true"));
        }
    }
    let text = url.as_str().trim_end_matches('/').to_owned();
    // Both are made of it for every request, where a failure would be a panic.
    let host = text.split('/').nth(2).unwrap_or_default();
    if text.parse::<http::Uri>().is_err() || HeaderValue::from_str(host).is_err() {
        return Err(wrong("no request can go there; give scheme, host and port alone"));
    }
    Ok(text)
}

/// AWS's endpoint for a region; China has a domain of its own.
fn aws(region: &str) -> String {
    let china = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://s3.{region}.amazonaws.com{china}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: Option<&str>, path_style: bool) -> options::S3 {
        options::S3 {
            endpoint: endpoint.map(str::to_owned),
            region: "eu-west-1".to_owned(),
            bucket: "blocks".to_owned(),
            credentials: options::Credentials::Environment,
            credentials_file: None,
            path_style,
            allow_http: true,
            connections: 1,
        }
    }

    #[test]
    fn the_bucket_stands_in_the_path_or_before_the_host() {
        let cases = [
            (Some("https://s3.example:9000"), true, "https://s3.example:9000/blocks"),
            (Some("https://s3.example:9000/"), false, "https://blocks.s3.example:9000"),
            (Some("http://127.0.0.1:8333/base/"), true, "http://127.0.0.1:8333/base/blocks"),
            (Some("http://[::1]:8333"), true, "http://[::1]:8333/blocks"),
            (None, true, "https://s3.eu-west-1.amazonaws.com/blocks"),
            (None, false, "https://blocks.s3.eu-west-1.amazonaws.com"),
        ];
        for (endpoint, path_style, expected) in cases {
            assert_eq!(bucket_url(&options(endpoint, path_style)).unwrap(), expected);
        }
        let china = options::S3 { region: "cn-north-1".to_owned(), ..options(None, false) };
        assert_eq!(bucket_url(&china).unwrap(), "https://blocks.s3.cn-north-1.amazonaws.com.cn");
    }

    #[test]
    fn what_no_request_can_go_to_is_refused_by_name() {
        let cases = [
            ("https://", true, "no URL"),
            ("https://a b", true, "no URL"),
            ("ftp://s3.example", true, "https"),
            ("https://key:secret@s3.example", true, "host and port alone"),
            ("https://s3.example/?a=b", true, "host and port alone"),
            ("https://127.0.0.1:9000", false, "path_style"),
        ];
        for (endpoint, path_style, expected) in cases {
            let refused = bucket_url(&options(Some(endpoint), path_style)).unwrap_err().to_string();
            assert!(refused.starts_with("endpoint = ") && refused.contains(expected), "{refused}");
        }
        let plain = options::S3 { allow_http: false, ..options(Some("http://s3.example"), true) };
        assert!(bucket_url(&plain).unwrap_err().to_string().contains("allow_http"));
        for bucket in ["kv", "a..b", "a/b", "b\u{fc}cket", &"x".repeat(64)] {
            let named = options::S3 { bucket: bucket.to_owned(), ..options(None, true) };
            assert!(bucket_url(&named).unwrap_err().to_string().starts_with("bucket = "));
        }
        let region = options::S3 { region: "eu\nwest".to_owned(), ..options(None, true) };
        assert!(bucket_url(&region).unwrap_err().to_string().starts_with("region = "));
    }
}
