//! Sorts a failed request by recourse: gone, later, or never. A pure function of what was asked
//! and what was answered.

use std::{collections::HashSet, error::Error, fmt};

use object_store::client::HttpError;

use super::{
    StoreError, StoreResult, Undeleted,
    answer::{Answer, CertificateFault, DeleteFault, KeysFault, root_cause},
    keys::no_keys,
};

/// What a request wanted, for decisions and messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub what: &'static str,
    pub key: &'a str,
    /// The request was to succeed only where no object is.
    pub condition: bool,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, if self.key.is_empty() { "/" } else { self.key })
    }
}

/// A failure, or one of the two that are answers.
#[derive(Debug)]
pub(super) enum Sorted {
    /// The condition was not met: an object is there.
    Exists,
    /// The range begins behind the end of the object.
    BeyondEnd,
    Error(StoreError),
}

impl From<StoreError> for Sorted {
    fn from(e: StoreError) -> Self {
        Sorted::Error(e)
    }
}

impl From<Sorted> for StoreError {
    fn from(sorted: Sorted) -> Self {
        match sorted {
            Sorted::Error(e) => e,
            Sorted::Exists => StoreError::Refused("a condition failed that was not set".to_owned()),
            Sorted::BeyondEnd => StoreError::Refused("a range was refused that was not asked for".to_owned()),
        }
    }
}

/// Sorts the failure `e` of a request whose last HTTP exchange ended with `answer`.
pub(super) fn sort(asked: Asked<'_>, answer: Option<Answer>, e: &object_store::Error) -> Sorted {
    if let Some(why) = no_keys(e)
        && !matches!(answer, Some(Answer::NoKeys { .. }))
    {
        return within(asked, why).into();
    }
    let sorted = match answer {
        Some(Answer::NoKeys { host, is_machine, fault }) => keyless(asked, &host, is_machine, fault),
        Some(Answer::Status { status, code, message, html }) => {
            return by_status(asked, status, &code, &message, html);
        }
        // Inside a batch answer, as Azure gives it for deletes.
        Some(Answer::Deletion { .. }) => {
            StoreError::Refused(format!("{asked}: not the answer to a deletion ({})", root_cause(e)))
        }
        Some(Answer::Fine { .. } | Answer::Page { .. })
            if matches!(e, object_store::Error::NotFound { .. }) =>
        {
            StoreError::NotFound(asked.key.to_owned())
        }
        Some(Answer::Fine { .. } | Answer::Page { .. }) => match broke_off(e) {
            true => StoreError::Unreachable(format!("{asked}: the answer broke off: {}", root_cause(e))),
            false => StoreError::Refused(format!(
                "{asked}: not the answer of an object store ({}). Is the endpoint right?",
                root_cause(e)
            )),
        },
        Some(Answer::NoListing) => {
            StoreError::Refused(format!("{asked}: the answer is no listing. Is the endpoint right?"))
        }
        Some(Answer::TooLong) => StoreError::Refused(format!("{asked}: the answer has no end")),
        Some(Answer::Broken { host, cause }) => StoreError::Unreachable(format!("{asked}: {host}: {cause}")),
        Some(Answer::OtherScheme { host, tls_there }) => {
            let (there, should) = if tls_there { ("no plain HTTP", "https") } else { ("no TLS", "http") };
            StoreError::Refused(format!(
                "{asked}: {host} speaks {there}: does its address begin with {should}://?"
            ))
        }
        Some(Answer::Distrusted { host, fault }) => {
            StoreError::Refused(format!("{asked}: {host}: {}", distrust(&fault)))
        }
        None => StoreError::Refused(format!("{asked}: {}", root_cause(e))),
    };
    sorted.into()
}

