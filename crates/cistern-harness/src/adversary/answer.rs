//! The answers that a correct store does not give, each with the servers that are known to give it.

/// Which requests an answer is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    Listing,
    /// A GET of an object.
    Body,
    Head,
    /// A PUT that must not overwrite.
    Creation,
    /// Any PUT.
    Put,
    BulkDeletion,
    /// Any deletion.
    Deletion,
    Everything,
}

/// One wrong answer. Where no server is named, a proxy, a gateway or a test double is known to give it, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdverseAnswer {
    /// A cut page without a token (fake-gcs-server; Ceph's radosgw in front of some indexless buckets).
    TokenMissing,
    /// A cut page with an empty token (older versions of SeaweedFS).
    TokenEmpty,
    /// A cut page with the token that it was asked by (gateways that cache listings).
    TokenRepeated,
    /// Nothing of what follows, and no token (servers that only know version 1 of the listing, asked for 2).
    EndUnsaid,
    /// A token, and nothing of whether the page is cut.
    EndUnsaidToken,
    /// Every page says that it is cut, also the last one, without a token.
    MoreForEver,
    /// Behind the last name follow empty pages, each with a new token.
    EmptyForEver,
    /// Every page is the first one, with a new token.
    FirstForEver,
    /// Every page begins with the last name of the one before.
    NamesRepeated,
    /// Tokens and `start-after` are ignored, and no token is given (version 1 of the protocol, whose `marker` nobody sends).
    VersionOne,
    /// The document ends in its middle, with the `Content-Length` of what came (a proxy with a limit).
    PageCut,
    /// The connection ends in the middle of the document.
    PageBroken,
    /// The first object of a page has no size (some listings of hierarchical file systems).
    SizeMissing,
    /// The first object of a page has no name.
    NameMissing,
    /// Names descend (directory buckets of S3 Express list in no order).
    NamesDescend,
    /// A web page with 200 (captive portals, load balancers).
    PageHtml,
    /// 200 and no body.
    PageEmpty,
    /// Half of the names that were asked for, correctly continued. Every client has to bear it.
    PageShort,
    /// A cut page that says that it is the last one: a lie that the document does not show.
    EndClaimed,
    /// An empty and complete listing: a lie that the document does not show (a bucket behind a stale replica).
    ListingVoid,

    /// Half of a body, with the length of what came.
    BodyShort,
    /// The connection ends in the middle of a body.
    BodyBroken,
    /// Less than the range that was asked for, and `Content-Range` says so.
    RangeShort,
    /// More than the range that was asked for, and `Content-Range` says so (caches that fetch whole blocks).
    RangeLong,
    /// 200 with the whole object for a range (proxies that drop `Range`).
    RangeIgnored,
    /// `Content-Range` of another place, and its bytes.
    RangeElsewhere,
    /// The right `Content-Range`, and bytes of another place.
    RangeShifted,
    /// 206 without `Content-Range`.
    RangeUnsaid,
    /// Success without a byte.
    BodyEmpty,
    /// A web page with 200, or 206.
    BodyHtml,
    /// The body in gzip, with `Content-Encoding`, that was not asked for.
    BodyGzip,
    /// The body of another object, with its own length and `ETag`.
    BodyOther,
    /// One bit of the body is another one.
    BodyFlipped,
    /// No `ETag`.
    TagMissing,
    /// No `Content-Length` (chunks).
    LengthMissing,
    /// HEAD without `Content-Length`.
    HeadUnsized,

    /// Every other object is deleted, and the answer speaks of no other.
    BulkOmits,
    /// Everything is deleted, and the answer names nothing.
    BulkSilent,
    /// Nothing is deleted, and a web page is the answer.
    BulkHtml,
    /// Nothing is deleted: `AccessDenied` for each.
    BulkDenied,
    /// Nothing is deleted: `InternalError` for each (S3 under load, for some).
    BulkFailed,
    /// Every other object is deleted, and all are called deleted: a lie that the answer does not show.
    BulkHalf,
    /// Success, and nothing is deleted: a lie that the answer does not show (buckets with object lock).
    DeletionVoid,

    /// `If-None-Match` is ignored (older versions of Ceph, MinIO and most emulators).
    Overwrites,
    /// In the last of so many races two writers are told that they created the object. Ends of a real emulator: one of 60.
    RaceBroken(u32),
    /// What is stored is answered with 412: the first reply was lost, and something below tried again.
    StoredRefused,
    /// What is stored is not answered: the connection ends.
    StoredUnsaid,
    /// 200 with a document that speaks of an error, and nothing is stored (S3's multipart completions).
    PutFault,
    /// 200, and nothing is stored: a lie that the answer does not show.
    PutVoid,

    /// A status, and the code in its document. An empty code gives no document.
    Status(u16, &'static str),
    /// A status with a web page.
    StatusHtml(u16),
    /// The connection ends without an answer.
    HangUp,
    /// No answer, ever.
    Silence,
}

