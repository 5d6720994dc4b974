//! The keeper's watch over a session's limits: the memory of all its processes together where no
//! cgroup counts it, their number when it stays at its maximum, and what the workspace grows by.
//! What the kernel refuses by itself (a file size, an open file) is none of it.
//!
//! It costs a brief turn nothing: it looks at turns that last, at what turns leave running, and once
//! after a turn; between turns with nothing left running there is not even a timer.

mod disk;
mod processes;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use windlass_procs::cgroup::Gauge;
use windlass_procs::pace::{Pace, Whom, set_pace};
use windlass_protocol::event::EventKind;
use windlass_protocol::link::Launch;
use windlass_protocol::policy::{Limit, Limits};

use self::disk::Disk;
pub(crate) use self::processes::Processes;
use crate::family::Family;
use crate::stage::Stage;
use crate::worker_side::WorkerSide;

/// Time from a turn's start or end to the first look, and between looks, at most and at least.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_SOONEST: Duration = Duration::from_millis(5);

/// How fast a session is taken to grow where looks are all that limits its memory: about what two
/// processors write.
const GROWTH_PER_S: u64 = 4 << 30;

/// Of the time in which looks come sooner than usual, they take one part in so many at most.
const LOOK_SHARE: u32 = 10;

/// Brief turns put a look off, one after the other, for so long at most.
const PUT_OFF_MAX: Duration = Duration::from_secs(1);

/// How long the number of processes may stay at its maximum before the session is ended.
const FULL_FOR_MAX: Duration = Duration::from_secs(2);

/// How many processes above the limit are not ended at once: the sandbox's own, and what a look
/// counts and the kernel does not.
const ABOVE_SLACK: u64 = 8;

/// Time between two words about processes that the kernel ended.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is watched, and when the next look is due.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    limits: Limits,
    gauge: Gauge,
    disk: Option<Disk>,
    schedule: Schedule,
    /// What the last look left of the memory, where looks are all that limits it.
    room: Option<u64>,
    /// Since when the number of processes is at its maximum.
    full_since: Option<Instant>,
    refused: u64,
    oom_kills: u64,
    oom_seen: Option<Instant>,
    oom_told: Option<Instant>,
    /// The limit for which everything is being ended.
    reached: Option<Limit>,
    /// The worker whose turn has lasted, and which has to stand in line since.
    slowed: Option<u32>,
}

/// When to look.
#[derive(Debug, Default)]
struct Schedule {
    due: Option<Instant>,
    /// Until when the look that is due may be put off.
    at_latest: Option<Instant>,
    left: Left,
}

/// What the last look found running besides the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Left {
    #[default]
    Nothing,
    Something,
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Good,
    /// The kernel ended a process that is not the worker.
    Ended {
        message: String,
    },
    Over {
        limit: Limit,
        message: String,
    },
}

/// Whether a worker has just come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worker {
    Fresh,
    Known,
}

/// Whether a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Runs,
    None,
}

