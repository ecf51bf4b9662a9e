//! What tells an arena from all others, also as text: in rows of tables and in JSON.

use std::fmt;
use std::str::FromStr;

/// The file behind the stats page of a shared arena: all processes that map it have the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Its device, as major and minor number.
    pub device: (u32, u32),
    /// Its inode.
    pub inode: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}:{}", self.device.0, self.device.1, self.inode)
    }
}

impl FromStr for FileId {
    type Err = ();

    fn from_str(text: &str) -> Result<FileId, ()> {
        let mut parts = text.split(':');
        let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
        let device = hex().zip(hex()).ok_or(())?;
        let inode = parts.next().and_then(|inode| inode.parse().ok()).filter(|_| parts.next().is_none()).ok_or(())?;
        Ok(FileId { device, inode })
    }
}

/// Tells an arena from all others that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArenaId {
    /// One that several processes share.
    Shared(FileId),
    /// One of a single process: its pid, and the number of the arena in it.
    Private(u32, u32),
}

impl fmt::Display for ArenaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArenaId::Shared(file) => write!(f, "shared/{file}"),
            ArenaId::Private(pid, number) => write!(f, "{pid}/{number}"),
        }
    }
}

impl FromStr for ArenaId {
    type Err = ();

    fn from_str(text: &str) -> Result<ArenaId, ()> {
        let (whose, number) = text.split_once('/').ok_or(())?;
        match whose {
            "shared" => number.parse().map(ArenaId::Shared).map_err(drop),
            pid => Ok(ArenaId::Private(pid.parse().map_err(drop)?, number.parse().map_err(drop)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_as_text_and_back() {
        let file = FileId { device: (0, 0x1a), inode: 77 };
        assert_eq!(file.to_string(), "00:1a:77");
        for id in [ArenaId::Shared(file), ArenaId::Private(4242, 1)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in [
            "",
            "1",
            "shared/",
            "shared/x",
            "shared/0:1",
            "shared/0:1:2:3",
            "shared/0:x:2",
            "x/1",
            "1/x",
            "1/99999999999",
        ] {
            assert_eq!(bad.parse::<ArenaId>(), Err(()), "{bad}");
        }
    }
}
