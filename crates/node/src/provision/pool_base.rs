//! The base of pooled workers: the part of a plan that many sessions have in common.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use windlass_confine::plan::base::BaseView;
use windlass_confine::{Plan, SharedSurvey, WorkerShape};

use super::pool::PoolKey;

/// A session's plan, and the survey that it was made from.
#[derive(Debug)]
pub(super) struct PlannedSession<'a> {
    pub plan: &'a Plan,
    pub around: &'a Arc<SharedSurvey>,
    /// The session's own directories, as the plan names them: without symlinks.
    pub own: &'a [&'a Path],
}

/// What the plans of all sessions with one pool key have in common.
#[derive(Debug)]
pub(super) struct PoolBase {
    pub key: PoolKey,
    pub shape: WorkerShape,
    /// The mount view without the session's own directories. None if the plan has no view.
    pub view: Option<BaseView>,
}

impl PoolBase {
    /// The base of a session's plan.
    pub fn of(session: &PlannedSession<'_>) -> Self {
        let PlannedSession { plan, around, own } = session;
        let shape = WorkerShape::of(plan);
        let view = BaseView::of(plan, own, around);
        let mut hasher = std::hash::DefaultHasher::new();
        (shape, view.as_ref().map(BaseView::fingerprint)).hash(&mut hasher);
        Self { key: PoolKey(hasher.finish()), shape, view }
    }

    /// Whether a pooled worker with this base can become the session's.
    pub fn fits(&self, plan: &Plan) -> bool {
        self.shape == WorkerShape::of(plan)
            && self.view.as_ref().is_none_or(|view| view.is_base_of(plan))
    }

    /// Whether the files that the base shows and hides are still the same.
    pub fn is_current(&self, around: &Arc<SharedSurvey>) -> bool {
        self.view.as_ref().is_none_or(|view| view.is_current(around))
    }
}
