//! The keeper's watch over a session's limits:
//!
//! - the memory of all processes together, if no cgroup counts it;
//! - the number of processes, if it stays at its maximum;
//! - the growth of the workspace.
//!
//! Limits that the kernel enforces by itself (file size, open files) need no watch.
//!
//! The watch costs a short turn nothing. It checks turns that last, processes that a turn has left running,
//! and once after a turn. Between turns, with no processes left running, there is no timer.

mod disk;
mod processes;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use windlass_procs::cgroup::Gauge;
use windlass_procs::sched_slice::{SchedSlice, SliceTarget, set_slice};
use windlass_protocol::event::EventKind;
use windlass_protocol::link::Launch;
use windlass_protocol::policy::{Limit, Limits};

use self::disk::{DiskExcess, DiskMeter, far_over};
pub(crate) use self::processes::ProcessList;

/// Longest and shortest time between checks, and from a turn's start or end to the first check.
const CHECK_EVERY: Duration = Duration::from_millis(100);
const CHECK_SOONEST: Duration = Duration::from_millis(5);

/// Assumed growth of a session's memory where only the watch limits it: about what two processors can write.
const GROWTH_PER_S: u64 = 4 << 30;

/// Frequent checks take at most one part in so many of a processor's time.
const CHECK_SHARE: u32 = 10;

/// Consecutive short turns postpone a check for at most this long.
const POSTPONE_MAX: Duration = Duration::from_secs(1);

/// How long the number of processes may stay at its maximum before the session is ended.
const AT_MAX_FOR: Duration = Duration::from_secs(2);

/// By how many processes a session may exceed the limit without being ended at once. The watch also counts
/// the sandbox's own processes, and some that the kernel does not count.
const ABOVE_SLACK: u64 = 8;

/// Minimum time between two reports on processes that the kernel has killed.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The state of the watch, and when the next check is due.
#[derive(Debug, Default)]
pub(crate) struct LimitWatch {
    limits: Limits,
    gauge: Gauge,
    /// What the disk limit counts, each on its own, with the words for a message.
    disks: Vec<(&'static str, DiskMeter)>,
    schedule: Schedule,
    /// Bytes of memory that were left at the last check. `None` if a cgroup limits the memory.
    memory_left: Option<u64>,
    /// Since when the number of processes is at its maximum.
    at_max_since: Option<Instant>,
    refused: u64,
    oom_kills: u64,
    oom_seen: Option<Instant>,
    oom_told: Option<Instant>,
    /// The exceeded limit because of which the session's processes are being killed.
    reached: Option<Limit>,
    /// The worker that got long scheduler slices because its turn lasted.
    slowed: Option<u32>,
}

/// When to check.
#[derive(Debug, Default)]
struct Schedule {
    due: Option<Instant>,
    /// Until when the next check may be postponed.
    at_latest: Option<Instant>,
    left: LeftRunning,
}

/// Whether the last check found processes besides the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LeftRunning {
    #[default]
    Nothing,
    Something,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Good,
    /// The kernel has killed a process at the memory limit.
    Killed {
        message: String,
    },
    /// A limit is exceeded.
    Over {
        limit: Limit,
        message: String,
    },
    /// A limit is exceeded by so much that the session ends.
    FarOver {
        limit: Limit,
        message: String,
    },
}

/// Whether a worker has just become ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerAge {
    New,
    Known,
}

/// Whether a turn is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnActivity {
    Running,
    None,
}

