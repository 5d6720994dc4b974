//! Collects what the explanation of a failed turn needs: the refusals of the egress proxy since the turn's start, the
//! session's policy and directories, and the end of the turn's output.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_egress::Ledger;
use windlass_protocol::event::TurnError;
use windlass_protocol::policy::Limit;
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::{Outcome, TurnNo};

use super::output_ends::OutputEnds;
use super::public_view::PublicView;
use super::spec::Spec;
use crate::explain::{self, ConfinedSession, TAIL_BYTES_MAX, TurnFacts};

/// The refusals of the egress proxy, and the session's own directories.
#[derive(Debug, Default)]
pub(super) struct RefusalWatch {
    egress: Option<Arc<Ledger>>,
    /// The turn that started last, and the number of the proxy's decisions before it.
    started: Option<(TurnNo, u64)>,
    /// Directories that the node made for the session, besides its workspace.
    own: Vec<PathBuf>,
}

/// A turn that ends.
pub(super) struct RefusalQuestion<'a> {
    pub turn: TurnNo,
    pub outcome: Outcome,
    pub error: Option<&'a TurnError>,
    /// The limit that was reported last.
    pub limit: Option<Limit>,
    pub output: &'a OutputEnds,
    pub view: &'a PublicView,
}

impl RefusalWatch {
    /// `running` is the turn that an earlier node started.
    pub fn new(egress: Option<Arc<Ledger>>, spec: &Spec, running: Option<TurnNo>) -> Self {
        let own = [&spec.tmp, &spec.agent_home, &spec.room].into_iter().flatten().cloned();
        Self { egress, started: running.map(|turn| (turn, 0)), own: own.collect() }
    }

    pub fn turn_starts(&mut self, turn: TurnNo) {
        let decisions = self.egress.as_ref().map_or(0, |ledger| ledger.decisions());
        self.started = Some((turn, decisions));
    }

    /// Why the policy made the turn fail. The output of a turn that ended well is not read.
    pub fn explain(&self, asked: RefusalQuestion<'_>) -> Option<PolicyRefusal> {
        let RefusalQuestion { turn, outcome, error, limit, output, view } = asked;
        let started = self.started.filter(|(started, _)| *started == turn);
        let refused = started
            .zip(self.egress.as_ref())
            .and_then(|((_, decisions), ledger)| ledger.refused_since(decisions));
        // A turn that did not run has an error with a code, which names the limit of an earlier turn.
        let limit = limit.filter(|_| started.is_some() || outcome == Outcome::Lost);
        if outcome == Outcome::Ok && refused.is_none() && limit.is_none() {
            return None;
        }
        let tail = match explain::reads_output(outcome, error) {
            true => output.last(TAIL_BYTES_MAX),
            false => Vec::new(),
        };
        let tail = String::from_utf8_lossy(&tail);
        let info = view.info();
        let session = ConfinedSession {
            policy: info.policy.as_deref()?,
            confinement: info.confinement.as_ref(),
            workspace: Path::new(&info.workspace),
            home: HOME.as_deref(),
            own: &self.own,
        };
        let refused = refused.as_ref();
        explain::explain(session, TurnFacts { outcome, error, limit, refused, tail: &tail })
    }
}

/// The home directory that a policy's `~` means.
static HOME: std::sync::LazyLock<Option<PathBuf>> = std::sync::LazyLock::new(std::env::home_dir);
