//! Which names are keys: one rule for every backend, checked before a name reaches a file system
//! or a cloud.
//!
//! A key is made of components joined by `/`. A component is not empty, does not begin with a dot
//! and is made of `[A-Za-z0-9._-]`, so no key can leave the root of a store, hide there, or read
//! differently after URL encoding. Never touches the outside world.

use super::{StoreError, StoreResult};

/// Bytes of the longest key: with any sensible root far below the 1024 bytes that clouds allow.
pub(super) const KEY_BYTES_MAX: usize = 512;
/// Bytes of the longest component: what every file system takes.
const COMPONENT_BYTES_MAX: usize = 255;

fn is_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')
}

/// Whether `name` can be a component of a key.
pub(super) fn is_component(name: &str) -> bool {
    (1..=COMPONENT_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_key_byte)
}

/// Refuses what is not a key.
pub(super) fn check_key(key: &str) -> StoreResult<()> {
    if key.len() <= KEY_BYTES_MAX && key.split('/').all(is_component) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{key:?} is not a valid object name")))
}

/// Refuses what is not the beginning of a key. The last component may be cut short or empty.
pub(super) fn check_prefix(prefix: &str) -> StoreResult<()> {
    let (dirs, last) = split_prefix(prefix);
    let dirs_fine = dirs.is_empty() || dirs[..dirs.len() - 1].split('/').all(is_component);
    if prefix.len() <= KEY_BYTES_MAX && dirs_fine && (last.is_empty() || is_component(last)) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{prefix:?} is not a valid prefix of object names")))
}

/// Refuses what does not name a "directory" of keys: empty, or whole components and a final `/`.
pub(super) fn check_dir(prefix: &str) -> StoreResult<()> {
    check_prefix(prefix)?;
    if prefix.is_empty() || prefix.ends_with('/') {
        return Ok(());
    }
    Err(StoreError::Refused(format!("the prefix {prefix:?} must end in /")))
}

/// Splits a prefix behind its last `/`: the directories (with the `/`) and the rest.
pub(super) fn split_prefix(prefix: &str) -> (&str, &str) {
    prefix.split_at(prefix.rfind('/').map_or(0, |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No name that leaves the root, hides or changes under encoding is a key.
    #[test]
    fn names_that_are_not_keys_are_refused() {
        let long = "a".repeat(KEY_BYTES_MAX + 1);
        let component = "b".repeat(256);
        for key in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/./b",
            ".tmp/x",
            "a/.hidden",
            "a b",
            "a%2fb",
            "a\\b",
            "a\0b",
            "ü",
            &long,
            &component,
        ] {
            assert!(check_key(key).is_err(), "{key:?}");
        }
        for key in ["a", "volume.json", "log/00000000000000000001", "clones/Snap-1_x/9.z"] {
            assert!(check_key(key).is_ok(), "{key:?}");
        }
    }

    /// Prefixes may end anywhere in a key, directories only behind a `/`.
    #[test]
    fn prefixes_and_directories() {
        for prefix in ["", "a", "a/", "a/b", "a/b/"] {
            assert!(check_prefix(prefix).is_ok(), "{prefix:?}");
            assert_eq!(check_dir(prefix).is_ok(), prefix.is_empty() || prefix.ends_with('/'));
        }
        for prefix in ["/", "..", "../", "a//", "a/../", "a/..", ".tmp/"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?}");
        }
        assert_eq!(split_prefix("a/b/c"), ("a/b/", "c"));
        assert_eq!(split_prefix("c"), ("", "c"));
    }
}
