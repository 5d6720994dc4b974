//! The workspaces that attacks run in: a project, an empty directory, the home, one on the node's PATH,
//! and directories with the names that shells, agents, editors and git trust.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::program::WorkspaceKind;
use super::stage::{Stage, write};
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

/// A virtual environment by hand, as `python3 -m venv` makes one, without its delay.
pub(super) fn restore_active(active: &Path) -> anyhow::Result<()> {
    let interpreter = python();
    let real = fs::canonicalize(&interpreter).context("the tests have no Python")?;
    let version = real.file_name().context("the tests' Python has no name")?;
    let venv = active.join(".venv");
    let _ = fs::remove_dir_all(&venv);
    fs::create_dir_all(venv.join("bin"))?;
    fs::create_dir_all(venv.join("lib").join(version).join("site-packages"))?;
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
