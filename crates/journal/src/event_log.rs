//! Read access to sessions, independent of where their events are stored. The HTTP door reads only through
//! these two traits, so another log (for example a replica of a lost machine's sessions) can replace this
//! node's journal. Nothing here writes.

use std::fmt::Debug;

use bytes::Bytes;
use windlass_protocol::{Event, Seq, SessionId, Stream, TenantName, TurnId};

use crate::{
    IndexError, Journal, LoadError, OutputMatches, OutputRange, OutputSlice, ReadError,
    SessionFacts, SessionReader, StreamEnds, TurnRecord,
};

/// Read-only access to recorded sessions.
pub trait EventLog: Debug + Send + Sync {
    /// Up to `limit` sessions of a tenant, or of all, newest first.
    fn sessions(
        &self,
        tenant: Option<&TenantName>,
        limit: usize,
    ) -> Result<Vec<SessionFacts>, IndexError>;

    /// The facts of a session, if the log has it.
    fn session(&self, id: &SessionId) -> Result<Option<SessionFacts>, IndexError>;

    /// A turn that has ended.
    fn turn(&self, session: &SessionId, id: &TurnId) -> Result<Option<TurnRecord>, IndexError>;

    /// A reader of one session's events and output.
    fn reader(&self, id: &SessionId) -> Result<Box<dyn EventReader>, LoadError>;
}

/// Reads the events and the output of one session. Each reader has its own position in the events.
pub trait EventReader: Debug + Send + Sync {
    /// The last recorded event.
    fn last_seq(&self) -> Seq;

    /// The end of the output so far.
    fn output_end(&self) -> u64;

    /// The events after `after`, in order. At most `events_max` events and `bytes_max` bytes of bodies, but
    /// always one event if there is one.
    fn events(
        &mut self,
        after: Seq,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Event, Bytes)>, ReadError>;

    /// The start of a range of output: at most its first `count` bytes, up to the first gap.
    fn head(&self, count: usize, range: OutputRange) -> Result<OutputSlice, ReadError>;

    /// The end of a range of output: at most its last `count` bytes, after the last gap.
    fn tail(&self, count: u64, range: OutputRange) -> Result<OutputSlice, ReadError>;

    /// The start and the end of some streams of a range of output, at most `ends_max` bytes each.
    fn stream_ends(
        &self,
        streams: &[Stream],
        ends_max: usize,
        range: OutputRange,
    ) -> Result<StreamEnds, ReadError>;

    /// The display that an event completed: its mime type and bytes.
    fn display(&self, seq: Seq) -> Result<Option<(String, Bytes)>, ReadError>;

    /// The first `matches_max` lines of a range of output that contain the text.
    fn search(
        &self,
        needle: &[u8],
        range: OutputRange,
        matches_max: usize,
    ) -> Result<OutputMatches, ReadError>;

    /// Another reader at the same position.
    fn again(&self) -> Box<dyn EventReader>;
}

impl EventLog for Journal {
    fn sessions(
        &self,
        tenant: Option<&TenantName>,
        limit: usize,
    ) -> Result<Vec<SessionFacts>, IndexError> {
        self.sessions_of(tenant, limit)
    }

    fn session(&self, id: &SessionId) -> Result<Option<SessionFacts>, IndexError> {
        Self::session(self, id)
    }

    fn turn(&self, session: &SessionId, id: &TurnId) -> Result<Option<TurnRecord>, IndexError> {
        Self::turn(self, session, id)
    }

    fn reader(&self, id: &SessionId) -> Result<Box<dyn EventReader>, LoadError> {
        Self::reader(self, id).map(|reader| Box::new(reader) as Box<dyn EventReader>)
    }
}

impl EventReader for SessionReader {
    fn last_seq(&self) -> Seq {
        Self::last_seq(self)
    }

    fn output_end(&self) -> u64 {
        Self::output_end(self)
    }

    fn events(
        &mut self,
        after: Seq,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Event, Bytes)>, ReadError> {
        Self::events(self, after, events_max, bytes_max)
    }

    fn head(&self, count: usize, range: OutputRange) -> Result<OutputSlice, ReadError> {
        Self::head(self, count, range)
    }

    fn tail(&self, count: u64, range: OutputRange) -> Result<OutputSlice, ReadError> {
        Self::tail(self, count, range)
    }

    fn stream_ends(
        &self,
        streams: &[Stream],
        ends_max: usize,
        range: OutputRange,
    ) -> Result<StreamEnds, ReadError> {
        Self::stream_ends(self, streams, ends_max, range)
    }

    fn display(&self, seq: Seq) -> Result<Option<(String, Bytes)>, ReadError> {
        Self::display(self, seq)
    }

    fn search(
        &self,
        needle: &[u8],
        range: OutputRange,
        matches_max: usize,
    ) -> Result<OutputMatches, ReadError> {
        Self::search(self, needle, range, matches_max)
    }

    fn again(&self) -> Box<dyn EventReader> {
        Box::new(self.clone())
    }
}
