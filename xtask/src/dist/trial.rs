//! Tries the packages as new users do, in empty places and without Rust: installs each, runs a first session, installs
//! the next version, which takes over a live session, and removes the package.
//!
//! Each trial runs as the user of this process, and, if this is root, as an ordinary user. The package for Debian is
//! installed in a new root directory, which `mmdebstrap` makes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{Distribution, succeed};
use crate::packages::Packages;
use crate::workspace;

/// One way to install. Each text is a script for `sh -e` in an empty home; `$PACKAGES` and `$NEXT` are the directories of
/// the packages.
struct Trial {
    name: &'static str,
    install: &'static str,
    /// Prints what the first session answers. It starts the node.
    first: &'static str,
    /// Installs the next version.
    upgrade: Option<&'static str>,
    remove: &'static str,
}

/// A first session with the command.
const RUN: &str = "windlass run -c 'print(6 * 7)'";

const TRIALS: [Trial; 3] = [
    Trial {
        name: "wheel",
        install: "python3 -m venv venv
            venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links \"$PACKAGES\" windlass
            PATH=$PWD/venv/bin:$PATH",
        first: "python -c '
from windlass import Windlass
with Windlass() as w, w.session() as s:
    print(s.run(\"6 * 7\").result)'",
        upgrade: Some(
            "pip install --quiet --disable-pip-version-check --no-index --no-deps --find-links \"$NEXT\" \
             --upgrade windlass-bin",
        ),
        remove: "pip uninstall --quiet --yes windlass windlass-bin",
    },
    Trial {
        name: "npm",
        // The package with the program by its file: an optional dependency is otherwise taken from the registry.
        install: "echo '{ \"private\": true, \"type\": \"module\" }' >package.json
            npm install --no-audit --no-fund --loglevel=error --ignore-scripts \"$PACKAGES\"/*.tgz >npm.log
            PATH=$PWD/node_modules/.bin:$PATH",
        first: "node --input-type=module --eval '
import { Windlass } from \"windlass\";
const w = new Windlass();
const s = await w.session();
console.log((await s.run(\"6 * 7\")).result);
await s.close();
w.close();'",
        upgrade: None,
        remove: "npm uninstall --no-audit --no-fund --loglevel=error windlass @windlass/linux-x64 >npm.log",
    },
    Trial {
        name: "archive",
        install: "tar --extract --gzip --file \"$PACKAGES\"/windlass-*-linux.tar.gz
            (cd \"$PACKAGES\" && sha256sum --check --quiet SHA256SUMS)
            mv windlass-* windlass
            PATH=$PWD/windlass/bin:$PATH",
        first: RUN,
        upgrade: None,
        remove: "rm -r windlass",
    },
];

const DEB: Trial = Trial {
    name: "deb",
    // Done once, as root, before the trials.
    install: "",
    first: RUN,
    upgrade: Some("dpkg --install /opt/next/windlass.deb >/dev/null"),
    remove: "dpkg --remove windlass >/dev/null",
};

/// An ordinary user cannot change what is installed.
const DEB_OF_USER: Trial = Trial { upgrade: None, remove: "", ..DEB };

/// Runs the scripts of a trial. Prints the milliseconds that the installation and the first answer took.
const SCRIPT: &str = r#"
now() { date +%s%N; }
fail() { echo "$*" >&2; exit 1; }
# Nothing stays when the trial fails.
trap 'windlass down >/dev/null 2>&1 || true' EXIT
began=$(now)
eval "$INSTALL"
installed=$(now)
answer=$(eval "$FIRST")
answered=$(now)
[ "$answer" = 42 ] || fail "the first session answers $answer"
[ "$(windlass run -c 'print(6 * 7)')" = 42 ] || fail "the command answers something else"
if [ -n "$UPGRADE" ]; then
    windlass run --keep -c 'x = 41'
    session=$(windlass ps --json | sed -n 's/^.*"id": *"\([^"]*\)".*$/\1/p' | head -n 1)
    before=$(sha256sum <"$(command -v windlass)")
    eval "$UPGRADE"
    [ "$before" != "$(sha256sum <"$(command -v windlass)")" ] || fail "the upgrade changed nothing"
    windlass down --keep-sessions >/dev/null
    windlass up >/dev/null
    answer=$(windlass run --session "$session" -c 'print(x + 1)')
    [ "$answer" = 42 ] || fail "after the upgrade the session answers $answer"
fi
windlass down >/dev/null
eval "$REMOVE"
hash -r
[ -z "$REMOVE" ] || ! command -v windlass >/dev/null || fail "the program is still there"
echo $(( (installed - began) / 1000000 )) $(( (answered - installed) / 1000000 ))
"#;

/// Who tries a package.
#[derive(Debug, Clone, Copy)]
enum Account<'a> {
    Own,
    Named(&'a str),
}

pub fn run(dist: &Distribution, node: &Packages, user: Option<&str>) -> Result<()> {
    let place = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
    // Every user can read what is installed from.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
    for (from, to) in [
        (&dist.out, "packages"),
        (&dist.next, "next"),
        (&node.node_bin().join("..").canonicalize()?, "node"),
    ] {
        succeed(Command::new("cp").args(["-r", "--"]).arg(from).arg(place.path().join(to)))?;
    }
    succeed(Command::new("chmod").args(["-R", "a+rX"]).arg(place.path()))?;
    let is_root = rustix::process::geteuid().is_root();
    ensure!(user.is_none() || is_root, "--user needs root");
    let mut accounts = vec![Account::Own];
    accounts.extend(user.map(Account::Named));
    println!("{:<8} {:<14} {:>10} {:>13}", "package", "as", "install", "first answer");
    for trial in &TRIALS {
        for account in &accounts {
            let command = in_home(&place, *account)?;
            report(trial, *account, command)?;
        }
    }
    if !is_root {
        println!("deb      skipped: only root can install it in a new root directory");
        return Ok(());
    }
    let root = DebianRoot::make(dist, &place)?;
    if let Some(name) = user {
        let account = Account::Named(name);
        report(&DEB_OF_USER, account, root.command(account)?)?;
    }
    report(&DEB, Account::Own, root.command(Account::Own)?)
}

/// Runs a trial and prints its figures.
fn report(trial: &Trial, account: Account<'_>, mut command: Command) -> Result<()> {
    let name = match account {
        Account::Own => "this user",
        Account::Named(name) => name,
    };
    command
        .args(["sh", "-e", "-c", SCRIPT])
        .env("INSTALL", trial.install)
        .env("FIRST", trial.first)
        .env("UPGRADE", trial.upgrade.unwrap_or_default())
        .env("REMOVE", trial.remove);
    let ran = command.output().with_context(|| format!("{} as {name}", trial.name))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{} as {name}: {}\n{said}", trial.name, ran.status);
    let printed = String::from_utf8_lossy(&ran.stdout);
    let figures = printed.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let Ok([install, first]) = figures.as_deref() else {
        anyhow::bail!("{} as {name} prints {printed:?}", trial.name);
    };
    let (install, first) = (install / 1000.0, first / 1000.0);
    println!("{:<8} {name:<14} {install:>8.2} s {first:>11.2} s", trial.name);
    Ok(())
}

/// A command in an empty home, with the variables that a new account has.
fn in_home(place: &TempDir, account: Account<'_>) -> Result<Command> {
    let home = tempfile::Builder::new().prefix("h-").tempdir_in(place.path())?.keep();
    let mut command = as_account(account)?;
    if let Account::Named(name) = account {
        succeed(Command::new("chown").arg(name).arg(&home))?;
    }
    let path = [place.path().join("node/bin"), "/usr/bin".into(), "/bin".into()];
    command
        .env_clear()
        .env("HOME", &home)
        .env("PATH", std::env::join_paths(path)?)
        .env("WINDLASS_RUNTIME_DIR", home.join("r"))
        .env("PACKAGES", place.path().join("packages"))
        .env("NEXT", place.path().join("next"))
        .current_dir(&home);
    // The registry is a setting of the machine, and npm finds it in the home of the user of this process.
    for setting in ["registry", "cafile"] {
        let mut npm = Command::new("npm");
        let value = workspace::output_of(npm.args(["config", "get", setting]))?;
        if value.trim() != "null" {
            command.env(format!("npm_config_{setting}"), value.trim());
        }
    }
    Ok(command)
}

/// A command that runs its arguments as the account.
fn as_account(account: Account<'_>) -> Result<Command> {
    let mut command = Command::new(match account {
        Account::Own => "env",
        Account::Named(_) => "setpriv",
    });
    if let Account::Named(name) = account {
        let group = workspace::output_of(Command::new("id").args(["--group", name]))?;
        command.args(["--reuid", name, "--regid", group.trim(), "--clear-groups"]);
    }
    Ok(command)
}

/// A root directory with a minimal Debian and the package.
struct DebianRoot {
    root: PathBuf,
}

/// Makes the directories that a program needs in another root, and runs the arguments there. All processes end with this
/// command, because they are in its pid namespace.
const ENTER: &str = r#"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
exec chroot "$0" "$@"
"#;

impl DebianRoot {
    fn make(dist: &Distribution, place: &TempDir) -> Result<Self> {
        let root = place.path().join("root");
        let archive = workspace::target().join("packages/debian-root.tar");
        if !archive.exists() {
            // Renamed when it is complete.
            let partial = archive.with_extension("part.tar");
            let mut make = Command::new("mmdebstrap");
            make.args([
                "--quiet",
                "--variant=minbase",
                "--include=python3-minimal,libpython3-stdlib",
            ]);
            make.arg("bookworm").arg(&partial);
            succeed(&mut make)?;
            fs::rename(&partial, &archive)?;
        }
        fs::create_dir(&root)?;
        succeed(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&root))?;
        for (from, to) in [(&dist.out, "packages"), (&dist.next, "next")] {
            let to = root.join("opt").join(to);
            fs::create_dir_all(&to)?;
            let deb = super::with_ending(from, ".deb")?;
            fs::copy(&deb, to.join("windlass.deb"))?;
        }
        let made = Self { root };
        let began = std::time::Instant::now();
        let mut install = made.enter();
        install.args(["dpkg", "--install", "/opt/packages/windlass.deb"]);
        workspace::output_of(&mut install)?;
        println!("deb      installed in {:.2} s", began.elapsed().as_secs_f64());
        Ok(made)
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", ENTER]);
        command.arg(&self.root);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/opt");
        command
    }

    /// A command in the root as the account, in an empty home.
    fn command(&self, account: Account<'_>) -> Result<Command> {
        let mut command = self.enter();
        let home = PathBuf::from(match account {
            Account::Own => "/opt/own",
            Account::Named(_) => "/opt/named",
        });
        let outside = self.root.join(home.strip_prefix("/")?);
        fs::create_dir(&outside)?;
        if let Account::Named(name) = account {
            succeed(Command::new("chown").arg(name).arg(&outside))?;
            let id = |kind: &str| workspace::output_of(Command::new("id").args([kind, name]));
            let (user, group) = (id("--user")?, id("--group")?);
            command.args(["setpriv", "--reuid", user.trim(), "--regid", group.trim()]);
            command.arg("--clear-groups");
        }
        command.arg("env").arg("-C").arg(&home).env("HOME", &home);
        Ok(command)
    }
}

/// The place of the packages inside of an image's build context.
pub fn debian_root_archive() -> Result<PathBuf> {
    let archive = workspace::target().join("packages/debian-root.tar");
    ensure!(Path::new(&archive).exists(), "there is no Debian root: run without --build-only");
    Ok(std::path::absolute(archive)?)
}
