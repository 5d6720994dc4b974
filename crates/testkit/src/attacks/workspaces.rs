//! The workspaces that attacks run in: a project, an empty directory, the home, a project on the node's PATH,
//! directories with the names that shells, agents, editors and git trust, and directories that contain a
//! hidden path, a socket, a separate repository or a hard link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::program::WorkspaceKind;
use super::stage::{AttackStage, write};
use crate::node::search_path;
use crate::python;

/// The files of a project before an attack.
const PROJECT: &[&str] =
    &[".git/config", ".git/hooks/pre-commit", ".claude/settings.json", "AGENTS.md"];

/// One file for each name that agents, editors and git trust in a project. The first path component is the
/// name.
pub(super) const IN_PROJECTS: &[&str] = &[
    ".git/config",
    ".hg/hgrc",
    ".svn/entries",
    ".claude/settings.json",
    ".codex/config.toml",
    ".agents/rules.md",
    ".aws/config",
    ".cursor/rules.md",
    ".gemini/settings.json",
    ".vscode/tasks.json",
    ".idea/workspace.xml",
    ".github/workflows/ci.yml",
    ".husky/pre-commit",
    ".devcontainer/devcontainer.json",
    ".cargo/config.toml",
    ".zed/settings.json",
    ".mcp.json",
    ".envrc",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    ".gitmodules",
    ".pre-commit-config.yaml",
    "opencode.json",
];

/// Names that shells and programs read only from a home.
pub(super) const IN_HOMES: &[&str] =
    &[".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".gitconfig", ".ripgreprc"];

/// All trusted names.
pub(super) fn trusted() -> Vec<&'static str> {
    IN_PROJECTS.iter().chain(IN_HOMES).copied().collect()
}

/// The project whose virtual environment is first on the node's PATH.
const ON_PATH: &str = "active";

/// The directory with the real files, in a workspace whose trusted names are symlinks.
const REAL: &str = "real";

/// The hidden directory of a nested workspace, and the file with the secret in it.
const NESTED_HIDDEN: &str = "conf/keys";
const NESTED_SECRET: &str = "conf/keys/id";

/// The repository that a `.git` file names.
const GIT_DIRECTORY: &str = "repository";

/// The virtual environment whose zygote preloads a module, and the module.
const PRELOADING: &str = "preloading";
pub(super) const PRELOADED_MODULE: &str = "stage_preloaded";
const INSTALLED: &str = "stage_installed.py";
const PRELOADED_TEXT: &str = "# as it was\n";

/// The second name of that module, in a workspace.
const HARD_LINK: &str = "linked.py";

impl AttackStage {
    /// A workspace in its state before an attack. It is new, unless the kind has only one directory.
    pub(super) fn workspace(&mut self, kind: WorkspaceKind) -> anyhow::Result<PathBuf> {
        match kind {
            WorkspaceKind::Home => return Ok(self.home.clone()),
            WorkspaceKind::OnPath => {
                let active = on_path(self.place());
                restore_active(&active)?;
                return Ok(active);
            }
            _ => {}
        }
        self.sessions += 1;
        let workspace = self.place().join(format!("work-{}", self.sessions));
        fs::create_dir_all(&workspace)?;
        match kind {
            WorkspaceKind::AllNames => fill(&workspace, &trusted())?,
            WorkspaceKind::Links => link_names(&workspace)?,
            WorkspaceKind::Project => {
                restore_project(&workspace)?;
                // Protected names that are symlinks to outside, as a repository could contain them.
                for (name, target) in [(".idea", ".ssh"), (".envrc", ".claude.json")] {
                    symlink(self.home.join(target), workspace.join(name))?;
                }
            }
            WorkspaceKind::Nested => {
                write(&workspace.join(NESTED_SECRET), &self.secret)?;
                fs::create_dir(workspace.join("sub"))?;
            }
            WorkspaceKind::GitFile => init_with_git_file(&workspace)?,
            WorkspaceKind::HardLink => {
                restore_preloading(self.place())?;
                fs::hard_link(preloaded_file(self.place())?, workspace.join(HARD_LINK))?;
            }
            WorkspaceKind::Bare | WorkspaceKind::Home | WorkspaceKind::OnPath => {}
        }
        Ok(workspace)
    }
}

/// The project on the node's PATH, in the directory of the stage.
pub(super) fn on_path(place: &Path) -> PathBuf {
    place.join(ON_PATH)
}

/// The directory of that project that is in the node's PATH.
pub(super) fn path_entry(place: &Path) -> PathBuf {
    on_path(place).join(".venv/bin")
}

