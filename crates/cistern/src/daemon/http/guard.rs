//! Who may look at the dashboard: whoever has the token, or, without one, whoever is on this host.
//!
//! A browser of this host may be led here by any page it shows, under a name of that page's owner (DNS rebinding): without a token a
//! request has to name this host as a host names itself.

use std::{
    io::Read,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
    http::request::Parts,
};
use subtle::ConstantTimeEq;

use super::{HttpBody, text};
use crate::failure::{Failure, Outcome};

/// Bytes of the longest token file; anything larger is the wrong file.
const TOKEN_BYTES_MAX: u64 = 1024;
/// Characters below which a token could be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// The cookie that browsers show.
const COOKIE: &str = "cistern_token";
const HINT: &str = "make one with `head -c 24 /dev/urandom | base64`";

/// What lets a client in.
pub enum Guard {
    /// That it names this host as only this host does.
    Loopback,
    Token(Token),
}

/// What clients show.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Reads the first line of a file.
    pub fn read(path: &Path) -> Outcome<Token> {
        let shown = path.display();
        let failed =
            |e: std::io::Error| Failure::io(format!("the token file {shown} cannot be read"), &e).hint(HINT);
        let mut content = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut content).map_err(failed)?;
        let token = content.trim();
        let wrong = |why: String| Failure::usage(format!("the token file {shown} {why}")).hint(HINT);
        if token.is_empty() {
            return Err(wrong("is empty".into()));
        }
        if content.len() as u64 > TOKEN_BYTES_MAX {
            return Err(wrong(format!("has more than {TOKEN_BYTES_MAX} bytes: is it the right one?")));
        }
        if token.len() < TOKEN_CHARS_MIN {
            return Err(wrong(format!("has less than {TOKEN_CHARS_MIN} characters: that could be guessed")));
        }
        if !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
            return Err(wrong("has more than letters, digits and -._~+/=".into()));
        }
        Ok(Token(token.to_owned()))
    }

    /// Takes the same time whatever is shown.
    fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl Guard {
    /// Lets a request in, or says what to answer it.
    #[expect(clippy::result_large_err, reason = "it is the answer")]
    pub fn admit(&self, head: &Parts) -> Result<(), Response<HttpBody>> {
        match self {
            Guard::Loopback if names_this_host(head) => Ok(()),
            Guard::Loopback => Err(text(
                StatusCode::FORBIDDEN,
                "this dashboard is for its host alone: open it as localhost, or give cistern serve --dashboard-token-file\n",
            )),
            Guard::Token(token) if shown(head).any(|shown| token.is(shown)) => Ok(()),
            Guard::Token(token) => Err(match in_address(head) {
                Some(given) if token.is(given) => welcome(token),
                _ => stranger(),
            }),
        }
    }
}

/// Tokens that a request shows in its head.
fn shown(head: &Parts) -> impl Iterator<Item = &str> {
    let values = |name| head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let bearers = values(header::AUTHORIZATION).filter_map(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let cookies = values(header::COOKIE).flat_map(|value| value.split(';'));
    bearers.chain(cookies.filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('=')))
}

/// The token in the address of the page.
fn in_address(head: &Parts) -> Option<&str> {
    let query = head.uri.query().filter(|_| head.uri.path() == "/")?;
    query.split('&').find_map(|part| part.strip_prefix("token="))
}

/// Gives the browser the token to keep, and takes it out of the address.
fn welcome(token: &Token) -> Response<HttpBody> {
    let mut response = text(StatusCode::SEE_OTHER, "");
    let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict", token.0);
    let headers = response.headers_mut();
    headers
        .insert(header::SET_COOKIE, HeaderValue::from_str(&cookie).expect("of characters that it may have"));
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    response
}

fn stranger() -> Response<HttpBody> {
    let mut response = text(
        StatusCode::UNAUTHORIZED,
        "a token is needed: open /?token=TOKEN with the one in the daemon's --dashboard-token-file, or send Authorization: Bearer TOKEN\n",
    );
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn names_this_host(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.to_str().is_ok_and(is_loopback)
}

/// Whether a host with or without a port is a name or an address that leads nowhere else.
fn is_loopback(host: &str) -> bool {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (rest.is_empty() || rest.starts_with(':'))
            && address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what leads to this host whatever a name server says passes for this host.
    #[test]
    fn names_of_this_host() {
        for host in ["localhost", "LocalHost:9810", "127.0.0.1:9810", "127.8.8.8", "[::1]:9810", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org:80",
            "10.0.0.1",
            "[::2]:1",
            "[::1]x",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    /// A token file that is empty, too short to be safe, or no token says so, and what to do.
    #[test]
    fn tokens_are_checked() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("token");
        let read = |content: &str| {
            std::fs::write(&path, content).expect("writable");
            Token::read(&path).map(|token| token.0).map_err(|failure| failure.text)
        };
        assert_eq!(read("0123456789abcdef+/==\n"), Ok("0123456789abcdef+/==".into()));
        for (content, told) in [
            ("\n", "is empty"),
            ("short", "less than 16"),
            ("0123456789abcde;f", "more than letters"),
            ("two words, a sentence", "more than letters"),
            (&"x".repeat(5000), "the right one"),
        ] {
            let refused = read(content).expect_err("no token");
            assert!(refused.contains(told), "{refused}");
        }
        assert!(Token::read(&dir.path().join("none")).is_err());
        let token = Token("0123456789abcdef".into());
        assert!(token.is("0123456789abcdef") && !token.is("0123456789abcdeg") && !token.is(""));
    }
}