/// Why a certificate is not accepted, and what to do.
fn distrust(fault: &CertificateFault) -> String {
    match fault {
        CertificateFault::UnknownAuthority => {
            "its certificate is signed by nobody whom this host trusts. AWS_CA_BUNDLE (S3) or SSL_CERT_FILE can name a file with the \
             certificate of that authority"
        }
        CertificateFault::Authority => {
            "its certificate is marked as an authority's own, as `openssl req -x509` does it. Make one with \
             basicConstraints=CA:FALSE, or sign one with it"
        }
        CertificateFault::OtherName => "its certificate is for another name. Use the name it is for in the endpoint",
        CertificateFault::Expired => "its certificate has expired, or the clock of this host is ahead",
        CertificateFault::NotYetValid => "its certificate is not valid yet: is the clock of this host behind?",
        CertificateFault::Other(cause) => return format!("its certificate is not accepted: {cause}"),
    }
    .to_owned()
}

/// Sorts that a request had no keys because nobody gave them.
fn keyless(asked: Asked<'_>, host: &str, is_machine: bool, fault: KeysFault) -> StoreError {
    match fault {
        KeysFault::Status { status, code, message } => {
            let text = describe(
                &format!("{asked}: no credentials: {host} answered"),
                status,
                &code,
                &message,
                false,
            );
            match status {
                408 | 429 | 500..=599 => StoreError::Unreachable(text),
                404 if is_machine => StoreError::Refused(format!("{text}. Has this machine a role?")),
                _ => StoreError::Refused(text),
            }
        }
        // Who has none at hand is usually not in a cloud at all.
        KeysFault::Broken { cause, answered_before: false } if is_machine => StoreError::Refused(format!(
            "{asked}: no credentials were given, and nobody on this machine gives some ({host}: {cause}). \
                 `cistern create --help` says how to give some"
        )),
        KeysFault::Broken { cause, .. } => {
            StoreError::Unreachable(format!("{asked}: no credentials yet: {host}: {cause}"))
        }
    }
}

/// The same failure, of this request.
fn within(asked: Asked<'_>, why: StoreError) -> StoreError {
    match why {
        StoreError::Unreachable(why) => StoreError::Unreachable(format!("{asked}: {why}")),
        why => StoreError::Refused(format!("{asked}: {why}")),
    }
}

/// Sorts what a bulk delete says that it did not delete.
///
/// # Errors
/// `Refused` when it speaks of what it was not asked to delete, or not of all that it was: what it did is not known then.
pub(super) fn undeleted(
    asked: Asked<'_>,
    keys: &[String],
    root: &str,
    deleted: &[String],
    faults: Vec<DeleteFault>,
) -> StoreResult<Vec<Undeleted>> {
    let known: HashSet<&str> = keys.iter().map(String::as_str).collect();
    let mut told: HashSet<&str> = deleted.iter().filter_map(|key| key.strip_prefix(root)).collect();
    let mut undeleted = Vec::new();
    for DeleteFault { key, code, message } in &faults {
        let Some(key) = key.strip_prefix(root).filter(|key| known.contains(key)) else {
            return Err(StoreError::Refused(format!(
                "{asked}: the answer is about {key:?}, which was not asked for"
            )));
        };
        told.insert(key);
        let text = format!("DELETE {key}: {code}: {message}");
        let why = match code.as_str() {
            "NoSuchKey" | "NoSuchVersion" => continue,
            "InternalError" | "SlowDown" | "ServiceUnavailable" | "OperationAborted" | "RequestTimeout"
            | "Throttling" | "TooManyRequests" => StoreError::Unreachable(text),
            code => StoreError::Refused(format!("{text}. {}", access_hint(code).unwrap_or(WHAT_IS_NEEDED))),
        };
        undeleted.push(Undeleted { key: key.to_owned(), why });
    }
    if let Some(key) = keys.iter().find(|key| !told.contains(key.as_str())) {
        return Err(StoreError::Refused(format!(
            "{asked}: the answer does not say whether {key} is deleted"
        )));
    }
    Ok(undeleted)
}

/// Whether a body ended before its announced length, or never came.
fn broke_off(e: &object_store::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(e);
    while let Some(e) = cause {
        if e.is::<HttpError>() {
            return true;
        }
        cause = e.source();
    }
    false
}

