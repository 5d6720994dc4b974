//! The zygote's side: what the forked interpreter does by itself on its way to being a worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::super::channel::{Channel, Word};
use super::super::places::{self, Places};
use crate::enter::{Begun, Failed, Prepared, Step};
use crate::plan::{Mount, NetworkPlan, Plan};

/// The keeper's number in its own pid namespace.
const KEEPER: i32 = 1;

/// Why a forked interpreter did not become a worker.
#[derive(Debug)]
pub(crate) enum BecomeError {
    Unprepared,
    Confine(Failed),
    CanaryThrough,
}

/// Says the worker's number, for whoever forked it.
pub(crate) fn say_worker(channel: &Channel, worker: i32) {
    channel.say(&Word::Pids { init: 0, worker });
}

/// Says that the namespaces could not be entered, for whoever asked for a worker in them.
pub(crate) fn say_not_joined(channel: &Channel, errno: i32) {
    channel.say(&Word::Failed(Failed { step: Step::Join, errno, place: 0 }));
}

/// A view that was built before there was a session.
#[derive(Debug)]
pub(crate) struct Built {
    prepared: Prepared,
    begun: Begun,
}

/// Whether this process has entered a network namespace that was made for it.
static NETWORKED: AtomicBool = AtomicBool::new(false);

/// A plan that has a network of its own is for none that is still in the machine's.
fn prepare(plan: &Plan) -> Result<Prepared, BecomeError> {
    if plan.network != NetworkPlan::Machine && !NETWORKED.load(Ordering::Relaxed) {
        return Err(BecomeError::Unprepared);
    }
    Prepared::below(plan, KEEPER).map_err(|_| BecomeError::Unprepared)
}

/// Builds a view in the calling process, which has one thread and waits for a session.
pub(crate) fn build_ahead(plan: &Plan, channel: &Channel) -> Result<Built, BecomeError> {
    let prepared = prepare(plan)?;
    match prepared.begin_view() {
        Ok(begun) => Ok(Built { prepared, begun }),
        Err(failed) => {
            channel.say(&Word::Failed(failed));
            Err(BecomeError::Confine(failed))
        }
    }
}

/// Confines the calling process, which has one thread, tests the sandbox, and says what came of it.
/// Where a view was built, the plan's has only what is to be added to it.
pub(crate) fn become_worker(
    plan: &Plan,
    built: Option<Built>,
    cwd: &std::ffi::CStr,
    places: &Places<'_>,
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
        prepared.shed()?;
        if let Some(built) = &built {
            // Before its descriptors are closed with all others.
            built.prepared.finish_view(&built.begun, &prepared)?;
        }
        places::take(places, channel)?;
        let listener = match &built {
            Some(_) => prepared.confine_in_view()?,
            None => prepared.confine()?,
        };
        if let Some(listener) = listener {
            channel.hand_over(b'L', listener.as_fd());
        }
        let results = prepared.canaries.run();
        channel.say(&Word::Canaries(results));
        rustix::process::chdir(cwd).map_err(Failed::at(Step::Directory))?;
        // Other rights than those it was started with had made it unreadable, even to itself.
        set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(Failed::at(Step::Rights))?;
        Ok(results)
    };
    let became = become_it();
    // Its descriptors are closed, or the process is about to end.
    std::mem::forget(built);
    match became {
        Ok(results) if results.required_failed => Err(BecomeError::CanaryThrough),
        Ok(_) => {
            channel.close();
            Ok(())
        }
        Err(failed) => {
            channel.say(&Word::Failed(failed));
            Err(BecomeError::Confine(failed))
        }
    }
}

/// Enters namespaces: those of the process that `of` is a pidfd of, or the one that it is.
pub(crate) fn join(of: BorrowedFd<'_>, spaces: libc::c_int) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed.
    let answer = unsafe { libc::setns(of.as_raw_fd(), spaces) };
    match answer {
        0 => {
            NETWORKED.fetch_or(spaces & libc::CLONE_NEWNET != 0, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}
