//! Streams that are written into a volume, record by record: what they may go into, and what of them is written.

mod foreign;

use std::sync::Arc;

use crate::{
    Error, Result,
    codec::BlockData,
    snapshot::{ReceivedState, Receiving},
    stream::{StreamContent, StreamHeader, StreamRecord},
    units::Extent,
    volume::{RangeKind, Volume},
};

use super::{BLOCK, bytes};

pub use foreign::{ForeignReceiver, ForeignState};

/// What a stream may do to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    Nothing,
    All,
    /// What is there is read, and written only where it differs.
    Differing,
}

/// A snapshot that is being received. Nothing of it counts before its [`end`](Self::end); who does not come to that calls
/// [`Volume::go_back`], or goes on another time.
pub struct Receiver {
    volume: Arc<Volume>,
    header: StreamHeader,
    name: String,
}

/// One share of it.
pub struct ShareReceiver {
    volume: Arc<Volume>,
    header: StreamHeader,
    fill: Filling,
    /// Behind the last record that was received, in this or an earlier stream.
    at: u64,
    /// A record failed, or was given up on its way: what is behind it must not be there without it.
    is_torn: bool,
}

/// How what comes is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filling {
    /// Everything was a hole.
    Empty,
    Over,
    Compared,
}

impl Receiver {
    /// Begins to receive all shares of a snapshot, given by the headers of their streams and in that order, under that name; `None` if the volume has
    /// it. Goes on if that was begun, and goes back first on anything else that was.
    ///
    /// # Errors
    /// `NotEmpty` and `Invalid` say what does not fit, `Exists` that the name is taken: the volume is as it was. After others
    /// it may have been begun.
    pub async fn begin(
        volume: &Arc<Volume>,
        headers: &[StreamHeader],
        name: &str,
        overwrite: Overwrite,
    ) -> Result<Option<(Receiver, Vec<ShareReceiver>)>> {
        StreamHeader::check_together(headers)?;
        let header = &headers[0];
        let what = receiving(header);
        let known = volume.snapshots();
        if known.iter().any(|snapshot| snapshot.id == what.of && !snapshot.is_bookmark) {
            return Ok(None);
        }
        let places = match volume.receiving() {
            Some(now) if now == what => volume.received_places(what.shares).await?,
            _ => None,
        };
        check_places(headers, places.as_deref())?;
        match places {
            Some(_) => volume.forget_loads().await,
            None => volume.go_back().await?,
        }
        if volume.snapshots().iter().any(|snapshot| snapshot.name == name) {
            return Err(Error::Exists(format!("another snapshot with the name {name}")));
        }
        let fill = match places {
            Some(_) => filling(volume, header, overwrite).await?,
            None => Self::prepare(volume, header, overwrite).await?,
        };
        let share = |header: &StreamHeader| {
            let at = places.as_ref().map_or(0, |places| places[header.share.index() as usize]);
            ShareReceiver { volume: volume.clone(), header: header.clone(), fill, at, is_torn: false }
        };
        let shares = headers.iter().map(share).collect();
        let receiver = Receiver { volume: volume.clone(), header: header.clone(), name: name.to_owned() };
        Ok(Some((receiver, shares)))
    }

    /// Keeps what is there, and makes it what the stream begins with.
    async fn prepare(volume: &Arc<Volume>, header: &StreamHeader, overwrite: Overwrite) -> Result<Filling> {
        let fill = filling(volume, header, overwrite).await?;
        let all = volume.snapshots();
        let put_back = match &header.base {
            None if fill != Filling::Empty && overwrite == Overwrite::Nothing => {
                return Err(Error::NotEmpty("the stream is a full one, and the volume is not empty".into()));
            }
            None => None,
            Some(base) => {
                let Some(there) = all.iter().find(|snapshot| snapshot.id == base.id) else {
                    return Err(Error::Invalid(format!(
                        "the stream begins with a snapshot that the volume does not have ({}, id {})",
                        base.name, base.id
                    )));
                };
                let is_there = volume.shows(there).await?;
                if !is_there && (overwrite == Overwrite::Nothing || there.is_bookmark) {
                    return Err(Error::Invalid(format!(
                        "the stream begins with snapshot {}, and the volume does not show that any more: it was written to since",
                        there.name
                    )));
                }
                (!is_there).then(|| there.name.clone())
            }
        };
        volume.begin_receive(receiving(header)).await?;
        if let Some(base) = put_back {
            volume.put_back(&base).await?;
        }
        volume.resize(header.size_bytes, true).await?;
        volume.begin_fill(header.to.id).await?;
        Ok(fill)
    }

