//! The directories in which Jupyter keeps kernelspecs, and the programs on PATH.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories with Jupyter data, in Jupyter's order, and the PATH on which kernels' programs are found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelPaths {
    data_directories: Vec<PathBuf>,
    program_path: OsString,
}

impl KernelPaths {
    /// The directories for this process's environment: JUPYTER_PATH, the user's directory, the virtual
    /// environment, the system's directories.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| env::var_os(name))
    }

    /// The directories for an environment with these variables.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut directories: Vec<PathBuf> = Vec::new();
        if let Some(paths) = set("JUPYTER_PATH") {
            directories.extend(env::split_paths(&paths));
        }
        let of_user = set("JUPYTER_DATA_DIR").map(PathBuf::from).or_else(|| {
            let shared = set("XDG_DATA_HOME")
                .map(PathBuf::from)
                .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".local/share")))?;
            Some(shared.join("jupyter"))
        });
        let of_environment: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(&set)
            .map(|prefix| PathBuf::from(prefix).join("share/jupyter"))
            .collect();
        // Jupyter prefers an active environment to the user's directory.
        directories.extend(of_environment);
        directories.extend(of_user);
        directories.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
        let mut seen = Vec::new();
        directories.retain(|directory| {
            let is_new = directory.is_absolute() && !seen.contains(directory);
            seen.push(directory.clone());
            is_new
        });
        Self { data_directories: directories, program_path: set("PATH").unwrap_or_default() }
    }

    /// The same paths with one more directory before all others.
    pub fn with_first(mut self, data_directory: PathBuf) -> Self {
        self.data_directories.insert(0, data_directory);
        self
    }

    /// The directories that hold kernelspecs.
    pub fn kernel_directories(&self) -> impl Iterator<Item = PathBuf> {
        self.data_directories.iter().map(|directory| directory.join("kernels"))
    }

    pub fn program_path(&self) -> &OsStr {
        &self.program_path
    }
}

/// The file that a command's first word names, if it can be executed.
pub fn program_on_path(program: &str, path: &OsStr) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|file| is_executable(file));
    }
    env::split_paths(path).map(|directory| directory.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
