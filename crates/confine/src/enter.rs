//! Confining the calling process: a plan is prepared while allocating is harmless, and entered after
//! the fork by system calls alone, on memory that was laid out before. The same code serves a
//! process that is about to become a worker and one that is an interpreter already.
//!
//! Order matters: namespaces, then the view, then what must still be set up with rights (network,
//! limits), then rights are given up, then Landlock, then seccomp, then the canaries. Nothing after
//! seccomp needs a call that it refuses.

pub(crate) mod canary;
pub(crate) mod landlock;
mod limits;
mod mounts;
mod network;
mod rights;

use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use windlass_protocol::confinement::Isolation;

pub(crate) use self::mounts::Begun;
use crate::plan::{Mount, NetworkPlan, Plan};
use crate::seccomp::{self, FilterError, Namespaces, Program, Shape};

/// A step of confinement, named when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    Unshare,
    MapUser,
    Fork,
    OwnMounts,
    Root,
    Bind,
    Private,
    Hide,
    Devices,
    Processes,
    Pivot,
    Loopback,
    Proxy,
    Limits,
    Rights,
    Landlock,
    Seccomp,
    Descriptors,
    Directory,
    Execute,
    Hold,
    Join,
}

impl Step {
    const ALL: [Self; 22] = [
        Self::Unshare,
        Self::MapUser,
        Self::Fork,
        Self::OwnMounts,
        Self::Root,
        Self::Bind,
        Self::Private,
        Self::Hide,
        Self::Devices,
        Self::Processes,
        Self::Pivot,
        Self::Loopback,
        Self::Proxy,
        Self::Limits,
        Self::Rights,
        Self::Landlock,
        Self::Seccomp,
        Self::Descriptors,
        Self::Directory,
        Self::Execute,
        Self::Hold,
        Self::Join,
    ];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u8 == number)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unshare => "make namespaces",
            Self::MapUser => "map the user into its namespace",
            Self::Fork => "start a process in the namespaces",
            Self::OwnMounts => "separate the mounts",
            Self::Root => "make the root of the view",
            Self::Bind => "bind a path into the view",
            Self::Private => "make a private directory",
            Self::Hide => "hide a path",
            Self::Devices => "make a private /dev",
            Self::Processes => "make a private /proc",
            Self::Pivot => "enter the view",
            Self::Loopback => "bring up the loopback device",
            Self::Proxy => "listen for the proxy",
            Self::Limits => "set limits",
            Self::Rights => "give up rights",
            Self::Landlock => "enforce Landlock rules",
            Self::Seccomp => "install the system call filter",
            Self::Descriptors => "set up its descriptors",
            Self::Directory => "enter its working directory",
            Self::Execute => "run its program",
            Self::Hold => "hold a protected name",
            Self::Join => "enter namespaces",
        }
    }
}

/// A step that failed, and for what it was done where one step is done often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    pub step: Step,
    pub errno: i32,
    /// Which of the plan's mounts or rules.
    pub place: u16,
}

impl Failed {
    pub(crate) fn at(step: Step) -> impl Fn(Errno) -> Self {
        move |errno| Self { step, errno: errno.raw_os_error(), place: 0 }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "cannot {}: {cause}", self.step.as_str())
    }
}

impl std::error::Error for Failed {}

/// A step that failed, with the path that it was done for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAt {
    pub failed: Failed,
    pub path: Option<PathBuf>,
}

impl FailedAt {
    /// The step was one of this plan.
    pub(crate) fn of(failed: Failed, plan: &Plan) -> Self {
        let place = usize::from(failed.place);
        let path = match failed.step {
            Step::Bind | Step::Private | Step::Hide => plan.view.get(place).and_then(Mount::path),
            Step::Landlock => {
                let rules = plan.landlock.as_ref().map(|ruleset| &ruleset.rules);
                rules.and_then(|rules| rules.get(place)).map(|rule| rule.path.as_path())
            }
            _ => None,
        };
        Self { failed, path: path.map(Path::to_owned) }
    }
}

impl fmt::Display for FailedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(path) = self.path.as_deref().map(Path::display) else {
            return self.failed.fmt(f);
        };
        let cause = std::io::Error::from_raw_os_error(self.failed.errno);
        match self.failed.step {
            Step::Bind => write!(f, "cannot bind {path} into the view: {cause}"),
            Step::Private => write!(f, "cannot make a private directory at {path}: {cause}"),
            Step::Hide => write!(f, "cannot hide {path}: {cause}"),
            step => write!(f, "cannot {}, at {path}: {cause}", step.as_str()),
        }
    }
}

impl std::error::Error for FailedAt {}

/// Why a plan cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("a path holds a NUL byte")]
    Nul(#[from] std::ffi::NulError),
}

/// A plan laid out in memory so that entering it allocates nothing.
#[derive(Debug)]
pub struct Prepared {
    isolation: Isolation,
    spaces: Spaces,
    mounts: mounts::Mounts,
    landlock: Option<landlock::Rules>,
    filter: Option<Program>,
    limits: Vec<limits::Limit>,
    pub(crate) canaries: canary::Canaries,
}

/// The namespaces of level `full`, laid out in memory like the rest.
#[derive(Debug)]
pub(crate) struct Spaces {
    network: NetworkPlan,
    /// Who we are, as the maps of a user namespace say it.
    user: String,
    group: String,
}

