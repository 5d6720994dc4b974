//! A small disk that a fault fills and frees again. `isolation` mounts it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The file that fills the disk.
const FILLER: &str = "filler";

/// The sizes of the writes: large ones first, then small ones until the disk is full.
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

    /// Fills the disk and leaves about `leave` bytes free.
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
