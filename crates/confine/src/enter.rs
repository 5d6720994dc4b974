//! Confines the calling process. A plan is prepared before the fork, while allocating memory is safe. After
//! the fork it is entered by system calls alone, on memory that was prepared before. The same code serves a
//! process that will run a program and a process that is already an interpreter.
//!
//! The order matters: namespaces; the view; setup that needs capabilities (network); the session's own user id, if it
//! has one; limits; dropping capabilities; Landlock; seccomp; the canaries. No step after seccomp needs a call that the
//! filter refuses.

pub(crate) mod canary;
pub(crate) mod landlock;
mod limits;
mod mounts;
mod network;
mod own_user;
mod rights;

use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use windlass_protocol::confinement::Isolation;

pub(crate) use self::mounts::UnenteredView;
use self::own_user::{OwnUser, OwnerMaps};
pub use self::own_user::{OwnUserError, OwnerMapError, try_owner_map};
use crate::plan::{Mount, NetworkPlan, Plan};
use crate::seccomp::{self, FilterError, FilterProgram, FilterSpec, Namespaces};

/// A step of confinement. Errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConfineStep {
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
    OwnUser,
    MapOwner,
}

impl ConfineStep {
    const ALL: [Self; 24] = [
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
        Self::OwnUser,
        Self::MapOwner,
    ];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u8 == number)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unshare => "make namespaces",
            Self::MapUser => "map the user into the user namespace",
            Self::Fork => "start a process in the namespaces",
            Self::OwnMounts => "stop mount propagation",
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
            Self::Rights => "drop capabilities",
            Self::Landlock => "enforce Landlock rules",
            Self::Seccomp => "install the system call filter",
            Self::Descriptors => "set up the descriptors",
            Self::Directory => "enter the working directory",
            Self::Execute => "run the program",
            Self::Hold => "hold a protected name",
            Self::Join => "enter namespaces",
            Self::OwnUser => "take the session's own user id",
            Self::MapOwner => "map the owner of a writable path to the session's own user id",
        }
    }
}

/// A step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepError {
    pub step: ConfineStep,
    pub errno: i32,
    /// The index of the mount or rule in the plan, for steps that are done several times.
    pub index: u16,
}

impl StepError {
    pub(crate) fn at(step: ConfineStep) -> impl Fn(Errno) -> Self {
        move |errno| Self { step, errno: errno.raw_os_error(), index: 0 }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "cannot {}: {cause}", self.step.as_str())
    }
}

impl std::error::Error for StepError {}

/// A step that failed, with the path of the mount or rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepErrorAt {
    pub failed: StepError,
    pub path: Option<PathBuf>,
    /// The session's own user id, if it has one.
    pub own_uid: Option<u32>,
}

impl StepErrorAt {
    /// `failed` is an error of a step of `plan`.
    pub(crate) fn of(failed: StepError, plan: &Plan) -> Self {
        let index = usize::from(failed.index);
        let path = match failed.step {
            ConfineStep::Bind
            | ConfineStep::MapOwner
            | ConfineStep::Private
            | ConfineStep::Hide => plan.view.get(index).and_then(Mount::path),
            ConfineStep::Landlock => {
                let rules = plan.landlock.as_ref().map(|ruleset| &ruleset.rules);
                rules.and_then(|rules| rules.get(index)).map(|rule| rule.path.as_path())
            }
            _ => None,
        };
        Self { failed, path: path.map(Path::to_owned), own_uid: plan.own_uid }
    }

    /// The session's own user id, if the kernel refuses the session a program or a directory that root could use.
    fn refused_user(&self) -> Option<u32> {
        let by_mode = matches!(self.failed.step, ConfineStep::Directory | ConfineStep::Execute);
        self.own_uid.filter(|_| by_mode && self.failed.errno == Errno::ACCESS.raw_os_error())
    }
}

impl fmt::Display for StepErrorAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(path) = self.path.as_deref().map(Path::display) else {
            self.failed.fmt(f)?;
            return self.refused_user().map_or(Ok(()), |uid| {
                write!(
                    f,
                    "; the session has the user id {uid} of its own and reads what every user of the machine can read: \
                     check the modes of the program, the working directory and the directories above them"
                )
            });
        };
        let cause = std::io::Error::from_raw_os_error(self.failed.errno);
        match self.failed.step {
            ConfineStep::Bind => write!(f, "cannot bind {path} into the view: {cause}"),
            ConfineStep::Private => write!(f, "cannot make a private directory at {path}: {cause}"),
            ConfineStep::Hide => write!(f, "cannot hide {path}: {cause}"),
            ConfineStep::MapOwner => write!(
                f,
                "cannot map the owner of {path} to the session's own user id, and without that the session does not \
                 start: {cause}; the file system there, or one mounted below it, has no id-mapped mounts: use a \
                 directory on ext4, xfs, btrfs or tmpfs"
            ),
            step => write!(f, "cannot {} at {path}: {cause}", step.as_str()),
        }
    }
}

