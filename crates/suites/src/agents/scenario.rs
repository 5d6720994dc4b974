//! The scenarios of an agent. Each runs the agent once with one prompt, and checks the tool results that the
//! stub of its model received. At the end the suite checks which processes are left.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::agent::{self, Agent, AgentSandbox};
use super::client_home::ClientHome;
use super::install::Installed;
use super::leftovers;
use super::png;
use super::row::CheckRow;
use super::stub::{Script, ScriptedCall, Stub, StubToolResult, StubTranscript};
use super::{AgentsReport, ClientUnderTest};

/// How long one prompt may take. The first prompt also starts a node, on a machine that may be busy.
const PROMPT_WAIT: Duration = Duration::from_secs(90);

/// The size of the image that [`PICTURE`] displays.
const PICTURE_SIZE: (u32, u32) = (40, 30);

/// Displays an image without any library.
const PICTURE: &str = r"
import struct, zlib

def chunk(kind, body):
    checked = kind + body
    return struct.pack('>I', len(body)) + checked + struct.pack('>I', zlib.crc32(checked))

class Picture:
    def _repr_png_(self):
        rows = (b'\0' + b'\xff\0\0' * 40) * 30
        head = struct.pack('>IIBBBBB', 40, 30, 8, 2, 0, 0, 0)
        chunks = (b'IHDR', head), (b'IDAT', zlib.compress(rows)), (b'IEND', b'')
        return b'\x89PNG\r\n\x1a\n' + b''.join(chunk(*one) for one in chunks)

Picture()
";

/// A plot of 4 by 3 inches at 100 dpi. Cropping and margins change each side by less than an inch.
const PLOT: &str = "
import matplotlib.pyplot as plt
plt.figure(figsize=(4, 3), dpi=100)
plt.plot([1, 4, 9])
plt.show()
";
const PLOT_WIDTHS: std::ops::Range<u32> = 300..500;
const PLOT_HEIGHTS: std::ops::Range<u32> = 200..400;

/// What a tool result must contain.
#[derive(Debug, Clone, Copy)]
enum ExpectedResult {
    Text(&'static str),
    Picture,
    Plot,
}

/// Tries to write a file into the project.
const WRITE: &str = "
try:
    open('made', 'w').close()
    print('written')
except OSError as error:
    print('refused:', error)
";
const WRITTEN: &str = "made";

/// One prompt: the code of each `run` call of the stub, and the expected result.
#[derive(Debug)]
struct Scenario {
    name: &'static str,
    sandbox: AgentSandbox,
    runs: Vec<(&'static str, ExpectedResult)>,
}

impl Scenario {
    fn new(name: &'static str, runs: Vec<(&'static str, ExpectedResult)>) -> Self {
        Self { name, sandbox: AgentSandbox::Default, runs }
    }

