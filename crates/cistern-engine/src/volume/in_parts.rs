//! Long walks over a volume, many parts of it at a time: for what waits for the store at every step.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::{Error, Result, units::Extent};

/// Parts that are looked at at once.
const AT_ONCE: usize = 32;
/// Parts that are done and wait for one before them. With what one part gives that bounds the memory.
const DONE_MAX: usize = 64;
/// A part is at least so long: 1 GiB.
const PART_BLOCKS_MIN: u64 = 1 << 18;

/// Looks at all of `extent` and gives what comes of that to `tell`, in order. `look` looks at the beginning of a part, as much of it as
/// it likes, and says where that ends; what is left of the part is cut again, so that parts in which there is more to see do not hold
/// up the rest.
pub async fn in_parts<T, L, E>(
    extent: Extent,
    look: impl Fn(Extent) -> L,
    mut tell: impl FnMut(Extent, T) -> Result<(), E>,
) -> Result<(), E>
where
    L: Future<Output = Result<(T, u64)>>,
    E: From<Error>,
{
    let (mut pending, mut done) = (BTreeMap::new(), BTreeMap::new());
    let mut running = FuturesUnordered::new();
    let mut told_to = extent.start;
    cut(extent, &mut pending);
    while told_to < extent.end() {
        while let Some(next) = pending.first_entry() {
            let is_wanted = *next.key() == told_to || running.len() + done.len() < DONE_MAX;
            if running.len() >= AT_ONCE || !is_wanted {
                break;
            }
            let part = Extent::between(*next.key(), *next.get());
            next.remove();
            let looked = look(part);
            running.push(async move { (part, looked.await) });
        }
        let (part, looked) = running.next().await.expect("what is told next is under way or done");
        let (found, end) = looked?;
        assert!(
            part.start < end && end <= part.end(),
            "every look sees something, and no more than its part"
        );
        cut(Extent::between(end, part.end()), &mut pending);
        done.insert(part.start, (found, end));
        while let Some((found, end)) = done.remove(&told_to) {
            tell(Extent::between(told_to, end), found)?;
            told_to = end;
        }
    }
    debug_assert!(
        pending.is_empty() && done.is_empty() && running.is_empty(),
        "all that was looked at was told"
    );
    Ok(())
}

/// Cuts a part into as many as are looked at at once.
fn cut(extent: Extent, into: &mut BTreeMap<u64, u64>) {
    let len = (extent.len.div_ceil(AT_ONCE as u64)).max(PART_BLOCKS_MIN);
    let mut at = extent.start;
    while at < extent.end() {
        let end = extent.end().min(at.saturating_add(len));
        into.insert(at, end);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use super::*;

    /// Everything is told once and in order, however little a look sees, whichever ends first; and no more is kept than there is
    /// room for.
    #[tokio::test]
    async fn all_of_it_is_told_in_order() {
        let (blocks, kept, kept_max) = (1 << 28, Cell::new(0_usize), Cell::new(0_usize));
        let mut looks: u64 = 0;
        let dense = BTreeSet::from([0, 3, 700, 701]); // GiB in which a look sees a tenth
        let (kept, kept_max, dense) = (&kept, &kept_max, &dense);
        let look = |part: Extent| async move {
            for _ in 0..part.start / PART_BLOCKS_MIN % 7 {
                tokio::task::yield_now().await;
            }
            let gib = part.start / PART_BLOCKS_MIN;
            let end = match dense.contains(&gib) {
                true => part.end().min(part.start + PART_BLOCKS_MIN / 10),
                false => part.end().min((gib + 1) * PART_BLOCKS_MIN),
            };
            kept.set(kept.get() + 1);
            kept_max.set(kept_max.get().max(kept.get()));
            Ok((part.start, end))
        };
        let mut told_to = 5;
        in_parts::<_, _, Error>(Extent::between(5, blocks), look, |part, start| {
            assert_eq!((part.start, start), (told_to, told_to));
            told_to = part.end();
            looks += 1;
            kept.set(kept.get() - 1);
            Ok(())
        })
        .await
        .expect("told");
        assert_eq!(told_to, blocks);
        assert!(looks > 1000, "{looks}");
        assert!(kept_max.get() <= DONE_MAX + 1, "{} at once", kept_max.get());
    }

    /// The first look that fails ends it, and so does whoever is told; nothing is nothing to do.
    #[tokio::test]
    async fn a_failure_ends_it() {
        let look = |part: Extent| async move {
            match part.start {
                0 => Ok(((), part.end())),
                _ => Err(Error::Closed),
            }
        };
        let all = Extent::new(0, 1 << 24);
        assert!(matches!(in_parts::<_, _, Error>(all, look, |_, ()| Ok(())).await, Err(Error::Closed)));
        let fine = |part: Extent| async move { Ok(((), part.end())) };
        assert!(matches!(in_parts(all, fine, |_, ()| Err(Error::ReadOnly)).await, Err(Error::ReadOnly)));
        let none = in_parts::<_, _, Error>(Extent::new(7, 0), fine, |_, ()| panic!("there is nothing")).await;
        none.expect("done");
    }
}
