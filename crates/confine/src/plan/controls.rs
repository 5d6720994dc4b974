//! Reports each control: which mechanism enforces it at a level, or why it is not enforced and what would
//! help.

use windlass_protocol::confinement::{Control, ControlReport, ControlState, Isolation};
use windlass_protocol::policy::{Network, Policy, UnixSockets, WorkspaceAccess};

use super::{PATH_SOCKETS_SINCE, unix_sockets};
use crate::machine::{MachineSupport, Support};
use crate::survey::FileSurvey;
use windlass_procs::cgroup;

pub(super) fn report(
    policy: &Policy,
    machine: &MachineSupport,
    survey: &FileSurvey,
    isolation: Isolation,
) -> Vec<ControlReport> {
    let judge = Judge { policy, machine, survey, isolation };
    let of_limits = cgroup::controls(&machine.cgroups, machine.uid, &policy.limits, isolation);
    Control::ALL
        .into_iter()
        .map(|control| {
            let of_limits = of_limits.iter().find(|report| report.control == control);
            match of_limits {
                Some(report) => report.clone(),
                None => judge.judge(control),
            }
        })
        .collect()
}

struct Judge<'a> {
    policy: &'a Policy,
    machine: &'a MachineSupport,
    survey: &'a FileSurvey,
    isolation: Isolation,
}

