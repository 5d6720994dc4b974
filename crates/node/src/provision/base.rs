//! What pooled workers of one key are built for.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use windlass_confine::plan::base::BaseView;
use windlass_confine::{Around, Plan, Shape};

use super::pool::PoolKey;

/// A session's plan, and what it was made from.
#[derive(Debug)]
pub(super) struct PlannedFor<'a> {
    pub plan: &'a Plan,
    pub around: &'a Arc<Around>,
    /// The session's own directories, as the plan names them: without links.
    pub own: [&'a Path; 2],
}

/// What sessions of one key have in common.
#[derive(Debug)]
pub(super) struct PoolBase {
    pub key: PoolKey,
    pub shape: Shape,
    /// The view without the session's own directories, where sessions have a view.
    pub view: Option<BaseView>,
}

impl PoolBase {
    /// The base of sessions like this one.
    pub fn of(session: &PlannedFor<'_>) -> Self {
        let PlannedFor { plan, around, own } = session;
        let shape = Shape::of(plan);
        let view = BaseView::of(plan, own, around);
        let mut hasher = std::hash::DefaultHasher::new();
        (shape, view.as_ref().map(BaseView::fingerprint)).hash(&mut hasher);
        Self { key: PoolKey(hasher.finish()), shape, view }
    }

    /// Whether a worker with this base can become the session's.
    pub fn is_for(&self, plan: &Plan) -> bool {
        self.shape == Shape::of(plan) && self.view.as_ref().is_none_or(|view| view.is_base_of(plan))
    }

    /// Whether the machine is as it was when the base was made.
    pub fn is_current(&self, around: &Arc<Around>) -> bool {
        self.view.as_ref().is_none_or(|view| view.is_current(around))
    }
}