fn by_status(asked: Asked<'_>, status: u16, code: &str, message: &str, html: bool) -> Sorted {
    let text = describe(&format!("{asked}:"), status, code, message, html);
    match (status, code) {
        (404, "NoSuchBucket" | "ContainerNotFound") => {
            StoreError::Refused(format!("{text}. Make the bucket first, or correct its name in the URL"))
                .into()
        }
        // Without a code it is a proxy's answer, whose server is away.
        (404, code) if !html && !code.is_empty() && asked.what != "LIST" => {
            StoreError::NotFound(asked.key.to_owned()).into()
        }
        (409, "BlobAlreadyExists") | (304 | 412, _) if asked.condition => Sorted::Exists,
        (416, _) => Sorted::BeyondEnd,
        (403, "InvalidObjectState") | (409, "BlobArchived" | "BlobBeingRehydrated") => {
            let why =
                "was archived: restore it from its storage class, and end the rule that archives".to_owned();
            StoreError::Unusable { key: asked.key.to_owned(), why }.into()
        }
        (413, "EntityTooLarge" | "RequestBodyTooLarge") => {
            let text = format!(
                "{text}. The store takes no object of this size; `cistern probe URL` shows what it takes"
            );
            StoreError::Refused(text).into()
        }
        (413 | 507, _) | (_, "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" | "XMinioStorageFull")
            if asked.what == "PUT" =>
        {
            StoreError::NoRoom(format!("{text}. {}", no_room_hint(status))).into()
        }
        (400 | 401 | 403, _) if let Some(hint) = access_hint(code) => {
            StoreError::Refused(format!("{text}. {hint}")).into()
        }
        (401 | 403, _) => StoreError::Refused(format!("{text}. {WHAT_IS_NEEDED}")).into(),
        (301 | 302 | 307 | 308, _)
        | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            StoreError::Refused(format!("{text}. Set AWS_REGION to the region of the bucket")).into()
        }
        (400, "") => {
            StoreError::Refused(format!("{text}. Is the endpoint right, and its http or https?")).into()
        }
        (404, "") if !html => {
            let text =
                format!("{text}, without an error code: something that is not an object store answers here");
            StoreError::Refused(text).into()
        }
        (501, _) => StoreError::Refused(format!("{text}. This server lacks something cistern needs")).into(),
        (408 | 409 | 425 | 429 | 500..=599, _) => StoreError::Unreachable(text).into(),
        // What the server received is not what was sent, or not all of it.
        (
            400,
            "RequestTimeout" | "BadDigest" | "XAmzContentSHA256Mismatch" | "IncompleteBody" | "Md5Mismatch",
        ) => StoreError::Unreachable(text).into(),
        _ => StoreError::Refused(text).into(),
    }
}

/// What to do where there is no room.
fn no_room_hint(status: u16) -> &'static str {
    match status {
        413 => {
            "Its quota is used up, or it limits the size of objects (`cistern probe URL` shows that). It needs a larger one"
        }
        507 => {
            "The disks of the store are full: make room there, or discard what is not needed (`fstrim`, `blkdiscard`)"
        }
        _ => {
            "The quota is used up: it needs a larger one, or discard what is not needed (`fstrim`, `blkdiscard`) and remove snapshots \
             (`cistern rm URL@NAME`)"
        }
    }
}

fn describe(what: &str, status: u16, code: &str, message: &str, html: bool) -> String {
    let mut text = format!("{what} {status}");
    if !code.is_empty() {
        text += &format!(" {code}");
    }
    if !message.is_empty() {
        text += &format!(": {}", message.trim_end_matches('.'));
    }
    if html {
        text += " with a web page: something that is not an object store answers here";
    }
    text
}

const WHAT_IS_NEEDED: &str = "Check the credentials and what they allow: get, put, list, delete";