impl Judge<'_> {
    fn judge(&self, control: Control) -> ControlReport {
        if !self.is_requested(control) {
            return report_of(control, ControlState::NotAsked, "", None);
        }
        match self.isolation {
            Isolation::None => self.unconfined(control),
            Isolation::Full => self.full(control),
            Isolation::Landlock => self.landlock(control),
        }
    }

    fn is_requested(&self, control: Control) -> bool {
        let limits = &self.policy.limits;
        let everywhere = |paths: &[std::path::PathBuf]| {
            paths.iter().any(|path| path == std::path::Path::new("/"))
        };
        match control {
            Control::Read => !everywhere(&self.survey.readable),
            Control::Write => !everywhere(&self.survey.writable),
            Control::Hidden => !self.survey.hidden.is_empty(),
            Control::Protected => {
                !self.survey.names.protected.is_empty() || self.survey.names.unheld.is_some()
            }
            Control::Network => self.policy.network != Network::Open,
            Control::OpenFiles => limits.open_files.is_some(),
            Control::FileSize => limits.file_bytes.is_some(),
            Control::Disk => limits.disk_bytes.is_some(),
            Control::WallTime => limits.wall_s.is_some(),
            _ => true,
        }
    }

    fn full(&self, control: Control) -> ControlReport {
        let mechanism = match control {
            Control::Read => "mount namespace: only these roots are in the view",
            Control::Write if self.machine.landlock_abi > 0 => "read-only mounts, Landlock",
            Control::Write => "read-only mounts",
            Control::Hidden => "mount namespace: covered in the view",
            Control::Protected => match &self.survey.names.unheld {
                Some(why) => {
                    let remedy = Some(OTHER_WORKSPACE.to_owned());
                    return report_of(control, ControlState::NotEnforced, why, remedy);
                }
                None => "read-only mounts",
            },
            Control::Network => match self.policy.network {
                Network::Hosts(_) => "network namespace, the node's proxy as the only way out",
                _ => "network namespace without a way out",
            },
            Control::Sockets => return self.sockets(),
            Control::Processes => "pid namespace, seccomp",
            Control::Ipc => "ipc namespace, private /dev/shm",
            Control::Privileges => "user namespace, no_new_privs, no capabilities, seccomp",
            Control::Syscalls => "seccomp",
            Control::Devices => "private /dev",
            other => return everywhere(other),
        };
        enforced(control, mechanism)
    }

    fn landlock(&self, control: Control) -> ControlReport {
        let abi = self.machine.landlock_abi;
        let namespaces = || match &self.machine.namespaces {
            Support::No { remedy, .. } => Some(remedy.clone()),
            Support::Yes => Some("use the level full".to_owned()),
        };
        let missing = |why: &str| report_of(control, ControlState::NotEnforced, why, namespaces());
        let mechanism = match control {
            Control::Read | Control::Hidden => "Landlock",
            Control::Write if abi >= 3 => {
                "Landlock; not modes, owners, times and attributes of this user's own files"
            }
            Control::Write => {
                return missing("this kernel's Landlock cannot restrict truncating files");
            }
            Control::Protected if !self.protected_in_writable() => "Landlock",
            Control::Protected => {
                return missing("Landlock cannot cut a name out of a directory that is writable");
            }
            Control::Network => match self.policy.network {
                Network::Hosts(_) => {
                    return missing("a list of hosts needs a network namespace");
                }
                _ => "seccomp: no socket can be made",
            },
            Control::Sockets => return self.sockets(),
            Control::Processes if abi >= 6 => "Landlock signal scope, seccomp, no /proc of others",
            Control::Processes => {
                return missing("this kernel's Landlock cannot restrict signals");
            }
            Control::Ipc => "seccomp, no /dev/shm",
            Control::Privileges => "no_new_privs, no capabilities, seccomp",
            Control::Syscalls => "seccomp",
            Control::Devices => "Landlock",
            other => return everywhere(other),
        };
        enforced(control, mechanism)
    }

    fn sockets(&self) -> ControlReport {
        let control = Control::Sockets;
        if unix_sockets(self.policy, self.machine, self.isolation) == UnixSockets::None {
            return enforced(control, "seccomp: no unix socket can be made but connected pairs");
        }
        if self.machine.landlock_abi >= PATH_SOCKETS_SINCE {
            return enforced(control, "Landlock; sockets that exist are covered in the view");
        }
        let covered = match self.survey.sockets.uncovered {
            0 => "sockets with an absolute path that exist at the start are covered".to_owned(),
            more => format!(
                "sockets with an absolute path that exist at the start are covered, but {more}, \
                 which are too many"
            ),
        };
        let why = format!(
            "{covered}; one that a program outside makes later in a directory that the session \
             sees, or has made by a relative path, can be connected to"
        );
        let remedy = "set unix_sockets to none (`--unix-sockets none`), or boot a kernel of 7.1 or \
                      newer, whose Landlock holds them";
        report_of(control, ControlState::NotEnforced, &why, Some(remedy.to_owned()))
    }

    /// Whether a protected path lies in a directory that the session can write.
    fn protected_in_writable(&self) -> bool {
        let workspace =
            (self.policy.workspace == WorkspaceAccess::Write).then_some(&self.survey.workspace);
        let roots = || self.survey.writable.iter().chain(workspace);
        self.survey.names.unheld.is_some()
            || self
                .survey
                .names
                .protected
                .keys()
                .any(|path| roots().any(|root| path.starts_with(root)))
    }

    fn unconfined(&self, control: Control) -> ControlReport {
        match control {
            Control::Environment | Control::WallTime | Control::Disk => everywhere(control),
            _ => {
                let remedy = "choose another isolation level".to_owned();
                let why = "the policy sets the isolation level none";
                report_of(control, ControlState::NotEnforced, why, Some(remedy))
            }
        }
    }
}

/// The remedy when names in a workspace cannot be protected.
const OTHER_WORKSPACE: &str = "use a project's directory as the workspace, or set none: the session then gets a new directory";

/// Controls that do not depend on the level.
fn everywhere(control: Control) -> ControlReport {
    let mechanism = match control {
        Control::Environment => "the node's allow-list",
        Control::OpenFiles => "RLIMIT_NOFILE",
        Control::FileSize => "RLIMIT_FSIZE",
        Control::Disk => "the keeper's watch",
        Control::WallTime => "the node's clock",
        _ => "",
    };
    enforced(control, mechanism)
}

fn enforced(control: Control, mechanism: &str) -> ControlReport {
    report_of(control, ControlState::Enforced, mechanism, None)
}

fn report_of(
    control: Control,
    state: ControlState,
    mechanism: &str,
    remedy: Option<String>,
) -> ControlReport {
    ControlReport { control, state, mechanism: mechanism.to_owned(), tested: false, remedy }
}
