//! Opens the files of the cache, and takes over what is in them.
//!
//! Whatever is wrong with the index means that the cache starts empty: it is never an error, and
//! never wrong data, since the records only say which bytes to expect.

use std::sync::Arc;

use super::{
    CHUNK_BYTES,
    index::{Index, Restore},
    pages::{
        Header, IndexId, PAGE_BYTES, decode_header, decode_page, encode_header, file_bytes, page_offset,
        pages, slots_of,
    },
};
use crate::{
    Error, Result,
    disk::{AlignedBuf, Disk, DiskFile},
    env::Env,
};

/// The file that holds the chunks. Its length is the size of the cache.
pub const SLAB_NAME: &str = "chunks";
const INDEX_NAME: &str = "chunks.index";
/// Pages of the index that are read at once: 1 MiB.
const LOAD_PAGES: u32 = 256;

/// An open cache.
pub(super) struct Files {
    pub slab: Arc<dyn DiskFile>,
    pub index_file: Arc<dyn DiskFile>,
    pub id: IndexId,
    pub index: Index,
}

/// Opens the files of a cache of so many slots, or makes them.
pub(super) async fn open(env: &Env, disk: &Arc<dyn Disk>, slots: u32) -> Result<Files> {
    let (disk, fresh) = (disk.clone(), env.random_bytes());
    env.blocking(async move {
        let (slab, known) = open_slab(&disk, u64::from(slots) * CHUNK_BYTES as u64).await?;
        let place = disk.describe();
        if known {
            match load(&disk, slots).await {
                Ok((index_file, id, index)) => {
                    tracing::info!(chunks = index.used(), "the chunk cache {place} is usable again");
                    return Ok(Files { slab, index_file, id, index });
                }
                Err(why) => tracing::info!("the chunk cache {place} starts empty: {why}"),
            }
        }
        let index_file = create_index(&disk, slots, &fresh).await?;
        Ok(Files { slab, index_file, id: fresh, index: Index::new(slots) })
    })
    .await
}

/// The slab, reserved in full: a cache that could not grow later would fail in mid-life, and a
/// sparse file would fragment in the order of misses. Says whether it was there already.
async fn open_slab(disk: &Arc<dyn Disk>, bytes: u64) -> Result<(Arc<dyn DiskFile>, bool)> {
    match disk.open(SLAB_NAME).await {
        Ok(file) if file.len() == bytes => return Ok((file, true)),
        Ok(file) => tracing::info!(
            from = file.len(),
            to = bytes,
            "the chunk cache {} starts empty: it has another size now",
            disk.describe()
        ),
        Err(Error::NotFound(_)) => {}
        Err(e) => return Err(e),
    }
    disk.remove(SLAB_NAME).await?;
    Ok((disk.create(SLAB_NAME, bytes).await?, false))
}

async fn create_index(disk: &Arc<dyn Disk>, slots: u32, id: &IndexId) -> Result<Arc<dyn DiskFile>> {
    disk.remove(INDEX_NAME).await?;
    let file = disk.create(INDEX_NAME, file_bytes(slots)).await?;
    let mut header = AlignedBuf::zeroed(PAGE_BYTES);
    encode_header(id, slots, &mut header);
    file.write_at(0, &header).await?;
    Ok(file)
}

/// Reads the index. Says why it cannot be used.
async fn load(disk: &Arc<dyn Disk>, slots: u32) -> Result<(Arc<dyn DiskFile>, IndexId, Index), String> {
    let file = disk.open(INDEX_NAME).await.map_err(|e| e.to_string())?;
    let mut buf = AlignedBuf::zeroed(LOAD_PAGES as usize * PAGE_BYTES);
    if file.len() < PAGE_BYTES as u64 {
        return Err("its index is cut off".to_owned());
    }
    file.read_at(0, &mut buf[..PAGE_BYTES]).await.map_err(|e| e.to_string())?;
    let id = match decode_header(&buf[..PAGE_BYTES], slots) {
        Header::Ours(id) => id,
        Header::Other(why) => return Err(format!("as for its index, {why}")),
    };
    if file.len() != file_bytes(slots) {
        return Err("its index is cut off".to_owned());
    }
    let mut restore = Restore::new(slots);
    for first in (0..pages(slots)).step_by(LOAD_PAGES as usize) {
        let last = pages(slots).min(first + LOAD_PAGES);
        let bytes = &mut buf[..(last - first) as usize * PAGE_BYTES];
        file.read_at(page_offset(first), bytes).await.map_err(|e| e.to_string())?;
        for (page, bytes) in (first..last).zip(bytes.chunks_exact(PAGE_BYTES)) {
            let Some(records) = decode_page(&id, page, bytes) else { continue };
            for (slot, record) in slots_of(page, slots).zip(records) {
                if let Some(record) = record {
                    restore.add(slot, record);
                }
            }
        }
    }
    Ok((file, id, restore.finish()))
}
