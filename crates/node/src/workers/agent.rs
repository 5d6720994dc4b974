//! The workers for agents: which programs their engines are, what those programs need, and how the worker is
//! started. The engine runs in the session's sandbox only.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use windlass_protocol::ErrorCode;
use windlass_protocol::agent::AgentRequest;
use windlass_protocol::agent::settings::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, MODEL_BYTES_MAX};
use windlass_protocol::api::{CreateSession, WorkerInfo};
use windlass_protocol::kinds::agent::{ACP_KIND, ENGINES, KIND, engine_of, package};
use windlass_protocol::kinds::{VARIANT_SEPARATOR, WorkerKind};

use super::lookup::{self, FoundProgram};
use super::program_files::LazyProgram;
use super::{Launcher, Recipe, environment};
use crate::failure::Failure;
use crate::trust::{CodeDirs, Trust};

/// Flags of codex's subcommand `exec`. Before a subcommand they are an error.
const CODEX_EXEC_FLAGS: [&str; 5] =
    ["--skip-git-repo-check", "--color", "--output-schema", "--output-last-message", "-o"];

/// How agents are started.
#[derive(Debug)]
pub(super) struct AgentLauncher {
    kind: &'static WorkerKind,
    programs: LazyProgram,
    trust: Arc<Trust>,
}

/// The settings of the worker, as its argument.
#[derive(Debug, Serialize)]
struct WorkerSettings<'a> {
    /// The name of the engine in events and tokens.
    engine: &'a str,
    /// The engine's program and its first arguments.
    command: Vec<String>,
    #[serde(flatten)]
    agent: &'a AgentRequest,
}

/// An engine that a session names.
#[derive(Debug, PartialEq, Eq)]
struct NamedEngine {
    /// The name in events and tokens.
    name: String,
    /// The program and its first arguments.
    command: Vec<String>,
}

impl AgentLauncher {
    pub fn new(kind: &'static WorkerKind, programs: LazyProgram, trust: Arc<Trust>) -> Self {
        Self { kind, programs, trust }
    }

    fn engine(&self, wanted: &CreateSession) -> Result<NamedEngine, Failure> {
        let name = wanted.worker.as_deref().and_then(|name| name.split_once(VARIANT_SEPARATOR));
        let named = name.map_or("", |(_, variant)| variant);
        let refused = |message: String| Err(Failure::new(ErrorCode::BadRequest, message));
        if *self.kind == KIND {
            if !ENGINES.contains(&named) {
                let there = ENGINES.join(", ");
                return refused(format!(
                    "name an engine, as in `agent:codex`; there are: {there}. For another agent that \
                     speaks ACP: `acp:COMMAND`"
                ));
            }
            let program = wanted.interpreter.clone().unwrap_or_else(|| named.to_owned());
            return Ok(NamedEngine { name: named.to_owned(), command: vec![program] });
        }
        super::no_interpreter(wanted, self.kind.name)?;
        let command: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
        let Some(program) = command.first() else {
            return refused("name the agent's command, as in `acp:my-agent --acp`".to_owned());
        };
        let name = engine_of(wanted.worker.as_deref().unwrap_or_default());
        if name.len() <= ACP_KIND.name.len() + 1 {
            return refused(format!("the command {program:?} has no name that a token can have"));
        }
        Ok(NamedEngine { name, command })
    }
}

impl Launcher for AgentLauncher {
    fn info(&self) -> WorkerInfo {
        let mut info = super::built_in_info(self.kind, Ok(PathBuf::new()));
        info.interpreter = None;
        if *self.kind == KIND {
            let path = environment::path();
            let is_there = |engine: &&str| lookup::on_path(engine, path.as_ref()).is_ok();
            let found: Vec<&str> =
                ENGINES.iter().filter(|engine| is_there(engine)).copied().collect();
            if found.is_empty() {
                let engines = ENGINES.join(", ");
                info.missing = Some(format!("none of {engines} is on PATH"));
            } else {
                info.interpreter = Some(found.join(", "));
            }
        }
        info
    }

