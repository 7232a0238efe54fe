//! Requests to a hub: redirects by hand, so that the token stays with the host it is for.

use std::io::Read;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use super::HubOptions;
use crate::error::{Error, ErrorKind, Result};

const MAX_REDIRECTS: usize = 6;
/// Times a request is repeated after a failure that may pass.
pub(super) const RETRIES: u32 = 4;

pub(super) struct Client<'a> {
    agent: Agent,
    base: String,
    token: Option<&'a str>,
    wait: Duration,
}

/// A failed request.
pub(super) enum Failure {
    /// May work next time.
    Passing(String),
    Lasting(Error),
}

pub(super) struct Answer {
    pub response: Response<Body>,
    /// Headers the hub gave before it redirected.
    first: Vec<(String, String)>,
}

impl Answer {
    /// A header of the hub's own answer, else of the final one.
    pub fn header(&self, name: &str) -> Option<&str> {
        let first = self.first.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
        first.or_else(|| self.response.headers().get(name).and_then(|v| v.to_str().ok()))
    }
}

impl<'a> Client<'a> {
    pub fn new(base: &str, token: Option<&'a str>, options: &HubOptions) -> Self {
        let base = base.trim_end_matches('/').to_string();
        let host = base.parse::<Uri>().ok().and_then(|u| u.host().map(str::to_string)).unwrap_or_default();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Sizes and ranges are those of the file.
            .accept_encoding("identity")
            .user_agent(concat!("oxiline/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(options.connect_timeout))
            .timeout_connect(Some(options.connect_timeout))
            .timeout_recv_response(Some(options.read_timeout))
            .timeout_per_read(Some(options.read_timeout));
        // This machine is not reached through a proxy.
        if host == "localhost" || host.starts_with("127.") || host == "[::1]" {
            config = config.proxy(None);
        }
        Self { agent: config.build().into(), base, token, wait: options.retry_wait }
    }

    /// Pauses before repetition number `n`.
    pub fn pause(&self, n: u32) {
        std::thread::sleep(self.wait * 2u32.saturating_pow(n.min(6)));
    }

    pub fn host(&self) -> String {
        self.base.parse::<Uri>().ok().and_then(|u| u.host().map(str::to_string)).unwrap_or_else(|| self.base.clone())
    }

    /// One request, redirects followed. With `stop_outside`, a redirect to another host ends it:
    /// its headers are what was asked for.
    pub fn send(&self, path: &str, head: bool, from: u64, stop_outside: bool) -> Result<Answer, Failure> {
        let lasting = |text: String| Failure::Lasting(Error::new(ErrorKind::Network, text));
        let mut url = format!("{}{path}", self.base);
        let mut first: Vec<(String, String)> = Vec::new();
        for _ in 0..=MAX_REDIRECTS {
            let target: Uri = url.parse().map_err(|_| lasting(format!("{url}: not a URL; check OXILINE_HUB")))?;
            let ours = origin(&target) == self.base.parse::<Uri>().ok().as_ref().and_then(origin);
            let mut request = if head { self.agent.head(&url) } else { self.agent.get(&url) };
            if let Some(token) = self.token.filter(|_| ours) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            let response = request.call().map_err(|e| self.failed(&target, &e))?;
            let location = response.headers().get("location").and_then(|v| v.to_str().ok());
            let (true, Some(location)) = (response.status().is_redirection(), location) else {
                return Ok(Answer { response, first });
            };
            let next = absolute(&target, location).ok_or_else(|| lasting(format!("{url}: redirects to nowhere")))?;
            let next_uri: Uri = next.parse().map_err(|_| lasting(format!("{url}: redirects to nowhere")))?;
            if target.scheme_str() == Some("https") && next_uri.scheme_str() != Some("https") {
                return Err(lasting(format!("{}: redirects to an unencrypted place; not followed", self.host())));
            }
            for (name, value) in response.headers() {
                let name = name.as_str();
                if name.starts_with("x-") && !first.iter().any(|(k, _)| k == name) {
                    first.extend(value.to_str().ok().map(|v| (name.to_string(), v.to_string())));
                }
            }
            if stop_outside && origin(&next_uri) != origin(&target) {
                return Ok(Answer { response, first });
            }
            url = next;
        }
        Err(lasting(format!("{}: redirects more than {MAX_REDIRECTS} times", self.host())))
    }

    fn failed(&self, target: &Uri, error: &ureq::Error) -> Failure {
        let host = target.host().unwrap_or("?");
        match error {
            ureq::Error::HostNotFound => Failure::Lasting(Error::new(
                ErrorKind::Network,
                format!("{host}: its address can't be found; is there a network?"),
            )),
            ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) | ureq::Error::ConnectionFailed => {
                Failure::Lasting(Error::new(ErrorKind::Network, format!("{host}: no connection; is there a network?")))
            }
            ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Failure::Lasting(Error::new(
                ErrorKind::Network,
                format!("{host}: it refuses connections; is there a network?"),
            )),
            e => Failure::Passing(format!("{host}: {e}")),
        }
    }

    /// The status of an answer as a failure.
    pub fn judge(&self, status: u16, what: &str) -> Option<Failure> {
        let host = self.host();
        let lasting = |kind, text: String| Some(Failure::Lasting(Error::new(kind, text)));
        match status {
            200..=399 => None,
            401 | 403 => lasting(
                ErrorKind::Denied,
                if self.token.is_some() {
                    format!(
                        "{what}: {host} refuses the token ({status}); check HF_TOKEN and accept the model's terms there"
                    )
                } else {
                    format!(
                        "{what}: {host} gives no access ({status}); check the name, or set HF_TOKEN for a gated model"
                    )
                },
            ),
            404 | 410 => {
                lasting(ErrorKind::NotFound, format!("{what}: not on {host}; check the name and the revision"))
            }
            408 | 425 | 429 | 500..=599 => Some(Failure::Passing(format!("{what}: {host} answers {status}"))),
            _ => lasting(ErrorKind::Network, format!("{what}: {host} answers {status}")),
        }
    }

    /// A small text, repeated until it works.
    pub fn text(&self, path: &str, what: &str, limit: u64) -> Result<String> {
        self.repeat(|| {
            let mut answer = self.send(path, false, 0, false)?;
            if let Some(failure) = self.judge(answer.response.status().as_u16(), what) {
                return Err(failure);
            }
            let mut text = String::new();
            let body = answer.response.body_mut().as_reader();
            body.take(limit).read_to_string(&mut text).map_err(|e| Failure::Passing(format!("{what}: {e}")))?;
            Ok(text)
        })
    }

    /// Repeats `work` while its failures may pass.
    pub fn repeat<T>(&self, mut work: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut n = 0;
        loop {
            match work() {
                Ok(value) => return Ok(value),
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing(text)) if n == RETRIES => {
                    return Err(Error::new(ErrorKind::Network, format!("{text} ({} tries); try again later", n + 1)));
                }
                Err(Failure::Passing(_)) => self.pause(n),
            }
            n += 1;
        }
    }
}

fn origin(uri: &Uri) -> Option<(String, String, Option<u16>)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().or(match scheme.as_str() {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

fn absolute(from: &Uri, location: &str) -> Option<String> {
    if location.contains("://") {
        return Some(location.to_string());
    }
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    if let Some(rest) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    location.starts_with('/').then(|| format!("{scheme}://{authority}{location}"))
}