impl AdverseAnswer {
    /// Those that need no number, in the order of the table.
    pub const ALL: &[AdverseAnswer] = {
        use AdverseAnswer::*;
        &[
            TokenMissing,
            TokenEmpty,
            TokenRepeated,
            EndUnsaid,
            EndUnsaidToken,
            MoreForEver,
            EmptyForEver,
            FirstForEver,
            NamesRepeated,
            VersionOne,
            PageCut,
            PageBroken,
            SizeMissing,
            NameMissing,
            NamesDescend,
            PageHtml,
            PageEmpty,
            PageShort,
            EndClaimed,
            ListingVoid,
            BodyShort,
            BodyBroken,
            RangeShort,
            RangeLong,
            RangeIgnored,
            RangeElsewhere,
            RangeShifted,
            RangeUnsaid,
            BodyEmpty,
            BodyHtml,
            BodyGzip,
            BodyOther,
            BodyFlipped,
            TagMissing,
            LengthMissing,
            HeadUnsized,
            BulkOmits,
            BulkSilent,
            BulkHtml,
            BulkDenied,
            BulkFailed,
            BulkHalf,
            DeletionVoid,
            Overwrites,
            StoredRefused,
            StoredUnsaid,
            PutFault,
            PutVoid,
            HangUp,
            Silence,
        ]
    };

    /// What it is given to.
    pub fn concern(self) -> Concern {
        use AdverseAnswer::*;
        match self {
            TokenMissing | TokenEmpty | TokenRepeated | EndUnsaid | EndUnsaidToken | MoreForEver
            | EmptyForEver | FirstForEver | NamesRepeated | VersionOne | PageCut | PageBroken
            | SizeMissing | NameMissing | NamesDescend | PageHtml | PageEmpty | PageShort | EndClaimed
            | ListingVoid => Concern::Listing,
            BodyShort | BodyBroken | RangeShort | RangeLong | RangeIgnored | RangeElsewhere
            | RangeShifted | RangeUnsaid | BodyEmpty | BodyHtml | BodyGzip | BodyOther | BodyFlipped
            | TagMissing | LengthMissing => Concern::Body,
            HeadUnsized => Concern::Head,
            BulkOmits | BulkSilent | BulkHtml | BulkDenied | BulkFailed | BulkHalf => Concern::BulkDeletion,
            DeletionVoid => Concern::Deletion,
            Overwrites | RaceBroken(_) | StoredRefused => Concern::Creation,
            StoredUnsaid | PutFault | PutVoid => Concern::Put,
            Status(..) | StatusHtml(_) | HangUp | Silence => Concern::Everything,
        }
    }

    /// Whether it concerns a request of this kind, as [`super::Counts`] names it.
    pub(super) fn is_for(self, kind: &str) -> bool {
        match self.concern() {
            Concern::Listing => kind == "LIST",
            Concern::Body => kind == "GET",
            Concern::Head => kind == "HEAD",
            Concern::Creation => kind == "CREATE",
            Concern::Put => matches!(kind, "PUT" | "CREATE"),
            Concern::BulkDeletion => kind == "BULK",
            Concern::Deletion => matches!(kind, "BULK" | "DELETE"),
            Concern::Everything => kind != "OTHER",
        }
    }
}