impl Spaces {
    pub fn new(network: NetworkPlan) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self { network, user: format!("{uid} {uid} 1\n"), group: format!("{gid} {gid} 1\n") }
    }

    /// New namespaces for the calling process and, for process ids, its children.
    pub fn make(&self) -> Result<(), Failed> {
        rights::make_namespaces(self.network)?;
        rights::map_identity(&self.user, &self.group)
    }

    /// A network namespace for a worker, made in the calling process.
    pub fn make_network() -> Result<OwnedFd, Failed> {
        network::make()
    }

    /// What is in them that is the same for all sessions.
    fn furnish(&self) -> Result<(), Failed> {
        rights::name_machine();
        if self.network != NetworkPlan::Machine {
            network::bring_up_loopback().map_err(Failed::at(Step::Loopback))?;
        }
        Ok(())
    }
}

impl Prepared {
    /// For a child of the calling process.
    pub fn new(plan: &Plan) -> Result<Self, PrepareError> {
        Self::below(plan, rustix::process::getpid().as_raw_nonzero().get())
    }

    /// For a process whose keeper has this number.
    pub(crate) fn below(plan: &Plan, keeper: i32) -> Result<Self, PrepareError> {
        let namespaces = match plan.isolation {
            Isolation::Full => Namespaces::Own,
            Isolation::Landlock | Isolation::None => Namespaces::Machine,
        };
        let shape = plan.sockets.map(|sockets| Shape { sockets, namespaces });
        Ok(Self {
            isolation: plan.isolation,
            spaces: Spaces::new(plan.network),
            mounts: mounts::Mounts::new(&plan.view)?,
            landlock: plan.landlock.as_ref().map(landlock::Rules::new).transpose()?,
            filter: shape.map(seccomp::filter).transpose()?,
            limits: limits::of(&plan.rlimits),
            canaries: canary::Canaries::new(plan, keeper)?,
        })
    }

    /// Whether entering takes namespaces, and so a process between the caller and the confined one.
    pub fn needs_namespaces(&self) -> bool {
        self.isolation == Isolation::Full
    }

    /// First part: new namespaces for the calling process and, for process ids, its children.
    pub fn make_namespaces(&self) -> Result<(), Failed> {
        self.spaces.make()
    }

    /// Before anything else in a process that was forked from a zygote: an ordinary user's zygote has
    /// capabilities, in a namespace above the session's, that no program it ran would have.
    pub(crate) fn shed(&self) -> Result<(), Failed> {
        let ordinary = !rustix::process::geteuid().is_root();
        if self.isolation == Isolation::None && ordinary {
            rights::drop_capabilities()?;
        }
        Ok(())
    }

    /// Second part, in a child of the first: everything else. Returns the proxy's listener.
    ///
    /// The caller has one thread.
    pub fn confine(&self) -> Result<Option<OwnedFd>, Failed> {
        if self.isolation == Isolation::Full {
            self.mounts.build()?;
            self.spaces.furnish()?;
        }
        self.confine_in_view()
    }

    /// Builds the view and all else that needs no session, for a process that does not know its own yet.
    pub(crate) fn begin_view(&self) -> Result<Begun, Failed> {
        let begun = self.mounts.begin()?;
        self.spaces.furnish()?;
        Ok(begun)
    }

    /// Adds to a view that was begun what only `late` has mounts for, and enters it.
    pub(crate) fn finish_view(&self, begun: &Begun, late: &Self) -> Result<(), Failed> {
        self.mounts.finish(begun, &late.mounts)
    }

    /// What follows when the view is entered. Returns the proxy's listener.
    pub(crate) fn confine_in_view(&self) -> Result<Option<OwnedFd>, Failed> {
        let mut listener = None;
        if self.isolation == Isolation::Full && self.spaces.network == NetworkPlan::Proxy {
            listener = Some(network::listen().map_err(Failed::at(Step::Proxy))?);
        }
        limits::set(&self.limits)?;
        if self.isolation != Isolation::None {
            rights::give_up()?;
        }
        if let Some(rules) = &self.landlock {
            rules.enforce()?;
        }
        if let Some(filter) = &self.filter {
            rights::install(filter)?;
        }
        Ok(listener)
    }
}

/// What a thread adds to its confinement at a fork, made ready so that adding it takes two system
/// calls and no memory: a signal handler can do it.
#[derive(Debug)]
pub(crate) struct TwinLayer {
    ruleset: OwnedFd,
    filter: &'static Program,
}

impl TwinLayer {
    pub fn new(rules: &landlock::Rules) -> Result<Self, i32> {
        let ruleset = rules.ruleset().map_err(|failed| failed.errno)?;
        let filter = seccomp::among_twins().map_err(|_| libc::EINVAL)?;
        Ok(Self { ruleset, filter })
    }

    /// Adds the layer to the calling thread.
    pub fn add(&self) -> Result<(), i32> {
        add_twin_layer(self.ruleset.as_raw_fd(), self.filter)
    }

    /// What another thread needs to add it with [`add_twin_layer`].
    pub fn parts(&self) -> (RawFd, &'static Program) {
        (self.ruleset.as_raw_fd(), self.filter)
    }
}

/// Adds a Landlock layer to the calling thread, and then the filter of twins. There is no filter
/// without its layer: the kernel shows no Landlock layer anywhere, and the keeper tells by the number of
/// a thread's filters that this was done.
pub(crate) fn add_twin_layer(ruleset: RawFd, filter: &Program) -> Result<(), i32> {
    landlock::restrict(ruleset).map_err(Errno::raw_os_error)?;
    rights::install(filter).map_err(|failed| failed.errno)
}

pub(crate) fn c_path(path: &Path) -> Result<CString, std::ffi::NulError> {
    CString::new(path.as_os_str().as_bytes())
}

/// The path as seen from the view's root.
pub(crate) fn relative(path: &Path) -> Result<CString, std::ffi::NulError> {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { CString::new(".") } else { c_path(below) }
}