impl Schedule {
    /// A turn starts or ends: schedules or postpones the next check.
    fn touch(&mut self, now: Instant, pause: Duration) {
        let at_latest = *self.at_latest.get_or_insert(now + POSTPONE_MAX);
        if self.due.is_none() || (self.left == LeftRunning::Nothing && now + pause < at_latest) {
            self.due = Some(now + pause);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// A check was done: schedules the next one if a turn or other processes are running.
    fn checked(&mut self, now: Instant, turn: TurnActivity, left: LeftRunning, pause: Duration) {
        self.left = left;
        self.at_latest = None;
        let again = turn == TurnActivity::Running || left == LeftRunning::Something;
        self.due = again.then(|| now + pause);
    }
}

impl LimitWatch {
    /// A watch over a session's cgroups and workspace, starting from their current state.
    pub fn of(launch: &Launch) -> Self {
        Self::unlimited(&launch.cgroups).limited(launch)
    }

    /// A watch over the cgroups of a pooled worker, whose session and workspace are not known yet.
    pub fn unlimited(cgroups: &[PathBuf]) -> Self {
        let gauge = Gauge::open(cgroups);
        let (oom_kills, refused) = (gauge.oom_kills(), gauge.refused_processes());
        Self { gauge, oom_kills, refused, ..Self::default() }
    }

    /// Adds a session's limits and workspace.
    pub fn limited(mut self, launch: &Launch) -> Self {
        self.limits = launch.limits;
        self.memory_left = self.watched_memory();
        let counted = [
            ("the workspace has", Some(&launch.cwd)),
            ("the packages that were installed have", launch.scratch.as_ref()),
        ];
        if let Some(allowed) = launch.limits.disk_bytes {
            let far = launch.session.tenant().map(|_| far_over(allowed));
            let meter = |path: &PathBuf| DiskMeter::of(path).allowing(allowed).ending_at(far);
            self.disks =
                counted.into_iter().filter_map(|(what, path)| Some((what, meter(path?)))).collect();
        }
        self
    }

    /// Measures the workspace before the worker changes it, at most as much as one check walks. Called while
    /// the worker starts and the keeper has nothing else to do.
    pub fn measure_baseline(&mut self) {
        for (_, disk) in &mut self.disks {
            if !disk.has_baseline() {
                disk.check(Instant::now(), ProcessList::default);
            }
        }
    }

    /// Measures what the last worker has left, before the next one starts.
    pub fn measure_left(&mut self) {
        for (_, disk) in &mut self.disks {
            disk.measure_left(Instant::now());
        }
    }

    /// When the next check is due.
    pub fn next_check(&self) -> Option<Instant> {
        self.schedule.due
    }

    /// A worker is ready or gets a turn: it gets short scheduler slices until the turn proves to be long.
    pub fn use_short_slices(&mut self, worker: u32, new: WorkerAge) {
        if self.slowed.take().is_some() || new == WorkerAge::New {
            set_slice(SliceTarget::Thread(worker), SchedSlice::Short);
        }
    }

    /// A turn starts or ends.
    pub fn turn_changed(&mut self) {
        let limits = &self.limits;
        if limits.memory_bytes.is_some() || limits.processes.is_some() || !self.disks.is_empty() {
            self.schedule.touch(Instant::now(), pause(self.memory_left, Duration::ZERO));
        }
    }

    /// Checks the limits if a check is due. `pids` are the process ids of a worker that is ready, and of its init.
    pub fn check_due(
        &mut self,
        now: Instant,
        pids: Option<(u32, Option<u32>)>,
        turn: TurnActivity,
        list: impl FnOnce() -> ProcessList,
    ) -> Finding {
        if !self.schedule.is_due(now) {
            return Finding::Good;
        }
        let Some(pids) = pids else {
            self.reset();
            return Finding::Good;
        };
        let began = processor_time();
        let found = self.check(now, turn, pids, (&list(), began));
        if let Finding::Over { limit, .. } | Finding::FarOver { limit, .. } = &found {
            self.reached = Some(*limit);
        }
        found
    }

    /// The limit because of which the worker ended, if there is one, and an event about it if none was sent
    /// yet. `how` is the worker's exit status from [`windlass_procs::reap_all`].
    pub fn limit_of_end(&mut self, how: &str) -> (Option<Limit>, Option<EventKind>) {
        let told = self.reached.is_some();
        let limit = self.ended_by(how.contains("SIGKILL"));
        let untold = limit.filter(|_| !told).map(|limit| {
            let allowed = mebibytes(self.limits.memory_bytes.unwrap_or_default());
            let message = format!("the session reached its memory limit of {allowed}");
            EventKind::LimitReached { limit, message, ends_session: false }
        });
        (limit, untold)
    }

    fn reset(&mut self) {
        self.schedule = Schedule::default();
        self.memory_left = self.watched_memory();
        self.at_max_since = None;
    }

    /// The memory limit, if only the watch enforces it.
    fn watched_memory(&self) -> Option<u64> {
        self.limits.memory_bytes.filter(|_| !self.gauge.limits_memory())
    }

    fn check(
        &mut self,
        now: Instant,
        turn: TurnActivity,
        (worker, init): (u32, Option<u32>),
        (listed, began): (&ProcessList, Duration),
    ) -> Finding {
        let left = match listed.others_than(worker, init) {
            true => LeftRunning::Something,
            false => LeftRunning::Nothing,
        };
        self.use_long_slices(listed, turn, worker);
        let running = turn == TurnActivity::Running || left == LeftRunning::Something;
        let mut finding = self.check_kills(now);
        if finding == Finding::Good {
            finding = self
                .over_memory(listed, worker)
                .or_else(|| self.over_processes(now, listed))
                .or_else(|| self.over_disk(now, running, listed))
                .unwrap_or(Finding::Good);
        }
        let took = processor_time().saturating_sub(began);
        self.schedule.checked(now, turn, left, pause(self.memory_left, took));
        finding
    }

    /// Gives long scheduler slices to the worker in a turn that lasts and to all processes that it has
    /// started, so that they do not delay short turns of other sessions.
    fn use_long_slices(&mut self, listed: &ProcessList, turn: TurnActivity, worker: u32) {
        for thread in listed.thread_ids() {
            if thread != worker {
                set_slice(SliceTarget::Thread(thread), SchedSlice::Long);
            } else if turn == TurnActivity::Running && self.slowed.replace(worker) != Some(worker) {
                set_slice(SliceTarget::Thread(worker), SchedSlice::Long);
            }
        }
    }

    fn check_kills(&mut self, now: Instant) -> Finding {
        if !self.oom_rose(now) || self.oom_told.is_some_and(|told| now < told + TELL_EVERY) {
            return Finding::Good;
        }
        self.oom_told = Some(now);
        Finding::Killed {
            message: format!(
                "the kernel killed a process of this session at the memory limit of {}",
                mebibytes(self.limits.memory_bytes.unwrap_or_default())
            ),
        }
    }

    fn oom_rose(&mut self, now: Instant) -> bool {
        let kills = self.gauge.oom_kills();
        let rose = kills > self.oom_kills;
        self.oom_kills = kills;
        if rose {
            self.oom_seen = Some(now);
        }
        rose
    }

    /// Checks the memory of all processes together, if no cgroup counts it.
    fn over_memory(&mut self, listed: &ProcessList, worker: u32) -> Option<Finding> {
        let allowed = self.watched_memory()?;
        let files = processes::private_files_bytes(worker) + listed.unmapped_bytes();
        // The resident size of each process includes shared pages. Only if that sum exceeds the limit, the
        // kernel is asked for proportional sizes, which takes it longer.
        let held = match listed.resident_bytes() + files {
            sum if sum > allowed => listed.proportional_bytes() + files,
            sum => sum,
        };
        self.memory_left = Some(allowed.saturating_sub(held));
        (held > allowed).then(|| Finding::Over {
            limit: Limit::Memory,
            message: format!(
                "the session's processes and private /tmp used {} together; the limit is {}",
                mebibytes(held),
                mebibytes(allowed)
            ),
        })
    }

    fn over_processes(&mut self, now: Instant, listed: &ProcessList) -> Option<Finding> {
        let most = u64::from(self.limits.processes?);
        let (count, full) = match self.gauge.processes() {
            Some((count, most)) => {
                let refused = self.gauge.refused_processes();
                let tried = std::mem::replace(&mut self.refused, refused) < refused;
                (count, count >= most || tried)
            }
            None => (listed.threads(), listed.threads() >= most),
        };
        if !full {
            self.at_max_since = None;
            return None;
        }
        let since = *self.at_max_since.get_or_insert(now);
        let message = if count > most + ABOVE_SLACK {
            // The kernel does not refuse processes here, so the session is ended at once.
            format!("the session had {count} processes and threads; the limit is {most}")
        } else if now >= since + AT_MAX_FOR {
            let seconds = now.duration_since(since).as_secs();
            format!("the session was at its limit of {most} processes and threads for {seconds} s")
        } else {
            return None;
        };
        Some(Finding::Over { limit: Limit::Processes, message })
    }

    /// Checks the growth of the workspace and of the installed packages, each on its own. A session that already
    /// exceeds the limit may go on as long as it does not grow, so that it can remove files. So may a session in
    /// which nothing runs. A session of a tenant ends when it is far over the limit: it could grow in each turn.
    fn over_disk(&mut self, now: Instant, running: bool, listed: &ProcessList) -> Option<Finding> {
        let (grown, what) = self
            .disks
            .iter_mut()
            .find_map(|(what, disk)| Some((disk.check(now, || listed.clone())?, *what)))?;
        let (by, allowed) = (mebibytes(grown.by), mebibytes(grown.allowed));
        let message = format!("{what} grown by {by}; the limit is {allowed}");
        running.then_some(match grown.excess {
            DiskExcess::Over => Finding::Over { limit: Limit::Disk, message },
            DiskExcess::FarOver => Finding::FarOver { limit: Limit::Disk, message },
        })
    }

    /// The limit because of which the worker was killed, if there is one.
    fn ended_by(&mut self, killed: bool) -> Option<Limit> {
        let now = Instant::now();
        let kernel = self.oom_rose(now) || self.oom_seen.is_some_and(|at| now < at + TELL_EVERY);
        self.oom_seen = None;
        self.reset();
        self.reached.take().or((killed && kernel).then_some(Limit::Memory))
    }
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Time to the next check. It is shorter than usual if `memory_left` could be used up sooner. `took` is the
/// processor time of the last check: checks must not take more than their share ([`CHECK_SHARE`]).
fn pause(memory_left: Option<u64>, took: Duration) -> Duration {
    let Some(memory_left) = memory_left else { return CHECK_EVERY };
    let used_up = Duration::from_millis(memory_left.saturating_mul(1000) / GROWTH_PER_S);
    used_up.max(CHECK_SOONEST).max(took * CHECK_SHARE).min(CHECK_EVERY)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_long_turn_is_checked_repeatedly_and_a_short_one_once_after_it() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(start));
        schedule.touch(start, CHECK_EVERY);
        assert!(!schedule.is_due(at(start, 99)) && schedule.is_due(at(start, 100)));
        schedule.checked(at(start, 100), TurnActivity::Running, LeftRunning::Nothing, CHECK_EVERY);
        assert!(!schedule.is_due(at(start, 199)) && schedule.is_due(at(start, 200)));
        schedule.touch(at(start, 150), CHECK_EVERY);
        assert!(!schedule.is_due(at(start, 249)) && schedule.is_due(at(start, 250)));
        schedule.checked(at(start, 250), TurnActivity::None, LeftRunning::Nothing, CHECK_EVERY);
        assert_eq!(schedule.due, None);
    }

    #[test]
    fn short_turns_postpone_a_check_but_not_for_ever() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        let checked = (0..2000).step_by(50).find(|ms| {
            let due = schedule.is_due(at(start, *ms));
            schedule.touch(at(start, *ms), CHECK_EVERY);
            due
        });
        assert_eq!(checked, Some(950));
    }

