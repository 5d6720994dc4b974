//! The keeper's side towards nodes: where they connect, the one that is heard, and the events that are held
//! for it. Decides nothing about the session.

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

/// Connections that may wait to say who they are; the oldest goes when one more comes.
const CALLERS_MAX: usize = 4;

/// Failed turns that are remembered for the next node: more than can wait in a session.
const FAILED_MAX: usize = 128;

pub(crate) struct NodeSide {
    /// None once the session is over and only its twins are held.
    pub listener: Option<OwnedFd>,
    pub link: KeeperHalf,
    /// The node that is heard.
    pub connection: Option<NodeConnection>,
    /// Connections that have not said who they are.
    pub callers: Vec<NodeConnection>,
    /// Since when no node is heard; the keeper ends itself after the grace.
    pub alone_since: Option<Instant>,
    /// Turns whose failure a node without room for its journal has told to clients.
    failed: VecDeque<TurnNo>,
    /// Why an event cannot be told.
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

    /// Numbers an event; it goes out at the end of this round. An event that the link cannot carry
    /// ends the session ([`Self::take_failure`]).
    pub fn tell(&mut self, turn: Option<TurnNo>, kind: EventKind, body: Bytes) {
        if self.failure.is_some() {
            // The session ends; what comes after the event that is missing would tell a wrong story.
            return;
        }
        if let Err(error) = self.link.push(turn, kind, body) {
            self.failure = Some(format!("an event is too long for the node: {error}"));
        }
    }

    /// A line of the keeper's own among what the worker prints.
    pub fn note(&mut self, line: &'static [u8]) {
        let output = EventKind::Output { stream: Stream::Stderr, background: true };
        self.tell(None, output, Bytes::from_static(line));
    }

    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Says something to the node that is heard, if there is one. A node that cannot be told loses this
    /// connection, and learns the rest when it attaches again.
    pub fn say(&mut self, message: &FromKeeper) {
        let Some(node) = &mut self.connection else { return };
        if let Err(error) = node.say(message) {
            complain!("keeper: the node cannot be told: {error}");
            self.lose();
        }
    }

    /// This node is heard from now on. The former node's connection closes: it is fenced.
    pub fn hear(&mut self, node: NodeConnection) {
        self.connection = Some(node);
        self.alone_since = None;
    }

    pub fn lose(&mut self) {
        self.connection = None;
        self.alone_since = Some(Instant::now());
    }

    /// Writes what is held for the node, as much as there is room for.
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
            complain!("keeper: a refusal cannot be said: {error}");
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

    /// The session is over: nobody connects any more.
    pub fn retire(&mut self) {
        let _ = self.flush();
        self.listener = None;
        self.connection = None;
        self.callers.clear();
        self.alone_since = None;
    }
}