/// What to do about a refusal that names its cause. Amazon sends some of these with 400.
fn access_hint(code: &str) -> Option<&'static str> {
    Some(match code {
        "RequestTimeTooSkewed" => "Set the clock of this machine",
        "InvalidAccessKeyId" => "Check the credentials: AWS_ACCESS_KEY_ID is no key of this store",
        "SignatureDoesNotMatch" => "Check the credentials: AWS_SECRET_ACCESS_KEY does not belong to the key",
        "AuthenticationFailed" => "Check the credentials",
        "ExpiredToken" | "TokenRefreshRequired" => "The credentials have expired: get new ones",
        "InvalidToken" => "Check the credentials: AWS_SESSION_TOKEN does not belong to the key",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(what: &'static str, condition: bool, status: u16, code: &str) -> Sorted {
        by_status(Asked { what, key: "log/7", condition }, status, code, "", false)
    }

    /// Every status has one recourse, and conditions fail only where one was set.
    #[test]
    fn statuses_are_sorted_by_recourse() {
        assert!(matches!(sorted("GET", false, 404, "NoSuchKey"), Sorted::Error(StoreError::NotFound(_))));
        assert!(matches!(sorted("GET", false, 404, "NoSuchBucket"), Sorted::Error(StoreError::Refused(_))));
        assert!(matches!(sorted("LIST", false, 404, ""), Sorted::Error(StoreError::Refused(_))));
        assert!(matches!(sorted("PUT", true, 412, "PreconditionFailed"), Sorted::Exists));
        assert!(matches!(sorted("PUT", true, 409, "BlobAlreadyExists"), Sorted::Exists));
        assert!(matches!(sorted("PUT", false, 412, ""), Sorted::Error(StoreError::Refused(_))));
        assert!(matches!(sorted("GET", false, 416, "InvalidRange"), Sorted::BeyondEnd));
        for status in [408, 409, 429, 500, 502, 503, 504] {
            let s = sorted("PUT", true, status, "ConditionalRequestConflict");
            assert!(matches!(s, Sorted::Error(StoreError::Unreachable(_))), "{status}");
        }
        for status in [301, 307, 400, 401, 403, 405, 501] {
            let s = sorted("PUT", true, status, "");
            assert!(matches!(s, Sorted::Error(StoreError::Refused(_))), "{status}");
        }
    }

    /// A refusal that names its cause says what to do about it, with whatever status it comes.
    #[test]
    fn a_named_cause_has_its_hint() {
        for (status, code, hint) in [
            (400, "ExpiredToken", "expired: get new ones"),
            (403, "ExpiredToken", "expired: get new ones"),
            (400, "InvalidToken", "AWS_SESSION_TOKEN"),
            (403, "RequestTimeTooSkewed", "the clock"),
            (403, "AccessDenied", "what they allow"),
        ] {
            let Sorted::Error(StoreError::Refused(why)) = sorted("PUT", true, status, code) else {
                panic!("{status} {code}")
            };
            assert!(why.contains(hint), "{why}");
        }
    }

    /// What was archived is one object's fault, and named.
    #[test]
    fn an_archived_object_is_named() {
        for (status, code) in [(403, "InvalidObjectState"), (409, "BlobArchived")] {
            let Sorted::Error(StoreError::Unusable { key, why }) = sorted("GET", false, status, code) else {
                panic!("{status} {code}")
            };
            assert!(key == "log/7" && why.contains("archived"), "{key} {why}");
        }
    }

    /// A quota is no fault of the keys, and no store that is away: a put finds no room.
    #[test]
    fn a_quota_is_named() {
        for (status, code, named) in [
            (403, "QuotaExceeded", "quota"),
            (400, "XMinioAdminBucketQuotaExceeded", "quota"),
            (413, "", "quota"),
            (507, "", "full"),
            (507, "XMinioStorageFull", "full"),
        ] {
            let Sorted::Error(StoreError::NoRoom(why)) = sorted("PUT", true, status, code) else {
                panic!("{status} {code}")
            };
            assert!(why.contains(named) && !why.contains("credentials"), "{why}");
            let other = sorted("LIST", false, status, code);
            assert!(
                !matches!(other, Sorted::Error(StoreError::NoRoom(_))),
                "only a put needs room: {other:?}"
            );
        }
        let Sorted::Error(StoreError::Refused(why)) = sorted("PUT", true, 413, "EntityTooLarge") else {
            panic!("another size helps, and no room does")
        };
        assert!(why.contains("no object of this size"), "{why}");
    }

    /// A web page with status 404 comes from a proxy and says nothing about an object.
    #[test]
    fn a_web_page_is_not_not_found() {
        let s = by_status(Asked { what: "GET", key: "log/7", condition: false }, 404, "", "", true);
        assert!(matches!(s, Sorted::Error(StoreError::Refused(why)) if why.contains("web page")));
    }
}
