//! The kinds of worker a node can start, and what each needs: its program's files, which the node
//! carries inside itself, and its command line and environment.

mod environment;
mod files;
mod python;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::CreateSession;
use windlass_protocol::{ErrorCode, SessionId};
use windlass_sandbox::beneath::Directory;

use crate::config::Config;
use crate::failure::Failure;
use crate::session::fork::rooms;
use crate::trust::{Distrust, Places, Trust};

/// The workers this node can start.
pub(crate) struct Workers {
    python: python::Python,
}

/// How to start a session's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// `python`.
    pub kind: &'static str,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The program that runs it.
    pub interpreter: PathBuf,
    /// What that path stands for, links followed.
    pub real: PathBuf,
    /// The worker's own program, which it must be able to read.
    pub program: PathBuf,
    /// What it must be able to read besides, if the policy does not hide it.
    pub needed: Vec<PathBuf>,
}

/// How to start a zygote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ZygoteRecipe {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// What it is made of, besides what it says itself.
    pub places: Vec<PathBuf>,
    /// Where it takes code from: no session could write there when this was made.
    pub trusted: Places,
}

impl Workers {
    /// Lays the worker programs out below the state directory. `named` are the interpreters that
    /// the user has named.
    pub fn prepare(state_dir: &Path, trust: Arc<Trust>, named: Vec<String>) -> io::Result<Self> {
        let python = python::Python::prepare(&state_dir.join("workers"), trust, named)?;
        Ok(Self { python })
    }

    /// The interpreter of an environment that the user named. May run a program to find out.
    pub fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        self.python.named(named)
    }

    /// How to start a zygote of that interpreter; a failure says why the node does not run it.
    pub fn zygote(&self, interpreter: &Path, preload: &[String]) -> Result<ZygoteRecipe, Failure> {
        self.python.zygote(interpreter, preload)
    }

    /// How to start what `wanted` asks for, in `workspace`. May run a program to find out, so it
    /// must not be called where waiting hurts.
    pub fn recipe(&self, wanted: &CreateSession, workspace: &Path) -> Result<Recipe, Failure> {
        match wanted.worker.as_deref().unwrap_or("python") {
            "python" => self.python.recipe(wanted, workspace),
            other => Err(Failure::new(
                ErrorCode::BadRequest,
                format!("there is no worker {other:?}; this release has: python"),
            )),
        }
    }
}

/// A link on the way to a workspace must not be one that a session could have put there: it would
/// choose the directory in which the next session works.
fn check_links(named: &str, path: &Path, trust: &Trust) -> Result<(), Failure> {
    let refused = |why: String| {
        let message = format!("the workspace {named:?} leads through a link: {why}");
        Failure::new(ErrorCode::BadRequest, message)
    };
    let way = crate::trust::way::resolve(path).map_err(|error| refused(error.to_string()))?;
    let places = Places { directories: way.with_links, ..Places::default() };
    match trust.check(&places) {
        Err(Distrust::Written { place, .. }) => Err(refused(format!(
            "a session can write to {}; name the directory itself, {}",
            place.display(),
            way.real.display()
        ))),
        _ => Ok(()),
    }
}

/// The workspace of a new session: the client's directory, or a fresh one of its own. Its path is
/// recorded without links, so that a link that is on it later is known to have been put there since.
pub(crate) fn workspace(
    wanted: &CreateSession,
    config: &Config,
    id: &SessionId,
    trust: &Trust,
) -> Result<PathBuf, Failure> {
    let Some(named) = &wanted.workspace else {
        let fresh = config.workspace_of(id);
        let made = rooms::state(config)
            .and_then(|state| state.make_directory(rooms::inside(config, &fresh)?, 0o755));
        made.map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("cannot create a workspace: {error}"))
        })?;
        return Ok(fresh);
    };
    let path = PathBuf::from(named);
    if !path.is_absolute() {
        let message = format!("the workspace {named:?} is not an absolute path");
        return Err(Failure::new(ErrorCode::BadRequest, message));
    }
    let real = path.canonicalize().and_then(|real| Directory::recorded(&real).map(|_| real));
    let real = real.map_err(|error| {
        let message = format!("the workspace {named:?} is not a directory: {error}");
        Failure::new(ErrorCode::BadRequest, message)
    })?;
    check_links(named, &path, trust)?;
    if real.to_str().is_none() {
        let message =
            format!("the workspace {named:?} is {}, whose path is not UTF-8", real.display());
        return Err(Failure::new(ErrorCode::BadRequest, message));
    }
    Ok(real)
}
