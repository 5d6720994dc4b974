//! The stage: a home with secrets, the host's services, a node, and the compiled programs. What is
//! changed by an attack that came through is put back before the next.

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

use super::host::Host;
use super::listed::current_file;
use super::network::NetworkSetting;
use super::outsider::ANOTHER_USER;
use super::program::{Attack, Language};
use super::scene::Scene;
use super::watch::Seen;
use super::workspaces::{
    PRELOADED_MODULE, on_path, path_entry, preloading_python, restore_active, restore_preloading,
};
use crate::node::search_path;
use crate::{TestNode, processes, python};

/// A variable of the node's with the secret, which no session gets unless its policy names it.
pub const SECRET_VARIABLE: &str = "STAGE_API_TOKEN";

/// A file in the node's state that the node does not read: an attack may change it unharmed.
const DECOY: &str = "decoy.seg";

/// What every program shares, beside it when it runs.
const PYTHON_COMMON: &str = include_str!("../../attacks/common/attack.py");
const C_COMMON: &str = include_str!("../../attacks/common/attack.h");

/// Where the stage is put up. Not in `/tmp`, which a session has a private one of: what is hidden
/// must be hidden by the policy, and not by chance. Nor in `/var/tmp`, where it can be helped.
const PLACES: [&str; 2] = ["/srv", "/var/tmp"];
const PLACE_VARIABLE: &str = "WINDLASS_TEST_PLACE";

/// Files of the home that hold the secret; each is below a path that every preset hides.
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

/// Of these, the ones that are replaced while a session runs, as editors and programs do it.
const REWRITTEN: &[&str] = &[".netrc", ".bash_history"];

/// Secrets in hidden places that are made while a session runs.
const MADE_LATER: &[&str] = &[".kube/config", ".pgpass"];

/// Files of the home that anybody may read and nobody may write.
const PLAIN: &[&str] = &[
    ".bashrc",
    ".profile",
    "notes.txt",
    ".ssh/authorized_keys",
    "project/readme.txt",
    ".cargo/bin/tool",
    ".config/autostart/agent.desktop",
];

/// Directories of the home that a session can name and not write, with an empty one in each: a node
/// that tidies up through a link would remove it.
const EMPTY: &[&str] = &["empty/o", "empty/r", "empty/t/r"];

/// Workers that wait for a session, where the node keeps a pool.
const WAITING: usize = 2;

/// Everything that attacks are played on. Dropping it ends what it started.
#[derive(Debug)]
pub struct Stage {
    // Dropped in this order: the end of the node would end the host's process by force, before it
    // has taken its queues away.
    pub(super) host: Host,
    pub(super) node: TestNode,
    pub(super) client: Client,
    pub(super) secret: String,
    pub(super) home: PathBuf,
    pub(super) sessions: usize,
    place: TempDir,
}

impl Stage {
    /// Puts the stage up around a node of `program`.
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
        // The home first: the node's hidden paths are in it.
        node.restart().await?;
        let client = node.client().await?;
        fs::write(node.base().join("shared.txt"), &secret)?;
        let host = Host::start(place.path(), &home, node.base(), &secret)?;
        Ok(Self { host, node, client, secret, home, sessions: 0, place })
    }

    /// The sessions of one level: one to attack, one to attack from.
    pub async fn scene(&mut self, level: Isolation) -> anyhow::Result<Scene<'_>> {
        self.scene_with(level, PolicyRequest::default()).await
    }

    /// The same, with a network setting.
    pub async fn scene_on(
        &mut self,
        level: Isolation,
        network: NetworkSetting,
    ) -> anyhow::Result<Scene<'_>> {
        let policy = PolicyRequest { network: Some(network.policy()?), ..PolicyRequest::default() };
        Scene::new(self, (level, network), policy).await
    }

    /// Why the node starts no session with this level and network setting, if it refuses to.
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

    /// The same as [`Stage::scene`], with sessions to attack from that have another policy than the usual.
    pub async fn scene_with(
        &mut self,
        level: Isolation,
        policy: PolicyRequest,
    ) -> anyhow::Result<Scene<'_>> {
        Scene::new(self, (level, NetworkSetting::None), policy).await
    }

    pub(super) fn place(&self) -> &Path {
        self.place.path()
    }

    /// What its user does while a session runs: files with secrets are replaced, and others made.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        for name in REWRITTEN {
            let new = self.home.join(format!("{name}.new"));
            write(&new, &self.secret)?;
            fs::rename(new, self.home.join(name))?;
        }
        MADE_LATER.iter().try_for_each(|name| write(&self.home.join(name), &self.secret))
    }

    /// Before a session: what is made later is not there yet.
    pub(super) fn go_back(&self) {
        for name in MADE_LATER {
            let path = self.home.join(name);
            let _ = fs::remove_file(&path);
            if let Some(directory) = path.parent().filter(|above| *above != self.home) {
                let _ = fs::remove_dir(directory);
            }
        }
    }

    /// What no attack may change: the home, the victim's workspace and what is in the host's `/tmp`.
    pub(super) fn watched(&self, victim: &Path) -> Seen {
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
        Seen::now(&roots, &self.home.join("attack"))
    }

    /// An empty directory of another user's, where this user can give one away.
    pub(super) fn others_directory(&self) -> anyhow::Result<PathBuf> {
        let other = self.place.path().join("other");
        let _ = fs::remove_dir_all(&other);
        fs::create_dir(&other)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&other, Some(ANOTHER_USER), Some(ANOTHER_USER))?;
        }
        Ok(other)
    }

    /// Whether the node still runs, as the process that it was.
    pub(super) fn node_lives(&self) -> bool {
        processes::alive(self.node.pid())
    }

    /// Starts the node again where an attack has ended it.
    pub(super) async fn revive(&mut self) -> anyhow::Result<()> {
        self.restore()?;
        self.node.restart().await.context("the node does not start again")?;
        self.client = self.node.client().await?;
        Ok(())
    }

    /// Puts the home back as it was.
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
                // The host's sockets stay.
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

    /// Puts the program of an attack into a workspace, and says how it is run: a path relative to it.
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

    /// Compiles a program, once a stage.
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
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cc refuses {}.c: {said}", attack.program);
        Ok(built)
    }
}

/// What the node keeps zygotes of: the tests' interpreter, whatever is first on its PATH, and one with
/// a preloaded module.
fn environments_file(place: &Path) -> String {
    let named = json!({"interpreter": python(), "pool": WAITING});
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
    // A hidden name that is a link, as tools that manage such files make them.
    write(&home.join("dotfiles/gnupg/key"), secret)?;
    if fs::symlink_metadata(home.join(".gnupg")).is_err() {
        std::os::unix::fs::symlink("dotfiles/gnupg", home.join(".gnupg"))?;
    }
    let attribute = rustix::fs::XattrFlags::empty();
    // Where the file system has no attributes, there is none to read.
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