impl std::error::Error for StepErrorAt {}

/// Why a plan cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("a path holds a NUL byte")]
    Nul(#[from] std::ffi::NulError),
    #[error(transparent)]
    OwnUser(#[from] OwnUserError),
}

/// A plan prepared in memory, so that entering it allocates nothing.
#[derive(Debug)]
pub struct PreparedPlan {
    isolation: Isolation,
    namespaces: NamespaceSetup,
    mounts: mounts::PreparedMounts,
    landlock: Option<landlock::PreparedRuleset>,
    filter: Option<FilterProgram>,
    limits: Vec<limits::RlimitSetting>,
    pub(crate) canaries: canary::Canaries,
    own_user: Option<OwnUser>,
}

/// The namespaces of level `full`, prepared in memory like the rest of the plan.
#[derive(Debug)]
pub(crate) struct NamespaceSetup {
    network: NetworkPlan,
    /// The lines for `uid_map` and `gid_map`.
    user: String,
    group: String,
}

impl NamespaceSetup {
    pub fn new(network: NetworkPlan) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self { network, user: format!("{uid} {uid} 1\n"), group: format!("{gid} {gid} 1\n") }
    }

    /// Makes namespaces for the calling process; the pid namespace is for its children.
    pub fn make(&self) -> Result<(), StepError> {
        rights::make_namespaces(self.network, libc::CLONE_NEWUSER)?;
        rights::map_identity(&self.user, &self.group)
    }

    /// The same without a user namespace, for a worker that enters one later.
    fn make_without_user(&self) -> Result<(), StepError> {
        rights::make_namespaces(self.network, 0)
    }

    /// Makes a network namespace for a worker; the calling process enters it.
    pub fn make_network() -> Result<OwnedFd, StepError> {
        network::make()
    }

    /// Sets up what is the same in the namespaces of all sessions: the host name and the loopback device.
    fn set_up(&self) -> Result<(), StepError> {
        rights::set_host_name();
        if self.network != NetworkPlan::Machine {
            network::bring_up_loopback().map_err(StepError::at(ConfineStep::Loopback))?;
        }
        Ok(())
    }
}

