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
use crate::trust::{Places, Trust, way};

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

    /// The directories of this release's worker programs.
    pub fn programs(&self) -> Vec<PathBuf> {
        vec![self.python.program().to_owned()]
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

/// Where a client's workspace really is. A link on the way must not be one that a session could have
/// put there: it would choose the directory in which the next session works. The path is resolved once,
/// so a link that is swapped meanwhile is not followed.
fn real_workspace(named: &str, trust: &Trust) -> Result<PathBuf, Failure> {
    let refused =
        |why: String| Failure::new(ErrorCode::BadRequest, format!("the workspace {named:?} {why}"));
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        Failure::of_machine(format_args!("cannot open the workspace {named:?}"), error)
            .unwrap_or_else(|| refused(format!("is not a directory: {error}")))
    };
    let way = way::resolve(Path::new(named)).map_err(|error| unusable(&error))?;
    let places = Places { directories: way.with_links, ..Places::default() };
    if let Err(why) = trust.check(&places) {
        let real = way.real.display();
        return Err(refused(format!(
            "leads through a link: {why}; name the directory itself, {real}"
        )));
    }
    Directory::recorded(&way.real).map_err(|error| unusable(&error))?;
    if way.real.to_str().is_none() {
        return Err(refused(format!("is {}, whose path is not UTF-8", way.real.display())));
    }
    Ok(way.real)
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
        made.map_err(|error| Failure::while_making("cannot create a workspace", &error))?;
        return Ok(fresh);
    };
    if !Path::new(named).is_absolute() {
        let message = format!("the workspace {named:?} is not an absolute path");
        return Err(Failure::new(ErrorCode::BadRequest, message));
    }
    real_workspace(named, trust)
}
