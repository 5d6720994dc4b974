//! A disk that can be filled: a directory that is a mount of its own, and small. Whoever runs the suite
//! mounts it; this fills it and makes room again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The file that takes the room.
const FILLER: &str = "filler";

/// Written at a time.
const PIECE_BYTES: usize = 1 << 20;
const LAST_PIECE_BYTES: usize = 512;

#[derive(Debug, Clone)]
pub struct SmallDisk {
    root: PathBuf,
}

impl SmallDisk {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Leaves about so many bytes free.
    pub fn fill(&self, leave: u64) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.root.join(FILLER))?;
        for size in [PIECE_BYTES, LAST_PIECE_BYTES] {
            write_until_full(&mut file, &vec![0; size]);
        }
        let length = file.metadata()?.len();
        file.set_len(length.saturating_sub(leave))?;
        Ok(())
    }

    pub fn free(&self) -> Result<()> {
        match fs::remove_file(self.root.join(FILLER)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn write_until_full(file: &mut File, piece: &[u8]) {
    while file.write_all(piece).is_ok() {}
}