    /// Whether the project has the file [`WRITTEN`] afterwards.
    fn writes(&self) -> bool {
        self.sandbox == AgentSandbox::ProjectWritable
    }
}

fn scenarios(agent: Agent) -> Result<Vec<Scenario>> {
    let mut pictures = vec![(PICTURE, ExpectedResult::Picture)];
    if agent::can_plot()? {
        pictures.push((PLOT, ExpectedResult::Plot));
    }
    let mut scenarios = vec![
        Scenario::new(
            "a first prompt sets a variable",
            vec![("x = 41; print('set', x)", ExpectedResult::Text("set 41"))],
        ),
        Scenario::new(
            "a second prompt, in a new process, sees it",
            vec![("x + 1", ExpectedResult::Text("42"))],
        ),
        Scenario::new("a plot arrives as an image", pictures),
        Scenario::new(
            "an exception is reported, and the session goes on",
            vec![
                ("1/0", ExpectedResult::Text("ZeroDivisionError")),
                ("print('still', x)", ExpectedResult::Text("still 41")),
            ],
        ),
    ];
    // Codex sends the rules of its own sandbox with each call.
    if agent == Agent::Codex {
        scenarios.push(Scenario {
            name: "the agent's read-only sandbox holds in the session",
            sandbox: AgentSandbox::ReadOnly,
            runs: vec![(WRITE, ExpectedResult::Text("refused:"))],
        });
        scenarios.push(Scenario {
            name: "a session may write where the agent's sandbox allows it",
            sandbox: AgentSandbox::ProjectWritable,
            runs: vec![(WRITE, ExpectedResult::Text("written"))],
        });
    }
    Ok(scenarios)
}

/// Runs all scenarios of one agent in a new home.
pub async fn play(
    client: ClientUnderTest,
    agent: Agent,
    installed: &Installed,
    program: &std::path::Path,
    report: &mut AgentsReport,
) -> Result<()> {
    let home = ClientHome::prepare(program, &installed.node_bin())?;
    let stub = Stub::start().await.context("the stub of the model cannot listen on 127.0.0.1")?;
    agent.configure(&home).await?;
    let mut row = |check: &str, began: Instant, outcome: Result<(), String>| {
        report.add(CheckRow {
            client,
            version: Installed::version(client),
            check: check.to_owned(),
            passed: outcome.is_ok(),
            words: outcome.err().unwrap_or_default(),
            seconds: began.elapsed().as_secs_f64(),
        });
    };
    for scenario in scenarios(agent)? {
        let began = Instant::now();
        let outcome = prompt(agent, &home, installed, &stub, &scenario).await;
        row(scenario.name, began, outcome);
    }
    let began = Instant::now();
    let left = leftovers::check(&home, agent.sessions()).await;
    row("only the node and its sessions are left", began, left);
    Ok(())
}

/// Gives the agent one prompt and checks the results. The error says what is wrong.
async fn prompt(
    agent: Agent,
    home: &ClientHome,
    installed: &Installed,
    stub: &Stub,
    scenario: &Scenario,
) -> Result<(), String> {
    let words = format!("Windlass test: {}.", scenario.name);
    let call = |code: &str| ScriptedCall { tool: "run", arguments: json!({ "code": code }) };
    let final_message = format!("That was: {}.", scenario.name);
    stub.play(Script {
        prompt: words.clone(),
        calls: scenario.runs.iter().map(|(code, _)| call(code)).collect(),
        final_message: final_message.clone(),
    });
    let command = agent.prompt(home, installed, stub, scenario.sandbox, &words);
    let ended = home.run(command, PROMPT_WAIT).await;
    let transcript = stub.transcript();
    if let Some(fault) = &transcript.fault {
        return Err(fault.clone());
    }
    let ended = ended.map_err(|error| format!("{error:#}"))?;
    judge(scenario, &transcript).map_err(|what| format!("{what}; {}", ended.summary()))?;
    let written = home.project().join(WRITTEN).exists();
    if written != scenario.writes() {
        return Err(format!(
            "the file {WRITTEN} in the project: expected {}, found {written}",
            scenario.writes()
        ));
    }
    match agent.final_message(&ended) {
        Some(word) if ended.is_success() && word == final_message => Ok(()),
        word => Err(format!("the agent's final message is {word:?}; {}", ended.summary())),
    }
}

/// Compares the tool results that the stub received with the expected ones.
fn judge(scenario: &Scenario, transcript: &StubTranscript) -> Result<(), String> {
    if transcript.results.len() != scenario.runs.len() {
        let (seen, runs, paths) =
            (transcript.results.len(), scenario.runs.len(), transcript.paths.len());
        return Err(format!("the model received {seen} of {runs} results, in {paths} requests"));
    }
    if transcript.searched {
        return Err(
            "the agent gave the model only the name of the tool, so the model had to search for it"
                .to_owned(),
        );
    }
    let mut pairs = scenario.runs.iter().zip(&transcript.results);
    pairs.try_for_each(|((_, expect), seen)| meets(*expect, seen))
}

fn meets(expect: ExpectedResult, seen: &StubToolResult) -> Result<(), String> {
    let sizes: Vec<_> = seen.images.iter().map(|bytes| png::size(bytes)).collect();
    let good = match expect {
        ExpectedResult::Text(words) => seen.text.contains(words),
        ExpectedResult::Picture => sizes == [Some(PICTURE_SIZE)],
        ExpectedResult::Plot => matches!(sizes[..], [Some((width, height))]
            if PLOT_WIDTHS.contains(&width) && PLOT_HEIGHTS.contains(&height)),
    };
    let text = &seen.text;
    good.then_some(()).ok_or_else(|| {
        format!("expected {expect:?}, got the text {text:?} and images of sizes {sizes:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str, images: &[&[u8]]) -> StubToolResult {
        StubToolResult {
            text: text.to_owned(),
            images: images.iter().map(|one| one.to_vec()).collect(),
        }
    }

    #[test]
    fn a_result_must_hold_what_was_asked_for() {
        assert!(meets(ExpectedResult::Text("set 41"), &seen("Output:\nset 41\n", &[])).is_ok());
        assert!(meets(ExpectedResult::Text("set 41"), &seen("set 4", &[])).is_err());
        assert!(meets(ExpectedResult::Picture, &seen("an image of 40 by 30", &[])).is_err());
        assert!(meets(ExpectedResult::Picture, &seen("", &[b"not a picture"])).is_err());
        assert!(meets(ExpectedResult::Picture, &seen("", &[&png::of_size(40, 30)])).is_ok());
        assert!(meets(ExpectedResult::Plot, &seen("", &[&png::of_size(40, 30)])).is_err());
        assert!(meets(ExpectedResult::Plot, &seen("", &[&png::of_size(401, 299)])).is_ok());
    }

    #[test]
    fn a_result_that_never_came_is_missed() {
        let scenario = Scenario::new("a", vec![("1", ExpectedResult::Text("1")); 2]);
        let transcript = |count| StubTranscript {
            results: vec![seen("1", &[]); count],
            ..StubTranscript::default()
        };
        assert!(judge(&scenario, &transcript(2)).is_ok());
        assert!(judge(&scenario, &transcript(1)).is_err());
        assert!(judge(&scenario, &StubTranscript { searched: true, ..transcript(2) }).is_err());
    }
}
