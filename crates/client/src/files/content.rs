//! A file's content for an upload: bytes in memory, or a reader.

use std::io;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The new content of a file.
pub struct FileContent(pub(super) ContentSource);

pub(super) enum ContentSource {
    Whole(Bytes),
    Pieces(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>),
}

impl FileContent {
    /// Everything that `reader` yields, in pieces.
    pub fn reader(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let pieces = stream::unfold(Some(reader), |reader| async {
            let mut reader = reader?;
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            match reader.read_buf(&mut piece).await {
                Ok(0) => None,
                Ok(_) => Some((Ok(piece.freeze()), Some(reader))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Self(ContentSource::Pieces(Box::pin(pieces)))
    }
}

impl<B: Into<Bytes>> From<B> for FileContent {
    fn from(bytes: B) -> Self {
        Self(ContentSource::Whole(bytes.into()))
    }
}

impl std::fmt::Debug for FileContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileContent").finish_non_exhaustive()
    }
}
