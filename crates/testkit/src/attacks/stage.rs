//! The stage: a home with secrets, the host's services, a node, and the compiled programs. After a successful
//! attack, the stage is restored before the next one.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::json;
use tempfile::TempDir;
use windlass_client::protocol::ErrorCode;
use windlass_client::protocol::api::CloseQuery;
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::PolicyRequest;
use windlass_client::{Client, ClientError};

use super::host::StageHost;
use super::listed::current_file;
use super::network::NetworkSetting;
use super::outsider::ANOTHER_USER;
use super::program::{Attack, Language};
use super::runner::AttackWorker;
use super::scene::AttackScene;
use super::watch::FileSnapshot;
use super::workspaces::{
    PRELOADED_MODULE, on_path, path_entry, preloading_python, restore_active, restore_preloading,
};
use crate::node::search_path;
use crate::{TestNode, processes, python};

/// A variable of the node's environment with the secret. A session gets it only if its policy names it.
pub const SECRET_VARIABLE: &str = "STAGE_API_TOKEN";

/// A file in the node's state directory that the node does not read, so an attack may change it.
const DECOY: &str = "decoy.seg";

/// Common code, installed beside every program.
const PYTHON_COMMON: &str = include_str!("../../attacks/common/attack.py");
const C_COMMON: &str = include_str!("../../attacks/common/attack.h");

/// Parent directories for the stage, best first. Not `/tmp` or, if possible, `/var/tmp`: they are private in
/// a session, and the policy must hide the secrets, not the private directory.
const PLACES: [&str; 2] = ["/srv", "/var/tmp"];
const PLACE_VARIABLE: &str = "WINDLASS_TEST_PLACE";

/// Files in the home with the secret. Each is below a path that every preset hides.
const SECRETS: &[&str] = &[
    ".ssh/id_rsa",
    ".aws/credentials",
    ".netrc",
    ".config/gh/hosts.yml",
    ".bash_history",
    ".claude/credentials.json",
    ".claude.json",
    ".config/tool/token",
    ".config/tool/bin/python3",
    ".config/tool/lib/token",
    ".config/t/token",
];

/// The files of [`SECRETS`] that are replaced by rename while a session runs, as editors do.
const REWRITTEN: &[&str] = &[".netrc", ".bash_history"];

/// Secrets in hidden paths that are created while a session runs.
const MADE_LATER: &[&str] = &[".kube/config", ".pgpass"];

/// Files in the home that a session may read and must not write.
const PLAIN: &[&str] = &[
    ".bashrc",
    ".profile",
    "notes.txt",
    ".ssh/authorized_keys",
    "project/readme.txt",
    ".cargo/bin/tool",
    ".config/autostart/agent.desktop",
];

/// Empty directories in the home that a session cannot write. A node that cleans up through a symlink would
/// remove them.
const EMPTY: &[&str] = &["empty/o", "empty/r", "empty/t/r"];

/// Pool size of the node.
const POOL_SIZE: usize = 2;

/// Everything that attacks run against. Dropping it ends the node and the host.
#[derive(Debug)]
pub struct AttackStage {
    // The host is dropped before the node: dropping the node kills all its processes, and the host must first
    // remove its queues.
    pub(super) host: StageHost,
    pub(super) node: TestNode,
    pub(super) client: Client,
    pub(super) secret: String,
    pub(super) home: PathBuf,
    pub(super) sessions: usize,
    /// The kind of the sessions to attack from.
    pub(super) worker: AttackWorker,
    place: TempDir,
}

impl AttackStage {
    /// Creates the stage with a node that runs `program`.
    pub async fn new(program: &Path) -> anyhow::Result<Self> {
        let place = tempfile::Builder::new().prefix("wl-").tempdir_in(around())?;
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
        let secret = format!("windlass-canary-{}", random_hex()?);
        let home = place.path().join("home");
        fill_home(&home, &secret)?;
        restore_active(&on_path(place.path()))?;
        restore_preloading(place.path())?;
        let environments = place.path().join("environments.json");
        fs::write(&environments, environments_file(place.path()))?;
        let mut path = path_entry(place.path()).into_os_string();
        path.push(":");
        path.push(search_path());
        let mut node = TestNode::builder(program)
            .env("HOME", &home)
            .env("PATH", path)
            .env("WINDLASS_ENVIRONMENTS", environments)
            .env(SECRET_VARIABLE, &secret)
            .state_dir(place.path().join("state"))
            .prepare()?;
        write(&node.dirs().state.join(DECOY), "as it was\n")?;
        // The home exists before the node starts, because it contains the node's hidden paths.
        node.restart().await?;
        let client = node.client().await?;
        fs::write(node.base().join("shared.txt"), &secret)?;
        let host = StageHost::start(place.path(), &home, node.base(), &secret)?;
        let worker = AttackWorker::default();
        Ok(Self { host, node, client, secret, home, sessions: 0, worker, place })
    }

