//! Copies of events: each event once and in order, whatever happens to the servers.

use std::convert::Infallible;

use bytes::Bytes;
use windlass_fleet::copies::{CopiedEvents, CopyProgress, SessionCopy};
use windlass_protocol::fleet::{BootNonce, WriteStamp};
use windlass_protocol::{Revision, Seq, SessionId};

use crate::engine::answered;
use crate::three_servers;

/// A journal whose events are their own numbers.
struct Numbers {
    end: u64,
}

impl CopiedEvents for Numbers {
    type Error = Infallible;

    async fn events(
        &mut self,
        after: Seq,
        bytes_max: usize,
    ) -> Result<Option<(Bytes, Seq)>, Self::Error> {
        let last = self.end.min(after.0 + bytes_max as u64 / 8 / 512);
        let numbers = after.0 + 1..=last;
        let bytes: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
        Ok((!bytes.is_empty()).then(|| (bytes.into(), Seq(last))))
    }
}

#[tokio::test]
async fn events_are_copied_once_and_in_order_while_leaders_are_killed() {
    let mut engine = three_servers!();
    let store = engine.store().await;
    let session = SessionId::parse("copied").expect("a name");
    let mut source = Numbers { end: 4_000 };
    let mut steps = 0;
    let mut stamps = (0..).map(|write| WriteStamp { boot: BootNonce(1), write });
    let mut copy = SessionCopy::new(store.clone(), session.clone(), Revision(9), Seq(source.end));
    loop {
        let stamp = stamps.next().expect("numbers do not end");
        match copy.step(stamp, &mut source).await.expect("a source without errors") {
            CopyProgress::Complete => break,
            CopyProgress::Moved => {}
            CopyProgress::Unanswered => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
        steps += 1;
        match steps {
            40 | 120 => {
                let leader = engine.leader(&store).await;
                engine.kill(leader);
                engine.run(leader);
            }
            // A new start of the node knows nothing of the copy.
            80 => {
                let end = Seq(source.end);
                copy = SessionCopy::new(store.clone(), session.clone(), Revision(9), end);
            }
            _ => {}
        }
    }
    assert_eq!(copy.copied(), Seq(4_000));
    let (mut numbers, mut after) = (Vec::new(), Revision(0));
    while let Some((batch, revision)) =
        answered(async || store.read_copy(&session, after).await).await
    {
        let events = batch.events.chunks_exact(8);
        numbers.extend(events.map(|event| u64::from_be_bytes(event.try_into().expect("8 bytes"))));
        assert_eq!(numbers.last(), Some(&batch.head.last.0));
        after = revision;
    }
    assert!(numbers.iter().copied().eq(1..=4_000), "{} events", numbers.len());
    // A later session of the name goes on behind them; the earlier one copies nothing more.
    let mut later = SessionCopy::new(store.clone(), session.clone(), Revision(10), Seq(5));
    let mut few = Numbers { end: 5 };
    while later.step(stamps.next().expect("numbers"), &mut few).await.expect("copied")
        != CopyProgress::Complete
    {}
    source.end = 4_100;
    copy.appended(Seq(4_100));
    while copy.step(stamps.next().expect("numbers"), &mut source).await.expect("copied")
        != CopyProgress::Complete
    {}
    assert_eq!((later.copied(), copy.copied()), (Seq(5), Seq(4_000)));
}
