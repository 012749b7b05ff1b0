//! The answers of the table: what is given, to which requests, and what may come of it.

use cistern_harness::adversary::{AdverseAnswer, Concern, Switch};

/// One line of the table.
#[derive(Clone)]
pub struct Row {
    pub name: String,
    pub answer: AdverseAnswer,
    kind: Option<&'static str>,
    part: Option<&'static str>,
}

/// Statuses, by the requests that get them.
const STATUSES: &[(u16, &str, &[&str])] = &[
    (301, "PermanentRedirect", &["LIST", "GET", "CREATE"]),
    (304, "", &["LIST", "GET", "CREATE"]),
    (403, "AccessDenied", &["LIST", "GET", "CREATE", "BULK"]),
    (404, "NoSuchKey", &["LIST", "GET", "CREATE", "BULK"]),
    (404, "NoSuchBucket", &["LIST", "GET", "CREATE"]),
    (409, "OperationAborted", &["LIST", "GET", "CREATE", "BULK"]),
    (412, "PreconditionFailed", &["LIST", "GET", "CREATE"]),
    (416, "InvalidRange", &["GET"]),
    (500, "InternalError", &["LIST", "GET", "CREATE", "BULK"]),
    (501, "NotImplemented", &["LIST", "GET", "CREATE", "BULK"]),
    (503, "SlowDown", &["LIST", "GET", "CREATE", "BULK"]),
];

/// Parts of names that listings, and bodies, are of.
const PARTS: &[&str] = &["log/", "map/", "checkpoint", "volume.json"];

impl Row {
    fn of(answer: AdverseAnswer) -> Row {
        Row { name: format!("{answer:?}"), answer, kind: None, part: None }
    }

    fn only(self, kind: &'static str) -> Row {
        Row { name: format!("{} to {kind}", self.name), kind: Some(kind), ..self }
    }

    fn within(self, part: &'static str) -> Row {
        Row { name: format!("{} of {part}", self.name), part: Some(part), ..self }
    }

    pub fn switch(&self) -> Switch {
        let switch = Switch::every(self.answer);
        let switch = match self.kind {
            Some(kind) => switch.only(kind),
            None => switch,
        };
        match self.part {
            Some(part) => switch.within(part),
            None => switch,
        }
    }

    /// It is tried again: as long as the answer is given, a command takes up to a minute.
    pub fn is_retried(&self) -> bool {
        use AdverseAnswer::*;
        matches!(
            self.answer,
            PageCut
                | PageBroken
                | BodyShort
                | BodyBroken
                | BodyEmpty
                | BodyHtml
                | BodyGzip
                | RangeShifted
                | BulkFailed
                | StoredUnsaid
                | HangUp
                | Silence
                | Status(409 | 500 | 503, _)
        )
    }

    /// Whether a verb may believe it: the answer says what is not so, nothing in it shows that, and nothing else could.
    pub fn is_believed_by(&self, verb: &str) -> bool {
        let told = BELIEVED.iter().filter(|(answer, _)| *answer == self.answer);
        told.flat_map(|(_, verbs)| verbs.iter()).any(|known| *known == verb)
    }
}

/// Lies, and the verbs that believe them.
const BELIEVED: &[(AdverseAnswer, &[&str])] = &[
    // Which volumes lie in a place is what the listing says.
    (AdverseAnswer::EndClaimed, &["ls PLACE"]),
    (AdverseAnswer::ListingVoid, &["ls PLACE", "ls --trash", "rm --expired"]),
    // So says a place without a volume.
    (AdverseAnswer::Status(404, "NoSuchKey"), &["ls --trash", "rm --expired"]),
];

/// The table's own lines. No store keeps silent for ever in it: every cell would take as long as a command is patient.
pub fn rows() -> Vec<Row> {
    let own = AdverseAnswer::ALL.iter().map(|answer| Row::of(*answer));
    let own = own.filter(|row| row.answer != AdverseAnswer::Silence && row.answer.concern() != Concern::Head);
    let statuses = STATUSES.iter().flat_map(|(status, code, kinds)| {
        kinds.iter().map(move |kind| Row::of(AdverseAnswer::Status(*status, code)).only(kind))
    });
    let html = ["LIST", "GET", "CREATE"].map(|kind| Row::of(AdverseAnswer::StatusHtml(404)).only(kind));
    own.chain(statuses).chain(html).collect()
}

/// The same of a part of the names: what comes first is answered well.
pub fn deep_rows() -> Vec<Row> {
    let concerned = |row: &Row| matches!(row.answer.concern(), Concern::Listing | Concern::Body);
    let rows: Vec<Row> = rows().into_iter().filter(concerned).collect();
    let of = |row: &Row| {
        let is_body = row.answer.concern() == Concern::Body;
        let parts = PARTS.iter().filter(|part| is_body || **part != "volume.json");
        parts.map(|part| row.clone().within(part)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of).collect()
}