/// Creates missing files of a project, and removes what an attack planted.
pub(super) fn restore_project(workspace: &Path) -> anyhow::Result<()> {
    // Keep the node's placeholders, which are empty directories and sockets: a live session needs them.
    for planted in [".vscode", ".codex"].map(|name| workspace.join(name)) {
        if fs::read_dir(&planted).is_ok_and(|mut entries| entries.next().is_some()) {
            let _ = fs::remove_dir_all(planted);
        }
    }
    for planted in [".mcp.json", "CLAUDE.md"].map(|name| workspace.join(name)) {
        if planted.is_file() {
            let _ = fs::remove_file(planted);
        }
    }
    fill(workspace, PROJECT)
}

/// Sockets of the host that listen in a workspace before the session starts.
pub(super) fn early_sockets(kind: WorkspaceKind) -> &'static [&'static str] {
    match kind {
        WorkspaceKind::Nested => &["early.sock", "sub/agent.sock"],
        _ => &["early.sock"],
    }
}

/// The path that a session in this kind of workspace hides in addition.
pub(super) fn hidden_paths(kind: WorkspaceKind, workspace: &Path) -> Option<String> {
    (kind == WorkspaceKind::Nested)
        .then(|| workspace.join(NESTED_HIDDEN).to_string_lossy().into_owned())
}

/// The interpreter whose zygote preloads a module.
pub(super) fn preloading_python(place: &Path) -> String {
    place.join(PRELOADING).join(".venv/bin/python3").to_string_lossy().into_owned()
}

/// Restores the environment with the preloaded module. Keeps an unchanged environment, so that its zygote
/// need not restart.
pub(super) fn restore_preloading(place: &Path) -> anyhow::Result<()> {
    let module = preloaded_file(place)?;
    if fs::read_to_string(&module).is_ok_and(|text| text == PRELOADED_TEXT) {
        return Ok(());
    }
    restore_active(&place.join(PRELOADING))?;
    write(&module, PRELOADED_TEXT)
}

/// Installs a package, as a user does. It makes the node restart the zygote.
pub(super) fn install_package(place: &Path) -> anyhow::Result<()> {
    let installed = site_packages(&place.join(PRELOADING))?.join(INSTALLED);
    let _ = fs::remove_file(&installed);
    write(&installed, "")
}

fn preloaded_file(place: &Path) -> anyhow::Result<PathBuf> {
    let packages = site_packages(&place.join(PRELOADING))?;
    Ok(packages.join(PRELOADED_MODULE).with_extension("py"))
}

/// Creates a repository with `git init --separate-git-dir`.
fn init_with_git_file(workspace: &Path) -> anyhow::Result<()> {
    let made = git(workspace).args(["init", "-q", "--separate-git-dir", GIT_DIRECTORY]).output()?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "git init failed: {said}");
    Ok(())
}

/// A git command in this directory that reads no configuration of the machine or the user.
pub(super) fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).stdin(Stdio::null()).env_clear();
    command.env("PATH", search_path()).env("GIT_CONFIG_NOSYSTEM", "1");
    if let Some(above) = directory.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    command
}

/// The package directory in the virtual environment of a project.
fn site_packages(project: &Path) -> anyhow::Result<PathBuf> {
    let real = fs::canonicalize(python()).context("the tests have no Python")?;
    let version = real.file_name().context("the tests' Python has no file name")?;
    Ok(project.join(".venv/lib").join(version).join("site-packages"))
}

/// Creates a virtual environment by hand, which is faster than `python3 -m venv`.
pub(super) fn restore_active(active: &Path) -> anyhow::Result<()> {
    let interpreter = python();
    let venv = active.join(".venv");
    let _ = fs::remove_dir_all(&venv);
    fs::create_dir_all(venv.join("bin"))?;
    fs::create_dir_all(site_packages(active)?)?;
    let home = interpreter.parent().unwrap_or(Path::new("/usr/bin")).display();
    write(&venv.join("pyvenv.cfg"), &format!("home = {home}\n"))?;
    symlink(&interpreter, venv.join("bin/python3"))?;
    symlink("python3", venv.join("bin/python"))?;
    Ok(())
}

fn fill(workspace: &Path, names: &[&str]) -> anyhow::Result<()> {
    names.iter().try_for_each(|name| write(&workspace.join(name), "# as it was\n"))
}

/// Creates every trusted name as a symlink to a file or directory of another name in the workspace.
fn link_names(workspace: &Path) -> anyhow::Result<()> {
    for (number, file) in trusted().iter().enumerate() {
        let (name, rest) = file.split_once('/').unwrap_or((file, ""));
        let target = Path::new(REAL).join(number.to_string());
        let real = workspace.join(&target);
        write(&if rest.is_empty() { real } else { real.join(rest) }, "# as it was\n")?;
        symlink(target, workspace.join(name))?;
    }
    Ok(())
}