impl PreparedPlan {
    /// Prepares a plan for a child of the calling process, which has one thread if the plan has a user id of its own.
    pub fn new(plan: &Plan) -> Result<Self, PrepareError> {
        let own_user = plan.own_uid.map(OwnUser::make).transpose()?;
        Self::prepare(plan, own_user, rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Prepares a plan for a process that was forked from a zygote and whose keeper has this pid.
    pub(crate) fn with_keeper(plan: &Plan, keeper: i32) -> Result<Self, PrepareError> {
        match plan.own_uid {
            Some(_) => Err(OwnUserError::Forked.into()),
            None => Self::prepare(plan, None, keeper),
        }
    }

    fn prepare(plan: &Plan, own_user: Option<OwnUser>, keeper: i32) -> Result<Self, PrepareError> {
        let namespaces = match plan.isolation {
            Isolation::Full => Namespaces::Own,
            Isolation::Landlock | Isolation::None => Namespaces::Machine,
        };
        let spec = plan.sockets.map(|sockets| FilterSpec { sockets, namespaces });
        Ok(Self {
            isolation: plan.isolation,
            namespaces: NamespaceSetup::new(plan.network),
            mounts: mounts::PreparedMounts::new(&plan.view, own_user.as_ref())?,
            landlock: plan.landlock.as_ref().map(landlock::PreparedRuleset::new).transpose()?,
            filter: spec.map(seccomp::filter).transpose()?,
            limits: limits::of(&plan.rlimits),
            canaries: canary::Canaries::new(plan, keeper)?,
            own_user,
        })
    }

    /// Whether the plan needs namespaces, and so an intermediate process between the caller and the confined
    /// process.
    pub fn needs_namespaces(&self) -> bool {
        self.isolation == Isolation::Full
    }

    /// First part: makes namespaces for the calling process; the pid namespace is for its children.
    pub fn make_namespaces(&self) -> Result<(), StepError> {
        match &self.own_user {
            Some(_) => self.namespaces.make_without_user(),
            None => self.namespaces.make(),
        }
    }

    /// Gives the calling process the session's own user id, if it has one.
    pub(crate) fn enter_own_user(&self) -> Result<(), StepError> {
        self.own_user.as_ref().map_or(Ok(()), OwnUser::enter)
    }

    /// The first step in a process that was forked from a zygote. An ordinary user's zygote has capabilities
    /// in a user namespace above the session's; a program started in the usual way would not have them.
    pub(crate) fn drop_zygote_capabilities(&self) -> Result<(), StepError> {
        let ordinary = !rustix::process::geteuid().is_root();
        if self.isolation == Isolation::None && ordinary {
            rights::drop_capabilities()?;
        }
        Ok(())
    }

    /// Second part, in a child of the first process: all other steps. Returns the proxy's listener.
    ///
    /// The caller has one thread.
    pub fn confine(&self) -> Result<Option<OwnedFd>, StepError> {
        self.enter_view()?;
        self.confine_in_view()
    }

    /// Builds the view and enters it, and takes the session's own user id. The steps need descriptors that were opened
    /// when the plan was prepared.
    pub(crate) fn enter_view(&self) -> Result<(), StepError> {
        // Root makes directories of the view, and another user must be able to pass them.
        let umask = self.own_user.as_ref().map(|_| rustix::process::umask(Mode::from(0o022)));
        if self.isolation == Isolation::Full {
            self.mounts.build()?;
            self.namespaces.set_up()?;
        }
        if let Some(umask) = umask {
            rustix::process::umask(umask);
        }
        self.enter_own_user()
    }

    /// Builds the view and sets up the namespaces, in a process that has no session yet.
    pub(crate) fn begin_view(&self) -> Result<UnenteredView, StepError> {
        let view = self.mounts.begin()?;
        self.namespaces.set_up()?;
        Ok(view)
    }

    /// Adds the mounts of `late` to a view and enters it.
    pub(crate) fn finish_view(&self, view: &UnenteredView, late: &Self) -> Result<(), StepError> {
        self.mounts.finish(view, &late.mounts)
    }

    /// The steps after the view is entered. Returns the proxy's listener.
    pub(crate) fn confine_in_view(&self) -> Result<Option<OwnedFd>, StepError> {
        let mut listener = None;
        if self.isolation == Isolation::Full && self.namespaces.network == NetworkPlan::Proxy {
            listener = Some(network::listen().map_err(StepError::at(ConfineStep::Proxy))?);
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

/// The Landlock layer and the filter that a thread adds when its process forks a twin. Adding them takes two
/// system calls and no allocation, so a signal handler can do it.
#[derive(Debug)]
pub(crate) struct TwinLayer {
    ruleset: OwnedFd,
    filter: &'static FilterProgram,
}

impl TwinLayer {
    pub fn new(rules: &landlock::PreparedRuleset) -> Result<Self, i32> {
        let ruleset = rules.ruleset().map_err(|failed| failed.errno)?;
        let filter = seccomp::among_twins().map_err(|_| libc::EINVAL)?;
        Ok(Self { ruleset, filter })
    }

    /// Adds the layer to the calling thread.
    pub fn add(&self) -> Result<(), i32> {
        add_twin_layer(self.ruleset.as_raw_fd(), self.filter)
    }

    /// The arguments with which another thread calls [`add_twin_layer`].
    pub fn parts(&self) -> (RawFd, &'static FilterProgram) {
        (self.ruleset.as_raw_fd(), self.filter)
    }
}

/// Adds a Landlock layer to the calling thread, and then the twins' filter. The order matters: the kernel
/// does not show a thread's Landlock layers, so the keeper counts the thread's filters to know that the layer
/// was added.
pub(crate) fn add_twin_layer(ruleset: RawFd, filter: &FilterProgram) -> Result<(), i32> {
    landlock::restrict(ruleset).map_err(Errno::raw_os_error)?;
    rights::install(filter).map_err(|failed| failed.errno)
}

pub(crate) fn c_path(path: &Path) -> Result<CString, std::ffi::NulError> {
    CString::new(path.as_os_str().as_bytes())
}

/// The path relative to the root of the view.
pub(crate) fn relative(path: &Path) -> Result<CString, std::ffi::NulError> {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { CString::new(".") } else { c_path(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_read_names_the_own_user_id_of_the_session() {
        let shown = |step, errno: Errno, own_uid| {
            let failed = StepError::at(step)(errno);
            StepErrorAt { failed, path: None, own_uid }.to_string()
        };
        for step in [ConfineStep::Directory, ConfineStep::Execute] {
            let refused = shown(step, Errno::ACCESS, Some(200_017));
            assert!(refused.contains("the session has the user id 200017 of its own"), "{refused}");
            for other in
                [shown(step, Errno::NOENT, Some(200_017)), shown(step, Errno::ACCESS, None)]
            {
                assert!(!other.contains("user id"), "{other}");
            }
        }
        let limits = shown(ConfineStep::Limits, Errno::ACCESS, Some(200_017));
        assert!(!limits.contains("of its own"), "{limits}");
    }
}