impl Schedule {
    /// A turn starts or ends: the next look is a while from now.
    fn touch(&mut self, now: Instant, pause: Duration) {
        let at_latest = *self.at_latest.get_or_insert(now + PUT_OFF_MAX);
        if self.due.is_none() || (self.left == Left::Nothing && now + pause < at_latest) {
            self.due = Some(now + pause);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// A look was taken.
    fn looked(&mut self, now: Instant, turn: Turn, left: Left, pause: Duration) {
        self.left = left;
        self.at_latest = None;
        let again = turn == Turn::Runs || left == Left::Something;
        self.due = again.then(|| now + pause);
    }
}

impl Watch {
    /// Over a session's control groups and its workspace, as they are now.
    pub fn of(launch: &Launch) -> Self {
        Self::unlimited(&launch.cgroups).limited(launch)
    }

    /// Over the control groups of a pooled worker, whose session and workspace are not known yet.
    pub fn unlimited(cgroups: &[PathBuf]) -> Self {
        let gauge = Gauge::open(cgroups);
        let (oom_kills, refused) = (gauge.oom_kills(), gauge.refused_processes());
        Self { gauge, oom_kills, refused, ..Self::default() }
    }

    /// With a session's limits, in its workspace.
    pub fn limited(mut self, launch: &Launch) -> Self {
        self.limits = launch.limits;
        self.room = self.counted_memory();
        self.disk = launch.limits.disk_bytes.map(|allowed| Disk::of(&launch.cwd).allowing(allowed));
        self
    }

    /// A worker is starting, and nothing else is to be done: what there is before it does anything
    /// is measured, as much as one look takes in.
    pub fn take_stock(&mut self) {
        if let Some(disk) = self.disk.as_mut().filter(|disk| !disk.has_baseline()) {
            disk.look(Instant::now(), Processes::default);
        }
    }

    /// When it looks next.
    pub fn next_look(&self) -> Option<Instant> {
        self.schedule.due
    }

    /// A worker is up or is given a turn: it runs promptly, until the turn turns out to be a long one.
    pub fn quicken(&mut self, worker: u32, new: Worker) {
        if self.slowed.take().is_some() || new == Worker::Fresh {
            set_pace(Whom::Thread(worker), Pace::Prompt);
        }
    }

    /// A turn starts or ends.
    pub fn turn_changed(&mut self) {
        let limits = &self.limits;
        if limits.memory_bytes.is_some() || limits.processes.is_some() || self.disk.is_some() {
            self.schedule.touch(Instant::now(), pause(self.room, Duration::ZERO));
        }
    }

    fn rest(&mut self) {
        self.schedule = Schedule::default();
        self.room = self.counted_memory();
        self.full_since = None;
    }

    /// The limit of the memory, where looks are all that holds it.
    fn counted_memory(&self) -> Option<u64> {
        self.limits.memory_bytes.filter(|_| !self.gauge.limits_memory())
    }

    fn look(
        &mut self,
        now: Instant,
        turn: Turn,
        (worker, init): (u32, Option<u32>),
        (listed, began): (&Processes, Duration),
    ) -> Finding {
        let left = match listed.others_than(worker, init) {
            true => Left::Something,
            false => Left::Nothing,
        };
        self.slow_down(listed, turn, worker);
        let running = turn == Turn::Runs || left == Left::Something;
        let mut finding = self.look_at_kills(now);
        if finding == Finding::Good {
            finding = self
                .over_memory(listed, worker)
                .or_else(|| self.over_processes(now, listed))
                .or_else(|| self.over_disk(now, running, listed))
                .unwrap_or(Finding::Good);
        }
        let took = processor_time().saturating_sub(began);
        self.schedule.looked(now, turn, left, pause(self.room, took));
        finding
    }

    /// What runs for longer than a brief turn does not keep others waiting: the worker in a turn that
    /// lasts, and whatever it has started.
    fn slow_down(&mut self, listed: &Processes, turn: Turn, worker: u32) {
        for thread in listed.thread_ids() {
            if thread != worker {
                set_pace(Whom::Thread(thread), Pace::Patient);
            } else if turn == Turn::Runs && self.slowed.replace(worker) != Some(worker) {
                set_pace(Whom::Thread(worker), Pace::Patient);
            }
        }
    }

    fn look_at_kills(&mut self, now: Instant) -> Finding {
        if !self.oom_rose(now) || self.oom_told.is_some_and(|told| now < told + TELL_EVERY) {
            return Finding::Good;
        }
        self.oom_told = Some(now);
        Finding::Ended {
            message: format!(
                "a process of this session was ended at the memory limit of {}",
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

    /// Where no cgroup counts it: what all processes hold together.
    fn over_memory(&mut self, listed: &Processes, worker: u32) -> Option<Finding> {
        let allowed = self.counted_memory()?;
        let files = processes::private_files_bytes(worker) + listed.unmapped_bytes();
        // Pages that processes share are in the resident size of each: only when that sum is over
        // the limit is it worth the time to have the kernel divide them.
        let held = match listed.resident_bytes() + files {
            sum if sum > allowed => listed.proportional_bytes() + files,
            sum => sum,
        };
        self.room = Some(allowed.saturating_sub(held));
        (held > allowed).then(|| Finding::Over {
            limit: Limit::Memory,
            message: format!(
                "its processes and its private /tmp held {} together, and {} is its limit",
                mebibytes(held),
                mebibytes(allowed)
            ),
        })
    }

    fn over_processes(&mut self, now: Instant, listed: &Processes) -> Option<Finding> {
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
            self.full_since = None;
            return None;
        }
        let since = *self.full_since.get_or_insert(now);
        let message = if count > most + ABOVE_SLACK {
            // Nothing refuses them here, so they are not waited for.
            format!("it had {count} processes and threads, and {most} is its limit")
        } else if now >= since + FULL_FOR_MAX {
            let seconds = now.duration_since(since).as_secs();
            format!("it had all the {most} processes and threads of its limit for {seconds} s")
        } else {
            return None;
        };
        Some(Finding::Over { limit: Limit::Processes, message })
    }

    /// A session that is over the limit already may go on as long as it does not grow, so that it
    /// can remove files; so may one in which nothing runs.
    fn over_disk(&mut self, now: Instant, running: bool, listed: &Processes) -> Option<Finding> {
        let grown = self.disk.as_mut()?.look(now, || listed.clone())?;
        let (by, allowed) = (mebibytes(grown.by), mebibytes(grown.allowed));
        running.then(|| Finding::Over {
            limit: Limit::Disk,
            message: format!("its workspace has grown by {by}, and {allowed} is its limit"),
        })
    }

    /// The limit that ended a worker that was killed.
    fn ended_by(&mut self, killed: bool) -> Option<Limit> {
        let now = Instant::now();
        let kernel = self.oom_rose(now) || self.oom_seen.is_some_and(|at| now < at + TELL_EVERY);
        self.oom_seen = None;
        self.rest();
        self.reached.take().or((killed && kernel).then_some(Limit::Memory))
    }
}

impl WorkerSide {
    /// Looks at the session's limits, if it is time. The worker must be up.
    pub fn look_at_limits(&mut self, now: Instant, stage: Stage, family: &Family) -> Finding {
        if !self.watch.schedule.is_due(now) {
            return Finding::Good;
        }
        let (Stage::Up, Some(who)) = (stage, self.who()) else {
            self.watch.rest();
            return Finding::Good;
        };
        let runs = if self.running.turn().is_some() { Turn::Runs } else { Turn::None };
        let began = processor_time();
        let listed = family.listed();
        let found = self.watch.look(now, runs, who, (&listed, began));
        if let Finding::Over { limit, .. } = &found {
            self.watch.reached = Some(*limit);
        }
        found
    }

    /// The limit that ended the worker, if one did, and what is to be told of it; `how` it ended is what the
    /// reaper said.
    pub fn limit_of_end(&mut self, how: &str) -> (Option<Limit>, Option<EventKind>) {
        let told = self.watch.reached.is_some();
        let limit = self.watch.ended_by(how.contains("SIGKILL"));
        let untold = limit.filter(|_| !told).map(|limit| {
            let allowed = mebibytes(self.watch.limits.memory_bytes.unwrap_or_default());
            let message = format!("it used up its memory limit of {allowed}");
            EventKind::LimitReached { limit, message }
        });
        (limit, untold)
    }
}

/// What this thread has had of the processors.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Time to the next look: less than usual where `room` could be used up sooner, as long as looks like
/// the last, which took so much of a processor, do not take too much of it.
fn pause(room: Option<u64>, took: Duration) -> Duration {
    let Some(room) = room else { return LOOK_EVERY };
    let used_up = Duration::from_millis(room.saturating_mul(1000) / GROWTH_PER_S);
    used_up.max(LOOK_SOONEST).max(took * LOOK_SHARE).min(LOOK_EVERY)
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
    fn a_long_turn_is_looked_at_again_and_again_and_a_brief_one_once_after() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(start));
        schedule.touch(start, LOOK_EVERY);
        assert!(!schedule.is_due(at(start, 99)) && schedule.is_due(at(start, 100)));
        schedule.looked(at(start, 100), Turn::Runs, Left::Nothing, LOOK_EVERY);
        assert!(!schedule.is_due(at(start, 199)) && schedule.is_due(at(start, 200)));
        schedule.touch(at(start, 150), LOOK_EVERY);
        assert!(!schedule.is_due(at(start, 249)) && schedule.is_due(at(start, 250)));
        schedule.looked(at(start, 250), Turn::None, Left::Nothing, LOOK_EVERY);
        assert_eq!(schedule.due, None);
    }

    #[test]
    fn brief_turns_put_a_look_off_but_not_for_ever() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        let looked = (0..2000).step_by(50).find(|ms| {
            let due = schedule.is_due(at(start, *ms));
            schedule.touch(at(start, *ms), LOOK_EVERY);
            due
        });
        assert_eq!(looked, Some(950));
    }

    #[test]
    fn what_a_turn_leaves_running_is_watched_on_time() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.touch(start, LOOK_EVERY);
        schedule.looked(at(start, 100), Turn::None, Left::Something, LOOK_EVERY);
        schedule.touch(at(start, 190), LOOK_EVERY);
        assert!(schedule.is_due(at(start, 200)));
    }

    #[test]
    fn looks_come_sooner_the_less_memory_is_left_and_never_take_up_the_time() {
        let after = |room: Option<u64>, took_ms| pause(room, Duration::from_millis(took_ms));
        assert_eq!(after(None, 0), LOOK_EVERY, "the kernel counts");
        assert_eq!(after(Some(4 << 30), 0), LOOK_EVERY);
        assert_eq!(after(Some(128 << 20), 0), Duration::from_millis(31));
        assert_eq!(after(Some(0), 0), LOOK_SOONEST);
        assert_eq!(after(Some(0), 2), Duration::from_millis(20));
        assert_eq!(after(Some(0), 900), LOOK_EVERY);
    }

    fn watch(limits: Limits) -> Watch {
        Watch { limits, ..Watch::default() }
    }

    #[test]
    fn processes_at_their_maximum_are_ended_after_a_while_and_above_it_at_once() {
        let start = Instant::now();
        let mut watch = watch(Limits { processes: Some(8), ..Limits::default() });
        let mut over = |ms, count| {
            let listed = Processes::of_threads(&vec![1; count]);
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
