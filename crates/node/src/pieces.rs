//! A cache of recently read pieces of event streams. Followers of one session are mostly at the same
//! event, so one follower reads the journal and the others send the same bytes. Never reads a journal.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use windlass_protocol::Seq;

/// Maximum number of cached pieces, and of their bytes together.
const PIECES_MAX: usize = 16;
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Some events of a session, encoded for followers.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub bytes: Bytes,
    /// The last event in the piece.
    pub last: Seq,
    /// Whether that event is the session's last.
    pub ended: bool,
}

/// The pieces that were read last, of all sessions together.
#[derive(Debug, Default)]
pub(crate) struct RecentPieces {
    kept: Mutex<VecDeque<RecentPiece>>,
}

#[derive(Debug)]
struct RecentPiece {
    /// Identifies the session. An id may be reused later, but a channel is unique.
    session: watch::Receiver<Seq>,
    after: Seq,
    piece: Piece,
}

impl RecentPieces {
    /// The piece after an event, if it is cached.
    pub fn find(&self, session: &watch::Receiver<Seq>, after: Seq) -> Option<Piece> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = kept.iter().rev();
        let found = found.find(|kept| kept.after == after && kept.session.same_channel(session))?;
        Some(found.piece.clone())
    }

    /// Caches a piece, and drops the oldest pieces over the limit.
    pub fn keep(&self, session: &watch::Receiver<Seq>, after: Seq, piece: &Piece) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(RecentPiece { session: session.clone(), after, piece: piece.clone() });
        let mut bytes: usize = kept.iter().map(|kept| kept.piece.bytes.len()).sum();
        while kept.len() > PIECES_MAX || bytes > BYTES_MAX {
            let Some(oldest) = kept.pop_front() else { return };
            bytes -= oldest.piece.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(length: usize, last: u64) -> Piece {
        Piece { bytes: vec![b'x'; length].into(), last: Seq(last), ended: false }
    }

    #[test]
    fn a_piece_is_found_by_its_session_and_event_until_newer_ones_replace_it() {
        let (one, other) = (watch::channel(Seq(0)).1, watch::channel(Seq(0)).1);
        let recent = RecentPieces::default();
        recent.keep(&one, Seq(3), &piece(10, 5));
        assert_eq!(recent.find(&one, Seq(3)).unwrap().last, Seq(5));
        assert!(recent.find(&one, Seq(4)).is_none());
        assert!(recent.find(&other, Seq(3)).is_none());
        for number in 0..PIECES_MAX as u64 {
            recent.keep(&other, Seq(number), &piece(10, number + 1));
        }
        assert!(recent.find(&one, Seq(3)).is_none());
        recent.keep(&one, Seq(3), &piece(BYTES_MAX, 5));
        assert!(recent.find(&other, Seq(9)).is_none(), "its bytes take all the room");
        recent.keep(&one, Seq(5), &piece(BYTES_MAX + 1, 6));
        assert!(recent.kept.lock().unwrap().is_empty());
    }
}
