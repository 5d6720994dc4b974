//! Detects what this machine can enforce, by trying it once.

use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::Isolation;

use crate::rehearsal;
use windlass_procs::cgroup::CgroupSupport;

/// What the machine can enforce: the input of planning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSupport {
    /// The kernel release.
    pub kernel: String,
    pub uid: u32,
    /// Whether a process can make mount, pid, network and user namespaces and build a view in them.
    pub namespaces: Support,
    /// The Landlock version; 0 if the kernel has no Landlock.
    pub landlock_abi: u32,
    pub seccomp: Support,
    pub cgroups: CgroupSupport,
}

/// Whether the machine supports a feature; if not, why, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    Yes,
    No { why: String, remedy: String },
}

impl MachineSupport {
    /// Tries every feature. Takes a few milliseconds; starts and ends a process.
    pub fn detect() -> Self {
        Self::with_cgroups(CgroupSupport::detect())
    }

    /// The same, with cgroup support that the caller has already detected.
    pub fn with_cgroups(cgroups: CgroupSupport) -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Self {
            kernel,
            uid: rustix::process::geteuid().as_raw(),
            namespaces: namespaces(),
            landlock_abi: crate::enter::landlock::abi(),
            seccomp: seccomp(),
            cgroups,
        }
    }

    /// Whether sessions can run at this level here.
    pub fn level(&self, level: Isolation) -> Support {
        match level {
            Isolation::None => Support::Yes,
            Isolation::Full if self.seccomp == Support::Yes => self.namespaces.clone(),
            Isolation::Full | Isolation::Landlock if self.seccomp != Support::Yes => {
                self.seccomp.clone()
            }
            Isolation::Full | Isolation::Landlock if self.landlock_abi > 0 => Support::Yes,
            Isolation::Full | Isolation::Landlock => Support::No {
                why: "this kernel has no Landlock".to_owned(),
                remedy: "boot a kernel of 5.13 or newer with landlock in its lsm= list".to_owned(),
            },
        }
    }
}

fn namespaces() -> Support {
    match rehearsal::try_full() {
        Ok(()) => Support::Yes,
        Err(failure) => {
            Support::No { why: failure.to_string(), remedy: namespace_remedy(&settings()) }
        }
    }
}

/// Kernel settings that refuse namespaces to ordinary users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamespaceSettings {
    apparmor_restricts: bool,
    userns_clone_off: bool,
    no_user_namespaces: bool,
}

fn settings() -> NamespaceSettings {
    let says = |path: &str, value: &str| {
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
    };
    NamespaceSettings {
        apparmor_restricts: says("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
        userns_clone_off: says("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        no_user_namespaces: says("/proc/sys/user/max_user_namespaces", "0"),
    }
}

fn namespace_remedy(settings: &NamespaceSettings) -> String {
    let line = match settings {
        NamespaceSettings { no_user_namespaces: true, .. } => "user.max_user_namespaces=10000",
        NamespaceSettings { userns_clone_off: true, .. } => "kernel.unprivileged_userns_clone=1",
        NamespaceSettings { apparmor_restricts: true, .. } => {
            "kernel.apparmor_restrict_unprivileged_userns=0"
        }
        _ => {
            return "run the node where it can make user namespaces and mount /proc: not in a \
                    container that masks /proc or filters unshare"
                .to_owned();
        }
    };
    format!(
        "allow them: `sudo sysctl -w {line}`, and keep it: \
         `echo {line} | sudo tee /etc/sysctl.d/60-windlass.conf`"
    )
}

fn seccomp() -> Support {
    // A probe that changes nothing: EFAULT means that the kernel supports filters and tried to read the
    // program.
    // SAFETY: the kernel refuses a null program before it reads anything.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, 0, 0, 0) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    if answer == -1 && errno == Some(libc::EFAULT) {
        return Support::Yes;
    }
    Support::No {
        why: "this kernel has no seccomp filters".to_owned(),
        remedy: "boot a kernel with CONFIG_SECCOMP_FILTER".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_the_setting_that_refuses() {
        let with = |settings| namespace_remedy(&settings);
        let apparmor =
            NamespaceSettings { apparmor_restricts: true, ..NamespaceSettings::default() };
        assert!(with(apparmor).contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        let debian = NamespaceSettings { userns_clone_off: true, ..NamespaceSettings::default() };
        assert!(with(debian).contains("kernel.unprivileged_userns_clone=1"));
        let none = NamespaceSettings { no_user_namespaces: true, ..NamespaceSettings::default() };
        assert!(with(none).contains("user.max_user_namespaces="));
        assert!(with(NamespaceSettings::default()).contains("container"));
    }
}
