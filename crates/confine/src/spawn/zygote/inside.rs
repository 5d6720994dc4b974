//! The zygote's side: what the forked interpreter does in order to become a worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::super::channel::{Channel, StartupMessage};
use super::super::descriptors::{self, WorkerDescriptors};
use crate::enter::{ConfineStep, PreparedPlan, StepError, UnenteredView};
use crate::plan::{Mount, NetworkPlan, Plan};

/// The keeper's pid in its pid namespace.
const KEEPER: i32 = 1;

/// Why a forked interpreter did not become a worker.
#[derive(Debug)]
pub(crate) enum BecomeError {
    /// The plan cannot be prepared, or does not fit this process.
    Unprepared,
    Confine(StepError),
    CanaryThrough,
}

/// Sends the keeper the worker's pid.
pub(crate) fn send_worker_pid(channel: &Channel, worker: i32) {
    channel.send(&StartupMessage::Pids { init: 0, worker });
}

/// Tells the keeper that its namespaces could not be entered.
pub(crate) fn send_join_error(channel: &Channel, errno: i32) {
    channel.send(&StartupMessage::Failed(StepError { step: ConfineStep::Join, errno, index: 0 }));
}

/// A view that was built before the worker had a session.
#[derive(Debug)]
pub(crate) struct PrebuiltView {
    prepared: PreparedPlan,
    view: UnenteredView,
}

/// Whether this process has entered the network namespace that was made for it.
static HAS_OWN_NETWORK: AtomicBool = AtomicBool::new(false);

/// Prepares a plan. Refuses a plan with its own network while this process is still in the machine's network
/// namespace.
fn prepare(plan: &Plan) -> Result<PreparedPlan, BecomeError> {
    if plan.network != NetworkPlan::Machine && !HAS_OWN_NETWORK.load(Ordering::Relaxed) {
        return Err(BecomeError::Unprepared);
    }
    PreparedPlan::with_keeper(plan, KEEPER).map_err(|_| BecomeError::Unprepared)
}

/// Builds a view in the calling process, which has one thread and no session yet.
pub(crate) fn build_ahead(plan: &Plan, channel: &Channel) -> Result<PrebuiltView, BecomeError> {
    let prepared = prepare(plan)?;
    match prepared.begin_view() {
        Ok(view) => Ok(PrebuiltView { prepared, view }),
        Err(failed) => {
            channel.send(&StartupMessage::Failed(failed));
            Err(BecomeError::Confine(failed))
        }
    }
}

/// Confines the calling process, which has one thread, runs the canaries, and reports the result. If the
/// process has already built its view, the plan contains only the mounts to add.
pub(crate) fn become_worker(
    plan: &Plan,
    built: Option<PrebuiltView>,
    cwd: &std::ffi::CStr,
    descriptors: &WorkerDescriptors<'_>,
    channel: &Channel,
) -> Result<(), BecomeError> {
    let prepared = prepare(plan)?;
    let can_be_added = |mount: &Mount| {
        matches!(
            mount,
            Mount::Bind { .. } | Mount::Hold { .. } | Mount::Hide { .. } | Mount::Cover { .. }
        )
    };
    if built.is_some() && !plan.view.iter().all(can_be_added) {
        return Err(BecomeError::Unprepared);
    }
    let become_it = || {
        prepared.drop_zygote_capabilities()?;
        if let Some(built) = &built {
            // This comes first: the next step closes the view's descriptors with all others.
            built.prepared.finish_view(&built.view, &prepared)?;
        }
        descriptors::install(descriptors, channel)?;
        let listener = match &built {
            Some(_) => prepared.confine_in_view()?,
            None => prepared.confine()?,
        };
        if let Some(listener) = listener {
            channel.send_descriptor(b'L', listener.as_fd());
        }
        let results = prepared.canaries.run();
        channel.send(&StartupMessage::Canaries(results));
        rustix::process::chdir(cwd).map_err(StepError::at(ConfineStep::Directory))?;
        // Changing its capabilities made the process unreadable, even to itself.
        set_dumpable_behavior(DumpableBehavior::Dumpable)
            .map_err(StepError::at(ConfineStep::Rights))?;
        Ok(results)
    };
    let became = become_it();
    // The view's descriptors are closed, or the process is about to exit: nothing must close them again.
    std::mem::forget(built);
    match became {
        Ok(results) if results.required_failed => Err(BecomeError::CanaryThrough),
        Ok(_) => {
            channel.close();
            Ok(())
        }
        Err(failed) => {
            channel.send(&StartupMessage::Failed(failed));
            Err(BecomeError::Confine(failed))
        }
    }
}

/// Enters namespaces. `of` is the pidfd of a process, or a namespace itself.
pub(crate) fn join(of: BorrowedFd<'_>, spaces: libc::c_int) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed.
    let answer = unsafe { libc::setns(of.as_raw_fd(), spaces) };
    match answer {
        0 => {
            HAS_OWN_NETWORK.fetch_or(spaces & libc::CLONE_NEWNET != 0, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}