    /// Lets the attacks run from sessions of another kind.
    #[must_use]
    pub fn from_worker(mut self, worker: AttackWorker) -> Self {
        self.worker = worker;
        self
    }

    /// The sessions of one level: a victim, and sessions to attack from.
    pub async fn scene(&mut self, level: Isolation) -> anyhow::Result<AttackScene<'_>> {
        self.scene_with(level, PolicyRequest::default()).await
    }

    /// The same, with a network setting.
    pub async fn scene_on(
        &mut self,
        level: Isolation,
        network: NetworkSetting,
    ) -> anyhow::Result<AttackScene<'_>> {
        let policy = PolicyRequest { network: Some(network.policy()?), ..PolicyRequest::default() };
        AttackScene::new(self, (level, network), policy).await
    }

    /// Why the node refuses a session with this level and network setting; `None` if it starts one.
    pub async fn refusal(
        &self,
        level: Isolation,
        network: NetworkSetting,
    ) -> anyhow::Result<Option<String>> {
        let mut wanted = TestNode::create();
        let network = Some(network.policy()?);
        let isolation = Some(level);
        wanted.policy = Some(PolicyRequest { isolation, network, ..PolicyRequest::default() });
        match self.client.create_session(&wanted).await {
            Ok(created) => {
                let close = CloseQuery { grace_ms: Some(0) };
                self.client.close_session(&created.session.id, close).await?;
                Ok(None)
            }
            Err(ClientError::Api(error)) if error.code == ErrorCode::NotEnforceable => {
                Ok(Some(error.message))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The same as [`AttackStage::scene`], with another policy for the sessions to attack from.
    pub async fn scene_with(
        &mut self,
        level: Isolation,
        policy: PolicyRequest,
    ) -> anyhow::Result<AttackScene<'_>> {
        AttackScene::new(self, (level, NetworkSetting::None), policy).await
    }

    pub(super) fn place(&self) -> &Path {
        self.place.path()
    }

    /// Acts as the user while a session runs: replaces files with secrets, and creates others.
    pub(super) fn make_later_changes(&self) -> anyhow::Result<()> {
        for name in REWRITTEN {
            let new = self.home.join(format!("{name}.new"));
            write(&new, &self.secret)?;
            fs::rename(new, self.home.join(name))?;
        }
        MADE_LATER.iter().try_for_each(|name| write(&self.home.join(name), &self.secret))
    }

    /// Removes the later files before a session starts.
    pub(super) fn undo_later_changes(&self) {
        for name in MADE_LATER {
            let path = self.home.join(name);
            let _ = fs::remove_file(&path);
            if let Some(directory) = path.parent().filter(|above| *above != self.home) {
                let _ = fs::remove_dir(directory);
            }
        }
    }

    /// A snapshot of the files that no attack may change: the home, the victim's workspace and files in the
    /// host's `/tmp`.
    pub(super) fn watched(&self, victim: &Path) -> FileSnapshot {
        let base = self.node.base();
        let state = &self.node.dirs().state;
        let shared = [
            base.join("shared.txt"),
            base.join("planted"),
            state.join("planted"),
            state.join(DECOY),
        ];
        let mut roots = vec![self.home.clone(), victim.to_owned()];
        roots.extend(shared);
        FileSnapshot::now(&roots, &self.home.join("attack"))
    }

    /// An empty directory, owned by another user if this process is root.
    pub(super) fn other_users_directory(&self) -> anyhow::Result<PathBuf> {
        let other = self.place.path().join("other");
        let _ = fs::remove_dir_all(&other);
        fs::create_dir(&other)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&other, Some(ANOTHER_USER), Some(ANOTHER_USER))?;
        }
        Ok(other)
    }

    /// Whether the node process is still running.
    pub(super) fn node_lives(&self) -> bool {
        processes::alive(self.node.pid())
    }

    /// Restarts the node after an attack killed it.
    pub(super) async fn revive(&mut self) -> anyhow::Result<()> {
        self.restore()?;
        self.node.restart().await.context("the node does not restart")?;
        self.client = self.node.client().await?;
        Ok(())
    }

    /// Restores the home.
    pub(super) fn restore(&self) -> anyhow::Result<()> {
        let moved = self.home.with_file_name("home-moved");
        if moved.exists() && !self.home.exists() {
            fs::rename(&moved, &self.home)?;
        }
        for entry in fs::read_dir(&self.home)?.flatten() {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else if kind.is_file() || kind.is_symlink() {
                // Keep the host's sockets.
                fs::remove_file(entry.path())?;
            }
        }
        fs::write(self.node.base().join("shared.txt"), &self.secret)?;
        fs::write(self.node.dirs().state.join(DECOY), "as it was\n")?;
        for place in [self.node.base(), &self.node.dirs().state] {
            let _ = fs::remove_file(place.join("planted"));
        }
        restore_active(&on_path(self.place.path()))?;
        restore_preloading(self.place.path())?;
        fill_home(&self.home, &self.secret)
    }

    /// Installs the program of an attack in a workspace, and returns its path relative to the workspace.
    pub(super) fn install(&self, attack: &Attack, workspace: &Path) -> anyhow::Result<String> {
        let directory = workspace.join("attack");
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("attack.py"), current_file("common/attack.py", PYTHON_COMMON))?;
        if attack.language == Language::C {
            let built = self.build(attack)?;
            fs::copy(built, directory.join(attack.program))?;
            return Ok(format!("attack/{}", attack.program));
        }
        fs::write(directory.join(attack.program).with_extension("py"), attack.text)?;
        Ok(format!("attack/{}.py", attack.program))
    }

    /// Compiles a program once per stage.
    fn build(&self, attack: &Attack) -> anyhow::Result<PathBuf> {
        let directory = self.place.path().join("build");
        let built = directory.join(attack.program);
        if built.exists() {
            return Ok(built);
        }
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("attack.h"), C_COMMON)?;
        let source = built.with_extension("c");
        fs::write(&source, attack.text)?;
        let output = Command::new("cc")
            .args(["-O0", "-o"])
            .args([&built, &source])
            .output()
            .context("cannot run cc, which compiles the attacks in C")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cc cannot compile {}.c: {errors}", attack.program);
        Ok(built)
    }
}

