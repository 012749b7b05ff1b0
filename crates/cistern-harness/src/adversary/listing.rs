//! Pages of a listing, right and wrong. Pure.

use std::{collections::HashMap, fmt::Write};

use bytes::Bytes;

use super::{AdverseAnswer, BUCKET, Objects, exchange::Reply, xml::escaped};

/// What a token begins with; the last name that was given follows.
const TOKEN: &str = "behind:";

/// What was asked for.
pub(super) struct Question<'a> {
    pub prefix: &'a str,
    pub delimiter: &'a str,
    pub names_max: usize,
    pub start_after: &'a str,
    pub token: Option<&'a str>,
}

impl<'a> Question<'a> {
    pub fn of(query: &'a HashMap<String, String>, names_max: usize) -> Question<'a> {
        let text = |name| query.get(name).map_or("", String::as_str);
        let asked = text("max-keys").parse().unwrap_or(names_max);
        Question {
            prefix: text("prefix"),
            delimiter: text("delimiter"),
            names_max: names_max.min(asked),
            start_after: text("start-after"),
            token: query.get("continuation-token").map(String::as_str),
        }
    }

    /// The name behind which the page begins: tokens of endless listings have a number in front of it.
    fn behind(&self) -> &'a str {
        self.token.and_then(|token| token.split_once(TOKEN)).map_or(self.start_after, |(_, behind)| behind)
    }
}

enum Entry<'a> {
    Object(&'a str, u64),
    Dir(&'a str),
}

impl<'a> Entry<'a> {
    fn name(&self) -> &'a str {
        match self {
            Entry::Object(name, _) | Entry::Dir(name) => name,
        }
    }
}

/// The entries behind a name, and whether there are more.
fn entries<'a>(
    objects: &'a Objects,
    asked: &Question<'_>,
    behind: &str,
    count_max: usize,
) -> (Vec<Entry<'a>>, bool) {
    let mut found: Vec<Entry<'a>> = Vec::new();
    for (name, body) in objects.range(asked.prefix.to_owned()..) {
        let Some(rest) = name.strip_prefix(asked.prefix) else { break };
        let dir = match asked.delimiter {
            "" => None,
            delimiter => rest.find(delimiter).map(|at| &name[..asked.prefix.len() + at + delimiter.len()]),
        };
        let entry = dir.map_or(Entry::Object(name, body.len() as u64), Entry::Dir);
        // Behind a directory that was given comes what does not lie in it.
        let is_behind = entry.name() <= behind || (behind.ends_with('/') && name.starts_with(behind));
        if is_behind || found.last().is_some_and(|last| last.name() == entry.name()) {
            continue;
        }
        if found.len() == count_max {
            return (found, true);
        }
        found.push(entry);
    }
    (found, false)
}

/// The page that was asked for.
pub(super) fn page(objects: &Objects, asked: &Question<'_>, answer: Option<AdverseAnswer>) -> Reply {
    use AdverseAnswer::*;
    let mut count_max = asked.names_max;
    let mut behind = asked.behind().to_owned();
    match answer {
        Some(PageHtml) => return Reply::html(200),
        Some(PageEmpty) => return Reply::ok(Bytes::new()),
        Some(PageShort) => count_max = (count_max / 2).max(1),
        Some(FirstForEver | VersionOne) => behind.clear(),
        Some(NamesRepeated) if !behind.is_empty() => behind = just_before(objects, &behind),
        _ => {}
    }
    let (mut found, mut is_cut) = entries(objects, asked, &behind, count_max);
    let last = found.last().map_or(behind.as_str(), Entry::name).to_owned();
    let mut token = is_cut.then(|| format!("{TOKEN}{last}"));
    let number = asked.token.and_then(|token| token.split_once(TOKEN)?.0.parse::<u64>().ok()).unwrap_or(0);
    let mut says_end = true;
    match answer {
        Some(TokenMissing | VersionOne) => token = None,
        Some(TokenEmpty) => token = token.map(|_| String::new()),
        Some(TokenRepeated) if is_cut && asked.token.is_some() => token = asked.token.map(str::to_owned),
        Some(EndUnsaid) => (token, says_end) = (None, false),
        Some(EndUnsaidToken) => says_end = false,
        Some(MoreForEver) => (token, is_cut) = (None, true),
        Some(EmptyForEver | FirstForEver) => {
            (token, is_cut) = (Some(format!("{}{TOKEN}{last}", number + 1)), true);
        }
        Some(NamesDescend) => found.reverse(),
        Some(EndClaimed) => (token, is_cut) = (None, false),
        Some(ListingVoid) => {
            found.clear();
            (token, is_cut) = (None, false);
        }
        _ => {}
    }
    let document = document(asked, &found, token.as_deref(), says_end.then_some(is_cut), answer);
    let half = document.len() / 2;
    match answer {
        Some(PageCut) => Reply::ok(Bytes::from(document.into_bytes()).slice(..half)),
        Some(PageBroken) => Reply::ok(document.into_bytes().into()).broken_at(half),
        _ => Reply::ok(document.into_bytes().into()),
    }
}

/// The greatest name before this one, so that a page behind it begins with this one.
fn just_before(objects: &Objects, name: &str) -> String {
    objects.range(..name.to_owned()).next_back().map_or(String::new(), |(before, _)| before.clone())
}

fn document(
    asked: &Question<'_>,
    found: &[Entry<'_>],
    token: Option<&str>,
    is_cut: Option<bool>,
    answer: Option<AdverseAnswer>,
) -> String {
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <Name>{BUCKET}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount><MaxKeys>{}</MaxKeys>",
        escaped(asked.prefix),
        found.len(),
        asked.names_max,
    );
    let mut add = |name: &str, text: &str| {
        write!(out, "<{name}>{}</{name}>", escaped(text)).expect("a string takes it");
    };
    if let Some(is_cut) = is_cut {
        add("IsTruncated", &is_cut.to_string());
    }
    if let Some(token) = token {
        add("NextContinuationToken", token);
    }
    let mut is_first = true;
    for entry in found {
        match entry {
            Entry::Object(name, bytes) => {
                let is_odd = std::mem::take(&mut is_first);
                out += "<Contents>";
                if !(is_odd && answer == Some(AdverseAnswer::NameMissing)) {
                    write!(out, "<Key>{}</Key>", escaped(name)).expect("a string takes it");
                }
                if !(is_odd && answer == Some(AdverseAnswer::SizeMissing)) {
                    write!(out, "<Size>{bytes}</Size>").expect("a string takes it");
                }
                out += "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"1\"</ETag>\
                        <StorageClass>STANDARD</StorageClass></Contents>";
            }
            Entry::Dir(name) if answer == Some(AdverseAnswer::NameMissing) && is_first => {
                is_first = false;
                debug_assert!(name.ends_with('/'));
                out += "<CommonPrefixes></CommonPrefixes>";
            }
            Entry::Dir(name) => {
                write!(out, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(name))
                    .expect("a string takes it");
            }
        }
    }
    out + "</ListBucketResult>"
}
