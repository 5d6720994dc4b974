//! The keeper's side towards nodes: the listener, the connection of the attached node, and the events that
//! are held for it. Decides nothing about the session.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use bytes::Bytes;
use rustix::net::{SocketFlags, accept_with};
use windlass_lifecycle::link::KeeperHalf;
use windlass_protocol::event::EventKind;
use windlass_protocol::link::{FromKeeper, RefuseReason};
use windlass_protocol::{Stream, TurnNo};

use crate::complaint::complain;
use crate::connection::{ConnectionLost, NodeConnection};

/// Maximum number of connections that have not attached. When one more comes, the oldest is closed.
const CALLERS_MAX: usize = 4;

/// Maximum number of failed turns that are remembered for the next node: more than can be queued in a
/// session.
const FAILED_MAX: usize = 128;

pub(crate) struct NodeSide {
    /// `None` once the session is over and the keeper only holds twins.
    pub listener: Option<OwnedFd>,
    pub link: KeeperHalf,
    /// The connection of the attached node.
    pub connection: Option<NodeConnection>,
    /// Connections that have not attached yet.
    pub callers: Vec<NodeConnection>,
    /// Since when no node is attached; the keeper ends itself after the grace.
    pub alone_since: Option<Instant>,
    /// Turns that a node with a full disk has reported to clients as failed.
    failed: VecDeque<TurnNo>,
    /// Why an event could not be encoded.
    failure: Option<String>,
}

impl NodeSide {
    pub fn new(listener: OwnedFd) -> Self {
        Self {
            listener: Some(listener),
            link: KeeperHalf::default(),
            connection: None,
            callers: Vec::new(),
            alone_since: Some(Instant::now()),
            failed: VecDeque::new(),
            failure: None,
        }
    }

    /// Numbers an event and holds it; it is sent at the end of this round. An event that is too long for the
    /// link ends the session ([`Self::take_failure`]).
    pub fn tell(&mut self, turn: Option<TurnNo>, kind: EventKind, body: Bytes) {
        if self.failure.is_some() {
            // The session ends. Events after the missing one would be misleading.
            return;
        }
        if let Err(error) = self.link.push(turn, kind, body) {
            self.failure = Some(format!("an event is too long for the node: {error}"));
        }
    }

    /// Adds a line of the keeper to the worker's stderr.
    pub fn print_line(&mut self, line: &'static [u8]) {
        let output = EventKind::Output { stream: Stream::Stderr, background: true };
        self.tell(None, output, Bytes::from_static(line));
    }

    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Sends a message to the attached node, if there is one. If the message cannot be encoded, the
    /// connection is closed, and the node gets the state when it attaches again.
    pub fn say(&mut self, message: &FromKeeper) {
        let Some(node) = &mut self.connection else { return };
        if let Err(error) = node.say(message) {
            complain!("keeper: cannot send a message to the node: {error}");
            self.lose();
        }
    }

    /// Attaches this node. The connection of the former node is closed: the former node is fenced.
    pub fn attach(&mut self, node: NodeConnection) {
        self.connection = Some(node);
        self.alone_since = None;
    }

    pub fn lose(&mut self) {
        self.connection = None;
        self.alone_since = Some(Instant::now());
    }

    /// Writes held events to the node, as much as the socket accepts.
    pub fn flush(&mut self) -> Result<(), ConnectionLost> {
        match &mut self.connection {
            Some(node) => node.flush(&self.link),
            None => Ok(()),
        }
    }

    pub fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Some(listener) = &self.listener
            && let Ok(socket) = accept_with(listener, flags)
        {
            if self.callers.len() == CALLERS_MAX {
                self.callers.remove(0);
            }
            self.callers.push(NodeConnection::new(socket));
        }
    }

    pub fn refuse(&self, mut caller: NodeConnection, reason: RefuseReason) {
        if let Err(error) = caller.say(&FromKeeper::Refused { epoch: self.link.epoch(), reason }) {
            complain!("keeper: cannot send a refusal: {error}");
        }
        let _ = caller.flush(&KeeperHalf::default());
    }

    pub fn remember_failed(&mut self, turn: TurnNo) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_front();
        }
        self.failed.push_back(turn);
    }

    pub fn failed(&self) -> Vec<TurnNo> {
        self.failed.iter().copied().collect()
    }

    /// The session is over: closes the listener and all connections.
    pub fn retire(&mut self) {
        let _ = self.flush();
        self.listener = None;
        self.connection = None;
        self.callers.clear();
        self.alone_since = None;
    }
}
