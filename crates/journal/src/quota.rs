//! Which segments a session keeps: the oldest, up to half of the quota, and as many of the newest as fit.
//! Pure; the log deletes the files.

use windlass_protocol::Seq;

use crate::segment::Segment;
use crate::shared::Unindexed;

/// The default quota of a session.
pub const QUOTA_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;

/// The smallest quota. A smaller one is raised to it.
pub const QUOTA_BYTES_MIN: u64 = 4 * SEGMENT_BYTES_MIN;

const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
const SEGMENT_BYTES_MAX: u64 = 1024 * 1024;

/// The length at which a segment is full.
pub(crate) fn segment_bytes(quota_bytes: u64) -> u64 {
    (quota_bytes / 16).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

/// The segments to drop before a new one starts, oldest first. `needed` are events that must stay readable:
/// the code of turns that have not ended.
pub(crate) fn segments_to_drop(
    segments: &[Segment],
    quota_bytes: u64,
    needed: &[Seq],
    unindexed: &Unindexed,
) -> Vec<Seq> {
    let Unindexed::Turns(unindexed) = unindexed else { return Vec::new() };
    let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let room = quota_bytes.saturating_sub(segment_bytes(quota_bytes));
    let head = head_len(segments, quota_bytes / 2);
    let mut dropped = Vec::new();
    // Never drop the newest segment: readers look at the end of the output first.
    for (index, segment) in segments.iter().enumerate().skip(head) {
        let Some(next) = segments.get(index + 1) else { break };
        if total <= room {
            break;
        }
        let holds = |seq: &Seq| segment.first_seq <= *seq && *seq < next.first_seq;
        if !needed.iter().any(holds) && !unindexed.iter().any(holds) {
            total -= segment.bytes;
            dropped.push(segment.first_seq);
        }
    }
    dropped
}

/// The number of contiguous segments from the start that fit into the first half of the quota.
fn head_len(segments: &[Segment], half_bytes: u64) -> usize {
    let mut bytes = 0;
    let fits = |(index, segment): &(usize, &Segment)| {
        bytes += segment.bytes;
        *index == 0 || (segment.contiguous && bytes <= half_bytes)
    };
    segments.iter().enumerate().take_while(fits).count()
}
