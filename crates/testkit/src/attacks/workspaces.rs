//! The workspaces that attacks run in: a project, an empty directory, the home, one on the node's PATH,
//! directories with the names that shells, agents, editors and git trust, and directories that hold a
//! hidden path, a socket, a repository elsewhere or a hard link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::program::WorkspaceKind;
use super::stage::{Stage, write};
use crate::node::search_path;
use crate::python;

/// What is in a project before an attack.
const PROJECT: &[&str] =
    &[".git/config", ".git/hooks/pre-commit", ".claude/settings.json", "AGENTS.md"];

/// A file for each name that agents, editors and git trust in a project: the first part of its path is
/// the name.
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

/// What shells and programs read from a home only.
pub(super) const IN_HOMES: &[&str] =
    &[".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".gitconfig", ".ripgreprc"];

/// All of them.
pub(super) fn trusted() -> Vec<&'static str> {
    IN_PROJECTS.iter().chain(IN_HOMES).copied().collect()
}

/// The project whose virtual environment is first on the node's PATH.
const ON_PATH: &str = "active";

/// Where the real files are, in a workspace whose names are symlinks.
const REAL: &str = "real";

/// The hidden directory of a nested workspace, and the file in it that holds the secret.
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

impl Stage {
    /// A workspace as it is before an attack: a new one, unless the kind has one place only.
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
                // As a repository could hold them: protected names that lead out.
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

/// The project on the node's PATH, in the stage's own directory.
pub(super) fn on_path(place: &Path) -> PathBuf {
    place.join(ON_PATH)
}

/// The directory of that project that is on the node's PATH.
pub(super) fn path_entry(place: &Path) -> PathBuf {
    on_path(place).join(".venv/bin")
}

/// Makes what is missing in a project, and takes away what an attack planted.
pub(super) fn restore_project(workspace: &Path) -> anyhow::Result<()> {
    // The node's placeholders are empty directories and sockets: a live session needs them.
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

/// What a session in such a workspace hides besides the usual.
pub(super) fn hidden_paths(kind: WorkspaceKind, workspace: &Path) -> Option<String> {
    (kind == WorkspaceKind::Nested)
        .then(|| workspace.join(NESTED_HIDDEN).to_string_lossy().into_owned())
}

/// The interpreter whose zygote preloads a module.
pub(super) fn preloading_python(place: &Path) -> String {
    place.join(PRELOADING).join(".venv/bin/python3").to_string_lossy().into_owned()
}

/// Puts the environment with the preloaded module back as it was. It keeps an unchanged one: its
/// zygote need not start again.
pub(super) fn restore_preloading(place: &Path) -> anyhow::Result<()> {
    let module = preloaded_file(place)?;
    if fs::read_to_string(&module).is_ok_and(|text| text == PRELOADED_TEXT) {
        return Ok(());
    }
    restore_active(&place.join(PRELOADING))?;
    write(&module, PRELOADED_TEXT)
}

/// What a user does now and then: a new package makes the node start the zygote again.
pub(super) fn install_package(place: &Path) -> anyhow::Result<()> {
    let installed = site_packages(&place.join(PRELOADING))?.join(INSTALLED);
    let _ = fs::remove_file(&installed);
    write(&installed, "")
}

fn preloaded_file(place: &Path) -> anyhow::Result<PathBuf> {
    let packages = site_packages(&place.join(PRELOADING))?;
    Ok(packages.join(PRELOADED_MODULE).with_extension("py"))
}

/// A repository as `git init --separate-git-dir` makes it.
fn init_with_git_file(workspace: &Path) -> anyhow::Result<()> {
    let made = git(workspace).args(["init", "-q", "--separate-git-dir", GIT_DIRECTORY]).output()?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "git makes no repository: {said}");
    Ok(())
}

/// A command of git in this directory, which reads no configuration of the machine or the user.
pub(super) fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).stdin(Stdio::null()).env_clear();
    command.env("PATH", search_path()).env("GIT_CONFIG_NOSYSTEM", "1");
    if let Some(above) = directory.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    command
}

/// Where packages are, in the virtual environment of a project.
fn site_packages(project: &Path) -> anyhow::Result<PathBuf> {
    let real = fs::canonicalize(python()).context("the tests have no Python")?;
    let version = real.file_name().context("the tests' Python has no name")?;
    Ok(project.join(".venv/lib").join(version).join("site-packages"))
}

/// A virtual environment by hand, as `python3 -m venv` makes one, without its delay.
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

/// Every trusted name is a symlink to something in the workspace that has another name.
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
