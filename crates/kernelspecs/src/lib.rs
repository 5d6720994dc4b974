//! Finds and reads kernelspecs, the descriptions of installed Jupyter kernels. Looks where Jupyter looks.
//! Reads files only: never starts a kernel and never runs Python.
//!
//! A kernelspec is a directory `kernels/NAME` with a `kernel.json`. The first directory with a name wins.

mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use search::{KernelPaths, program_on_path};

/// The file that describes a kernel.
pub const KERNEL_FILE: &str = "kernel.json";

/// Maximum bytes of a `kernel.json`. A longer file is refused.
const KERNEL_FILE_BYTES_MAX: u64 = 256 * 1024;

/// Maximum number of kernelspecs that [`find_all`] returns.
const KERNELS_MAX: usize = 1024;

/// How a kernel is interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterruptMode {
    /// SIGINT to the kernel's process group.
    #[default]
    Signal,
    /// An `interrupt_request` on the kernel's control channel.
    Message,
}

/// One kernelspec.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpec {
    /// The name of its directory in lower case. Clients select the kernel by this name.
    pub name: String,
    pub display_name: String,
    pub language: String,
    pub directory: PathBuf,
    /// The command with `{connection_file}`, `{resource_dir}` and `{prefix}` still in it.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub interrupt_mode: InterruptMode,
    pub metadata: Map<String, Value>,
}

/// A kernelspec that was found, and whether its kernel can be started.
#[derive(Debug)]
pub struct FoundKernel {
    pub spec: KernelSpec,
    /// What the kernel lacks, for people. Empty if its program is there.
    pub missing: Vec<String>,
}

/// Why a `kernel.json` is no kernelspec.
#[derive(Debug)]
pub enum SpecError {
    Unreadable { path: PathBuf, cause: io::Error },
    TooLong { path: PathBuf },
    Malformed { path: PathBuf, cause: serde_json::Error },
    NoCommand { path: PathBuf },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, cause } => {
                write!(f, "kernelspec {} cannot be read: {cause}", path.display())
            }
            Self::TooLong { path } => {
                write!(f, "kernelspec {} is over {KERNEL_FILE_BYTES_MAX} bytes", path.display())
            }
            Self::Malformed { path, cause } => {
                write!(f, "kernelspec {} is malformed: {cause}", path.display())
            }
            Self::NoCommand { path } => {
                write!(f, "kernelspec {} has an empty argv", path.display())
            }
        }
    }
}

impl std::error::Error for SpecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { cause, .. } => Some(cause),
            Self::Malformed { cause, .. } => Some(cause),
            Self::TooLong { .. } | Self::NoCommand { .. } => None,
        }
    }
}

/// All kernelspecs in these directories, by name, and the kernelspecs that cannot be used with their errors. A
/// later directory cannot replace a name of an earlier one.
pub fn find_all(paths: &KernelPaths) -> (Vec<FoundKernel>, Vec<SpecError>) {
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    let mut unusable = Vec::new();
    for directory in paths.kernel_directories() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let file = entry.path().join(KERNEL_FILE);
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if found.len() == KERNELS_MAX || !is_name(&name) || !file.is_file() {
                continue;
            }
            if !taken.insert(name) {
                continue;
            }
            match KernelSpec::read(&file) {
                Ok(spec) => {
                    let missing = spec.missing(paths);
                    found.push(FoundKernel { spec, missing });
                }
                Err(error) => unusable.push(error),
            }
        }
    }
    found.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    (found, unusable)
}

/// The kernelspec of this name.
pub fn find(paths: &KernelPaths, name: &str) -> Option<FoundKernel> {
    let (found, _) = find_all(paths);
    found.into_iter().find(|kernel| kernel.spec.name == name.to_lowercase())
}

/// Whether Jupyter accepts this as the name of a kernel.
fn is_name(name: &str) -> bool {
    let accepted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.bytes().all(accepted)
}

