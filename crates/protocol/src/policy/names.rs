//! File names that programs trust without asking, and that a session therefore cannot change.

/// Names that git, agents, editors and build tools trust in any directory without asking. A session can
/// neither change nor replace nor create them in a directory that it can write.
pub const TRUSTED_ANYWHERE: &[&str] = &[
    // Version control: hooks and settings that run programs.
    ".git",
    ".gitmodules",
    ".hg",
    ".svn",
    ".husky",
    ".pre-commit-config.yaml",
    // Agents: instructions, settings and MCP servers.
    ".agents",
    ".aws",
    ".claude",
    ".codex",
    ".cursor",
    ".cursorrules",
    ".gemini",
    ".github",
    ".mcp.json",
    ".opencode",
    ".windsurf",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "opencode.json",
    // Editors and build tools: tasks and settings that run programs.
    ".cargo",
    ".devcontainer",
    ".envrc",
    ".idea",
    ".vscode",
    ".zed",
];

/// Names that shells and other programs trust only in a home directory. If such a file exists, a session
/// cannot change it, in any directory. A missing one cannot be created in a home directory.
pub const TRUSTED_AT_HOME: &[&str] = &[
    ".bash_aliases",
    ".bash_completion",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".cshrc",
    ".emacs",
    ".exrc",
    ".gdbinit",
    ".gitconfig",
    ".inputrc",
    ".kshrc",
    ".login",
    ".logout",
    ".pam_environment",
    ".profile",
    ".ripgreprc",
    ".tcshrc",
    ".tmux.conf",
    ".vimrc",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// Directories of a home directory with programs, completions and startup files. They are protected only
/// there.
pub const HOME_DIRECTORIES: &[&str] = &["bin", ".cargo", ".config", ".local", ".ssh"];

/// Names of a project's environments, whose programs the user runs. If such a directory exists when a session starts, the
/// session cannot change it. A missing one can be created.
pub const ENVIRONMENTS: &[&str] = &[".venv"];

/// All names that are protected by default.
pub fn protected() -> impl Iterator<Item = &'static str> {
    TRUSTED_ANYWHERE.iter().chain(TRUSTED_AT_HOME).chain(ENVIRONMENTS).copied()
}