/// The environments file of the node: the tests' interpreter, the first `python3` on PATH, and an interpreter
/// with a preloaded module.
fn environments_file(place: &Path) -> String {
    let named = json!({"interpreter": python(), "pool": POOL_SIZE});
    let on_path = json!({"interpreter": "python3", "pool": 0});
    let preload = [PRELOADED_MODULE];
    let preloading =
        json!({"interpreter": preloading_python(place), "preload": preload, "pool": 0});
    json!({"version": 1, "environments": [named, on_path, preloading]}).to_string()
}

fn around() -> PathBuf {
    let writable = |place: &&str| rustix::fs::access(*place, rustix::fs::Access::WRITE_OK).is_ok();
    std::env::var_os(PLACE_VARIABLE)
        .map_or_else(|| PLACES.into_iter().find(writable).unwrap_or("/tmp").into(), PathBuf::from)
}

fn fill_home(home: &Path, secret: &str) -> anyhow::Result<()> {
    for name in SECRETS {
        write(&home.join(name), secret)?;
    }
    for name in PLAIN {
        write(&home.join(name), "# as it was\n")?;
    }
    // A hidden name that is a symlink, as dotfile managers create them.
    write(&home.join("dotfiles/gnupg/key"), secret)?;
    if fs::symlink_metadata(home.join(".gnupg")).is_err() {
        std::os::unix::fs::symlink("dotfiles/gnupg", home.join(".gnupg"))?;
    }
    let attribute = rustix::fs::XattrFlags::empty();
    // A file system without extended attributes has none to read.
    let _ =
        rustix::fs::setxattr(home.join(".ssh/id_rsa"), "user.secret", secret.as_bytes(), attribute);
    EMPTY.iter().try_for_each(|name| fs::create_dir_all(home.join(name)))?;
    fs::set_permissions(home, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn random_hex() -> anyhow::Result<String> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
