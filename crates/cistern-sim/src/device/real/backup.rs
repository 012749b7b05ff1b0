//! One snapshot of a volume into another one, as `cistern send` and `cistern receive` bring it there: encoded, perhaps cut, decoded, in shares.

use std::{io::Cursor, sync::Arc, time::Duration};

use cistern_engine::{
    Error, Result,
    share::Share,
    snapshot::is_hidden,
    store::Scheduler,
    stream::{ResumeToken, StreamHeader, StreamReader, StreamState, StreamWriter},
    volume::{Overwrite, Receiver, SentSince, SnapshotStatus, Volume},
};

use super::{options, read_only_options};
use crate::device::{Errand, Settings, Site};

/// How long it may take until everything is in the store.
const CLOSE_LIMIT: Duration = Duration::from_secs(3600);

pub(super) async fn back_up(from: &Site, to: &Site, settings: &Settings, errand: &Errand) -> Result<()> {
    let mut all = show(from, settings, None).await?.snapshots();
    all.retain(|snapshot| !is_hidden(&snapshot.name) && snapshot.at.is_some());
    all.sort_by_key(|snapshot| snapshot.at);
    let scheduler = Scheduler::new(to.env.clone());
    let options = options(to, settings, &scheduler, errand.take_over).await;
    let volume = Volume::open_to_receive(options).await?;
    let done = bring(from, &all, &volume, settings, errand).await;
    if done.is_err() && !errand.resumes {
        volume.go_back().await?;
    }
    let closed = volume.close(CLOSE_LIMIT).await;
    if let (Ok(Some(name)), true) = (&done, closed.clean) {
        (errand.stored)(name);
    }
    match done {
        Err(Error::Corrupt { .. }) if errand.cut.is_some() => Ok(()), // as it was told to
        done => done.map(drop),
    }
}

async fn show(from: &Site, settings: &Settings, name: Option<&str>) -> Result<Arc<Volume>> {
    let scheduler = Scheduler::new(from.env.clone());
    Volume::open_read_only(read_only_options(from, settings, &scheduler, name.map(str::to_owned))).await
}

/// Gives the name of what was received.
async fn bring(
    from: &Site,
    all: &[SnapshotStatus],
    volume: &Arc<Volume>,
    settings: &Settings,
    errand: &Errand,
) -> Result<Option<String>> {
    let token = match errand.resumes {
        true => volume.resume_token().await?,
        false => None,
    };
    let Some(wanted) = choose(all, token.as_ref(), errand) else { return Ok(None) };
    let known = volume.snapshots();
    let base = match &token {
        Some(token) if token.to == wanted.id => all.iter().find(|base| Some(base.id) == token.base),
        _ => {
            let is_known = |base: &SnapshotStatus| known.iter().any(|there| there.id == base.id);
            all.iter().rev().find(|base| base.at < wanted.at && is_known(base))
        }
    };
    let shown = show(from, settings, Some(&wanted.name)).await?;
    let since = match base {
        None => SentSince::Beginning,
        Some(base) => {
            let at = base.at.expect("only such are listed");
            let aside = match shown.goes_on_from(at) {
                true => None,
                false => Some(show(from, settings, Some(&base.name)).await?),
            };
            SentSince::Position(at, aside)
        }
    };
    let state = |snapshot: &SnapshotStatus| StreamState { id: snapshot.id, name: snapshot.name.clone() };
    // If what it began with is gone, it begins anew.
    let goes_on = token.filter(|token| token.to == wanted.id && token.base == base.map(|base| base.id));
    let shares = goes_on.as_ref().map_or(errand.shares, |token| token.places.len() as u32);
    let places = goes_on.map_or(vec![0; shares as usize], |token| token.places);
    let mut streams = Vec::new();
    for (share, from) in Share::each(shares).zip(places) {
        let header = StreamHeader {
            volume: shown.id(),
            to: state(wanted),
            base: base.map(state),
            size_bytes: shown.size_bytes(),
            made_ms: wanted.made_ms,
            compression: settings.compression,
            share,
            from,
        };
        let mut stream = encode(&shown, since.clone(), &header).await?;
        stream.truncate(errand.cut.map_or(stream.len(), |cut| (stream.len() as f64 * cut) as usize));
        streams.push(stream);
    }
    let overwrite = if errand.compares { Overwrite::Differing } else { Overwrite::All };
    receive(volume, &streams, overwrite, errand).await
}

/// What is to be completed, or one of those that are there.
fn choose<'a>(
    all: &'a [SnapshotStatus],
    token: Option<&ResumeToken>,
    errand: &Errand,
) -> Option<&'a SnapshotStatus> {
    let whole: Vec<&SnapshotStatus> = all.iter().filter(|snapshot| !snapshot.is_bookmark).collect();
    let begun = whole.iter().find(|snapshot| token.is_some_and(|token| token.to == snapshot.id));
    begun.or_else(|| whole.get((errand.which * whole.len() as f64) as usize)).copied()
}

async fn encode(shown: &Arc<Volume>, since: SentSince, header: &StreamHeader) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::io("writing to memory", &e);
    let mut writer = StreamWriter::begin(Vec::new(), header).map_err(failed)?;
    let mut sending = shown.send(since, header.share, header.from);
    while let Some(record) = sending.next().await? {
        writer.record(&record).map_err(failed)?;
    }
    Ok(writer.finish().map_err(failed)?.1)
}

async fn receive(
    volume: &Arc<Volume>,
    streams: &[Vec<u8>],
    overwrite: Overwrite,
    errand: &Errand,
) -> Result<Option<String>> {
    let (mut readers, mut headers) = (Vec::new(), Vec::new());
    for stream in streams {
        let (reader, header) = StreamReader::begin(Cursor::new(stream.as_slice()))?;
        readers.push(reader);
        headers.push(header);
    }
    let name = headers[0].to.name.clone();
    let Some((receiver, mut shares)) = Receiver::begin(volume, &headers, &name, overwrite).await? else {
        return Ok(None);
    };
    for (reader, share) in readers.iter_mut().zip(&mut shares) {
        while let Some(record) = reader.next_record()? {
            share.record(record).await?;
        }
    }
    (errand.ends)(&name);
    receiver.end(shares).await?;
    Ok(Some(name))
}
