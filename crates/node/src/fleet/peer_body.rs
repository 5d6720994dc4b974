//! The body of another node's answer, on its way to the client. Once it was read whole, its connection is kept. It ends
//! with an error when the other node no longer answers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use windlass_protocol::NodeName;

use super::liveness::{AnswerWait, PeerLiveness};
use super::peers::PeerSender;
use crate::bounds::BudgetShare;

/// See the module documentation.
pub(super) struct PeerBody {
    body: Incoming,
    has_ended: bool,
    /// The node and the connection, until they are given back.
    connection: Option<(NodeName, PeerSender, PeerLiveness)>,
    /// Watches the node while the body waits for it.
    gone: Option<UntilGone>,
    /// Held until the client has the whole body.
    _share: Option<BudgetShare>,
}

type UntilGone = Pin<Box<dyn Future<Output = ()> + Send>>;

impl PeerBody {
    pub fn new(
        body: Incoming,
        node: NodeName,
        sender: PeerSender,
        peers: PeerLiveness,
        share: Option<BudgetShare>,
    ) -> Self {
        let has_ended = body.is_end_stream();
        let connection = Some((node, sender, peers));
        Self { body, has_ended, connection, gone: None, _share: share }
    }

    /// An error once the other node no longer answers.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some((node, _, peers)) = &self.connection else { return Poll::Ready(None) };
        let gone = self.gone.get_or_insert_with(|| until_gone(node.clone(), peers.clone()));
        ready!(gone.as_mut().poll(cx));
        let error = io::Error::other(format!("node {node} does not answer"));
        (self.gone, self.connection) = (None, None);
        Poll::Ready(Some(Err(error)))
    }
}

fn until_gone(node: NodeName, peers: PeerLiveness) -> UntilGone {
    Box::pin(async move { peers.until_gone(&node, AnswerWait::Long).await })
}

impl hyper::body::Body for PeerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.poll_gone(cx);
        };
        self.gone = None;
        match &frame {
            None => self.has_ended = true,
            Some(Ok(_)) => self.has_ended = self.body.is_end_stream(),
            Some(Err(_)) => {}
        }
        Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for PeerBody {
    fn drop(&mut self) {
        if let Some((node, sender, peers)) = self.connection.take_if(|_| self.has_ended) {
            peers.connections.put(node, sender);
        }
    }
}