    fn recipe(&self, wanted: &CreateSession, _workspace: &Path) -> Result<Recipe, Failure> {
        let mut engine = self.engine(wanted)?;
        let request = wanted.agent.clone().unwrap_or_default();
        check(&engine.name, &request)?;
        let env = environment::of_worker(&wanted.env);
        let path = env.get("PATH");
        let program = &engine.command[0];
        let found = lookup::find(Some(program), program, path).map_err(|failure| {
            let mut message = failure.message.replacen("the interpreter", "the agent", 1);
            if let Some(package) = package(&engine.name) {
                message = format!("{message}; install it: npm install -g {package}");
            }
            Failure::new(failure.code, message)
        })?;
        engine.command[0] = found.path.display().to_string();
        let mut needed = needed(&found, &self.trust);
        if lookup::is_script(&found.way.real)
            && let Ok(node) = lookup::find(None, "node", path)
        {
            needed.extend(node.needed(&self.trust));
        }
        let settings = WorkerSettings {
            engine: &engine.name,
            command: engine.command.clone(),
            agent: &request,
        };
        let settings = serde_json::to_string(&settings)
            .map_err(|error| Failure::internal(&format!("cannot encode settings: {error}")))?;
        let mut argv = self.programs.command("agent")?;
        argv.push(settings);
        Ok(Recipe {
            name: wanted.worker.clone().unwrap_or_else(|| self.kind.name.to_owned()),
            argv,
            env,
            needed,
            interpreter: found.path,
            real: found.way.real,
            program: Some(self.programs.root().to_owned()),
        })
    }

    fn named_interpreter(&self, named: &str) -> Result<PathBuf, Failure> {
        Ok(lookup::find(Some(named), named, environment::path().as_ref())?.path)
    }

    fn program(&self) -> Option<&Path> {
        Some(self.programs.root())
    }
}

/// Checks the settings that a client requests.
fn check(engine: &str, request: &AgentRequest) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::new(ErrorCode::BadRequest, message));
    if let Some(token) = &request.resume
        && token.engine() != engine
    {
        let of = token.engine();
        return refused(format!("{token} is a conversation of {of}, and the engine is {engine}"));
    }
    let mut texts = request.arguments.iter().chain(&request.model);
    if texts.any(|text| text.contains('\0')) {
        return refused("an argument or the model's name has a zero byte".to_owned());
    }
    if request.model.as_ref().is_some_and(|model| model.len() > MODEL_BYTES_MAX) {
        return refused(format!("a model's name has at most {MODEL_BYTES_MAX} bytes"));
    }
    let bytes: usize = request.arguments.iter().map(String::len).sum();
    if request.arguments.len() > ARGUMENTS_MAX || bytes > ARGUMENT_BYTES_MAX {
        return refused(format!(
            "an engine takes at most {ARGUMENTS_MAX} arguments with {ARGUMENT_BYTES_MAX} bytes together"
        ));
    }
    let flag_of = |argument: &str| argument.split('=').next().unwrap_or_default().to_owned();
    let of_exec = |argument: &&String| CODEX_EXEC_FLAGS.contains(&&*flag_of(argument));
    if engine == "codex"
        && let Some(argument) = request.arguments.iter().find(of_exec)
    {
        let flag = flag_of(argument);
        return refused(format!(
            "{flag} is a flag of `codex exec`; Windlass runs `codex app-server`, which has no such flag"
        ));
    }
    Ok(())
}

/// What a session may read of an engine's program: the packages that it is installed with. A program that a session
/// could have changed adds nothing.
fn needed(found: &FoundProgram, trust: &Trust) -> Vec<PathBuf> {
    let real = &found.way.real;
    let packages = real.ancestors().find(|path| path.ends_with("node_modules"));
    let Some(packages) = packages else { return found.needed(trust) };
    let mut tree = CodeDirs { directories: found.way.directories.clone(), ..CodeDirs::default() };
    tree.directories.insert(packages.to_owned());
    match trust.check(&tree) {
        Ok(()) => vec![packages.to_owned()],
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_do_not_fit_the_engine_are_refused_by_name() {
        let request = |resume: Option<&str>, arguments: &[&str]| AgentRequest {
            resume: resume.map(|token| token.to_owned().try_into().unwrap()),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            ..AgentRequest::default()
        };
        let long = "x".repeat(ARGUMENT_BYTES_MAX + 1);
        for (engine, request, expected) in [
            ("codex", request(Some("codex:a"), &["-c", "model=\"m\""]), ""),
            ("claude", request(Some("codex:a"), &[]), "is a conversation of codex"),
            ("codex", request(None, &["--skip-git-repo-check"]), "--skip-git-repo-check is a flag"),
            ("codex", request(None, &["--color=never"]), "--color is a flag of `codex exec`"),
            ("claude", request(None, &["-o"]), ""),
            ("codex", request(None, &["-c", "a", "-o", "x"]), "-o is a flag"),
            ("gemini", request(None, &[&long]), "at most 128 arguments"),
        ] {
            let message = check(engine, &request).err().map(|failure| failure.message);
            let message = message.unwrap_or_default();
            assert!(
                message.contains(expected) && message.is_empty() == expected.is_empty(),
                "{message}"
            );
        }
    }
}