    #[test]
    fn processes_that_a_turn_leaves_running_are_checked_on_time() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.touch(start, CHECK_EVERY);
        schedule.checked(at(start, 100), TurnActivity::None, LeftRunning::Something, CHECK_EVERY);
        schedule.touch(at(start, 190), CHECK_EVERY);
        assert!(schedule.is_due(at(start, 200)));
    }

    #[test]
    fn checks_come_sooner_with_less_memory_left_and_stay_within_their_share() {
        let after =
            |memory_left: Option<u64>, took_ms| pause(memory_left, Duration::from_millis(took_ms));
        assert_eq!(after(None, 0), CHECK_EVERY, "the kernel counts");
        assert_eq!(after(Some(4 << 30), 0), CHECK_EVERY);
        assert_eq!(after(Some(128 << 20), 0), Duration::from_millis(31));
        assert_eq!(after(Some(0), 0), CHECK_SOONEST);
        assert_eq!(after(Some(0), 2), Duration::from_millis(20));
        assert_eq!(after(Some(0), 900), CHECK_EVERY);
    }

    fn watch(limits: Limits) -> LimitWatch {
        LimitWatch { limits, ..LimitWatch::default() }
    }

    #[test]
    fn processes_at_their_maximum_are_ended_after_a_while_and_above_it_at_once() {
        let start = Instant::now();
        let mut watch = watch(Limits { processes: Some(8), ..Limits::default() });
        let mut over = |ms, count| {
            let listed = ProcessList::of_threads(&vec![1; count]);
            let found = watch.over_processes(at(start, ms), &listed);
            matches!(found, Some(Finding::Over { limit: Limit::Processes, .. }))
        };
        assert!(!over(0, 9) && !over(1900, 9));
        assert!(!over(1950, 2), "it has come down");
        assert!(!over(2000, 9) && over(4000, 9));
        assert!(!over(4100, 7) && over(4200, 17));
    }

    #[test]
    fn figures_are_given_in_mebibytes() {
        assert_eq!(mebibytes(64 << 20), "64 MiB");
        assert_eq!(mebibytes((64 << 20) + (1 << 19)), "64.5 MiB");
    }
}