    /// All shares are complete: what was written counts from here on.
    ///
    /// # Errors
    /// `Invalid` if one is missing, or something of one; those of writing to the volume.
    pub async fn end(self, shares: Vec<ShareReceiver>) -> Result<()> {
        let headers: Vec<StreamHeader> = shares.iter().map(|share| share.header.clone()).collect();
        StreamHeader::check_together(&headers)?;
        for mut share in shares {
            if share.is_torn {
                return Err(torn());
            }
            share.fill_gap(share.header.blocks()).await?;
        }
        self.volume.settle_loads().await?;
        let made = ReceivedState { name: self.name, made_ms: self.header.made_ms };
        self.volume.end_receive(self.header.to.id, made).await
    }
}

fn receiving(header: &StreamHeader) -> Receiving {
    let base = header.base.as_ref().map(|base| base.id);
    Receiving { of: header.to.id, base, shares: header.share.count() }
}

/// Streams begin where nothing is missing before.
fn check_places(headers: &[StreamHeader], places: Option<&[u64]>) -> Result<()> {
    for header in headers {
        let share = header.share.index() as usize;
        let (place, from) = (places.map_or(0, |places| places[share]), header.from);
        if from > place {
            return Err(Error::Invalid(format!(
                "the stream goes on at block {from}, and what is before was received up to block {place} of its share only"
            )));
        }
    }
    Ok(())
}

async fn filling(volume: &Volume, header: &StreamHeader, overwrite: Overwrite) -> Result<Filling> {
    Ok(match overwrite {
        _ if header.base.is_none() && volume.maps_nothing().await? => Filling::Empty,
        Overwrite::Differing => Filling::Compared,
        Overwrite::Nothing | Overwrite::All => Filling::Over,
    })
}

fn torn() -> Error {
    Error::Invalid("a record that came before was not written".into())
}

/// A record of data of which only so many bytes are of the volume: what is behind them is zero.
fn cleared_behind(record: StreamRecord, len: u64) -> Result<StreamRecord> {
    if len == record.data_bytes() {
        return Ok(record);
    }
    let mut data = record.data()?.map_or_else(Vec::new, |data| data[..len as usize].to_vec());
    data.resize(record.data_bytes() as usize, 0);
    Ok(StreamRecord { content: StreamContent::Data(BlockData::Plain(data.into())), ..record })
}

impl ShareReceiver {
    /// Writes the next record; passes over what was received before.
    ///
    /// # Errors
    /// Those of writing to the volume, and of reading what is compared; `Invalid` behind any, and behind one that was dropped before it was
    /// done.
    pub async fn record(&mut self, record: StreamRecord) -> Result<()> {
        if std::mem::replace(&mut self.is_torn, true) {
            return Err(torn());
        }
        if record.extent.end() > self.at {
            self.write(record).await?;
        }
        self.is_torn = false;
        Ok(())
    }

    async fn write(&mut self, record: StreamRecord) -> Result<()> {
        self.fill_gap(record.extent.start).await?;
        self.at = record.extent.end();
        match record.content {
            StreamContent::Data(_) => {
                let (offset, len) = self.bytes_of(record.extent);
                let record = cleared_behind(record, len)?;
                let is_there = self.fill == Filling::Compared && {
                    let data = record.data()?.expect("it has some");
                    bytes(&self.volume, offset, len).await? == data[..len as usize]
                };
                if is_there { Ok(()) } else { self.volume.load(record).await }
            }
            StreamContent::Zero => self.clear(record.extent, RangeKind::Zero).await,
            StreamContent::Hole => self.clear(record.extent, RangeKind::Hole).await,
        }
    }

    /// What a full stream does not tell is a hole.
    async fn fill_gap(&mut self, until: u64) -> Result<()> {
        match self.header.base {
            None if self.fill != Filling::Empty && until > self.at => {
                for gap in self.header.share.within(Extent::between(self.at, until)) {
                    self.clear(gap, RangeKind::Hole).await?;
                }
                Ok(())
            }
            None | Some(_) => Ok(()),
        }
    }

    /// Makes a hole of an extent, or allocated zeroes, unless it is that.
    async fn clear(&self, extent: Extent, kind: RangeKind) -> Result<()> {
        let (offset, len) = self.bytes_of(extent);
        let is_hole = kind == RangeKind::Hole;
        if len == 0 || (is_hole && self.fill == Filling::Empty) {
            return Ok(());
        }
        let there = self.volume.ranges(offset, len, 1).await?;
        match there.as_slice() {
            [(there_len, there)] if *there_len == len && *there == kind => Ok(()),
            _ if is_hole => self.volume.load(StreamRecord { extent, content: StreamContent::Hole }).await,
            _ => self.volume.load(StreamRecord { extent, content: StreamContent::Zero }).await,
        }
    }

    /// Place and length of an extent, within the volume.
    fn bytes_of(&self, extent: Extent) -> (u64, u64) {
        let offset = extent.start * BLOCK;
        (offset, (extent.end() * BLOCK).min(self.header.size_bytes).saturating_sub(offset))
    }
}