impl KernelSpec {
    /// Reads a `kernel.json`. The directory of the file gives the kernel its name.
    pub fn read(file: &Path) -> Result<Self, SpecError> {
        #[derive(Deserialize)]
        struct KernelJson {
            argv: Vec<String>,
            #[serde(default)]
            display_name: Option<String>,
            #[serde(default)]
            language: String,
            #[serde(default)]
            env: BTreeMap<String, String>,
            #[serde(default)]
            interrupt_mode: InterruptMode,
            #[serde(default)]
            metadata: Map<String, Value>,
        }
        let text = text_of(file)?;
        let json: KernelJson = serde_json::from_slice(&text)
            .map_err(|cause| SpecError::Malformed { path: file.to_owned(), cause })?;
        if json.argv.first().is_none_or(String::is_empty) {
            return Err(SpecError::NoCommand { path: file.to_owned() });
        }
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        let name = directory.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        Ok(Self {
            display_name: json.display_name.unwrap_or_else(|| name.clone()),
            name,
            language: json.language,
            directory,
            argv: json.argv,
            env: json.env,
            interrupt_mode: json.interrupt_mode,
            metadata: json.metadata,
        })
    }

    /// The command that starts the kernel. A plain `python` is the interpreter of the environment that the
    /// kernelspec is installed in, as Jupyter does it.
    pub fn command(&self, connection_file: &str) -> Vec<String> {
        let resource_dir = self.directory.to_string_lossy();
        let prefix = self.prefix().map(|prefix| prefix.to_string_lossy().into_owned());
        let filled = |argument: &String| {
            argument
                .replace("{connection_file}", connection_file)
                .replace("{resource_dir}", &resource_dir)
                .replace("{prefix}", prefix.as_deref().unwrap_or("/usr"))
        };
        let mut command: Vec<String> = self.argv.iter().map(filled).collect();
        if let (Some(program), Some(prefix)) = (command.first_mut(), self.prefix())
            && is_plain_python(program)
        {
            let interpreter = prefix.join("bin").join(&*program);
            if interpreter.exists() {
                *program = interpreter.to_string_lossy().into_owned();
            }
        }
        command
    }

    /// The variables that the kernelspec adds. `${NAME}` in a value is replaced by that variable of the
    /// environment.
    pub fn environment(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
        let filled = |(name, value): (&String, &String)| (name.clone(), expanded(value, &variable));
        self.env.iter().map(filled).collect()
    }

    /// What the kernel lacks, for people.
    fn missing(&self, paths: &KernelPaths) -> Vec<String> {
        let command = self.command("connection.json");
        match command.first() {
            Some(program) if program_on_path(program, paths.program_path()).is_none() => {
                vec![format!("program {program}")]
            }
            _ => Vec::new(),
        }
    }

    /// The prefix of the installation: `PREFIX/share/jupyter/kernels/NAME` is the directory of the kernelspec.
    fn prefix(&self) -> Option<&Path> {
        let kernels = self.directory.parent()?;
        if !kernels.ends_with("share/jupyter/kernels") {
            return None;
        }
        kernels.ancestors().nth(3)
    }
}

fn is_plain_python(program: &str) -> bool {
    let Some(version) = program.strip_prefix("python") else { return false };
    version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn text_of(file: &Path) -> Result<Vec<u8>, SpecError> {
    let unreadable = |cause| SpecError::Unreadable { path: file.to_owned(), cause };
    let mut text = Vec::new();
    let opened = fs::File::open(file).map_err(unreadable)?;
    opened.take(KERNEL_FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > KERNEL_FILE_BYTES_MAX {
        return Err(SpecError::TooLong { path: file.to_owned() });
    }
    Ok(text)
}

/// The text with every `${NAME}` replaced. A variable that is not set stays as it is written.
fn expanded(text: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start + 2..].find('}') else { break };
        let end = start + 2 + length;
        filled.push_str(&rest[..start]);
        match variable(&rest[start + 2..end]) {
            Some(value) => filled.push_str(&value),
            None => filled.push_str(&rest[start..=end]),
        }
        rest = &rest[end + 1..];
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests;
