//! What each agent is put through: prompts in processes of their own, and what the model behind it
//! must have seen after each; at the end, what is left running.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::agent::{self, Agent, Sandbox};
use super::install::Installed;
use super::leftovers;
use super::place::Place;
use super::png;
use super::row::Row;
use super::stub::{Call, Heard, Script, Seen, Stub};
use super::{Client, Report};

/// How long one prompt may take. The first one starts a node, on a machine that may be busy.
const PROMPT_PATIENCE: Duration = Duration::from_secs(90);

/// The size of the picture that [`PICTURE`] shows.
const PICTURE_SIZE: (u32, u32) = (40, 30);

/// Shows a picture without any library.
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

/// 4 by 3 inches; what is cut off or added around a figure is less than an inch.
const PLOT: &str = "
import matplotlib.pyplot as plt
plt.figure(figsize=(4, 3), dpi=100)
plt.plot([1, 4, 9])
plt.show()
";
const PLOT_WIDTHS: std::ops::Range<u32> = 300..500;
const PLOT_HEIGHTS: std::ops::Range<u32> = 200..400;

/// What a result must hold.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Text(&'static str),
    Picture,
    Plot,
}

/// Writes a file into the project, if it is let.
const WRITE: &str = "
try:
    open('made', 'w').close()
    print('written')
except OSError as error:
    print('refused:', error)
";
const WRITTEN: &str = "made";

/// One prompt: the code that the model asks to run, and what it must see of each.
#[derive(Debug)]
struct Scenario {
    name: &'static str,
    sandbox: Sandbox,
    runs: Vec<(&'static str, Expect)>,
}

impl Scenario {
    fn new(name: &'static str, runs: Vec<(&'static str, Expect)>) -> Self {
        Self { name, sandbox: Sandbox::AsUsual, runs }
    }

    /// Whether the project holds [`WRITTEN`] afterwards.
    fn writes(&self) -> bool {
        self.sandbox == Sandbox::ProjectWritable
    }
}

fn scenarios(agent: Agent) -> Result<Vec<Scenario>> {
    let mut pictures = vec![(PICTURE, Expect::Picture)];
    if agent::can_plot()? {
        pictures.push((PLOT, Expect::Plot));
    }
    let mut scenarios = vec![
        Scenario::new(
            "a first prompt sets a variable",
            vec![("x = 41; print('set', x)", Expect::Text("set 41"))],
        ),
        Scenario::new(
            "a second prompt, in a new process, sees it",
            vec![("x + 1", Expect::Text("42"))],
        ),
        Scenario::new("a plot arrives as an image", pictures),
        Scenario::new(
            "an exception is told, and the agent goes on",
            vec![
                ("1/0", Expect::Text("ZeroDivisionError")),
                ("print('still', x)", Expect::Text("still 41")),
            ],
        ),
    ];
    // Codex tells with each call what its own sandbox would allow.
    if agent == Agent::Codex {
        scenarios.push(Scenario {
            name: "the agent's read-only sandbox holds in the session",
            sandbox: Sandbox::ReadOnly,
            runs: vec![(WRITE, Expect::Text("refused:"))],
        });
        scenarios.push(Scenario {
            name: "one in which it may write to its project does too",
            sandbox: Sandbox::ProjectWritable,
            runs: vec![(WRITE, Expect::Text("written"))],
        });
    }
    Ok(scenarios)
}

/// Plays all scenarios with one agent, in a place of its own.
pub async fn play(
    client: Client,
    agent: Agent,
    installed: &Installed,
    program: &std::path::Path,
    report: &mut Report,
) -> Result<()> {
    let place = Place::prepare(program, &installed.node_bin())?;
    let stub = Stub::start().await.context("the stub cannot listen")?;
    agent.configure(&place).await?;
    let mut row = |check: &str, began: Instant, outcome: Result<(), String>| {
        report.add(Row {
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
        let outcome = prompt(agent, &place, installed, &stub, &scenario).await;
        row(scenario.name, began, outcome);
    }
    let began = Instant::now();
    let left = leftovers::check(&place, agent.sessions()).await;
    row("nothing is left but the node and its sessions", began, left);
    Ok(())
}

/// Gives the agent one prompt; what is wrong with what came of it.
async fn prompt(
    agent: Agent,
    place: &Place,
    installed: &Installed,
    stub: &Stub,
    scenario: &Scenario,
) -> Result<(), String> {
    let words = format!("Windlass test: {}.", scenario.name);
    let call = |code: &str| Call { tool: "run", arguments: json!({ "code": code }) };
    let last_word = format!("That was: {}.", scenario.name);
    stub.play(Script {
        prompt: words.clone(),
        calls: scenario.runs.iter().map(|(code, _)| call(code)).collect(),
        last_word: last_word.clone(),
    });
    let command = agent.prompt(place, installed, stub, scenario.sandbox, &words);
    let ended = place.run(command, PROMPT_PATIENCE).await;
    let heard = stub.heard();
    if let Some(fault) = &heard.fault {
        return Err(fault.clone());
    }
    let ended = ended.map_err(|error| format!("{error:#}"))?;
    judge(scenario, &heard).map_err(|what| format!("{what}; {}", ended.last_words()))?;
    let written = place.project().join(WRITTEN).exists();
    if written != scenario.writes() {
        return Err(format!("that {WRITTEN} is in the project afterwards is {written}"));
    }
    match agent.last_word(&ended) {
        Some(word) if ended.is_well() && word == last_word => Ok(()),
        word => Err(format!("its last word was {word:?}; {}", ended.last_words())),
    }
}

/// What the model saw, against what it should have seen.
fn judge(scenario: &Scenario, heard: &Heard) -> Result<(), String> {
    if heard.results.len() != scenario.runs.len() {
        let (seen, runs, paths) = (heard.results.len(), scenario.runs.len(), heard.paths.len());
        return Err(format!("the model saw {seen} of {runs} results, in {paths} requests"));
    }
    if heard.searched {
        return Err("the model was told the tool's name only, and had to search for it".to_owned());
    }
    let mut pairs = scenario.runs.iter().zip(&heard.results);
    pairs.try_for_each(|((_, expect), seen)| meets(*expect, seen))
}

fn meets(expect: Expect, seen: &Seen) -> Result<(), String> {
    let sizes: Vec<_> = seen.images.iter().map(|bytes| png::size(bytes)).collect();
    let good = match expect {
        Expect::Text(words) => seen.text.contains(words),
        Expect::Picture => sizes == [Some(PICTURE_SIZE)],
        Expect::Plot => matches!(sizes[..], [Some((width, height))]
            if PLOT_WIDTHS.contains(&width) && PLOT_HEIGHTS.contains(&height)),
    };
    let text = &seen.text;
    good.then_some(()).ok_or_else(|| format!("not {expect:?}: saw {text:?} and images {sizes:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str, images: &[&[u8]]) -> Seen {
        Seen { text: text.to_owned(), images: images.iter().map(|one| one.to_vec()).collect() }
    }

    #[test]
    fn a_result_must_hold_what_was_asked_for() {
        assert!(meets(Expect::Text("set 41"), &seen("Output:\nset 41\n", &[])).is_ok());
        assert!(meets(Expect::Text("set 41"), &seen("set 4", &[])).is_err());
        assert!(meets(Expect::Picture, &seen("an image of 40 by 30", &[])).is_err());
        assert!(meets(Expect::Picture, &seen("", &[b"not a picture"])).is_err());
        assert!(meets(Expect::Picture, &seen("", &[&png::of_size(40, 30)])).is_ok());
        assert!(meets(Expect::Plot, &seen("", &[&png::of_size(40, 30)])).is_err());
        assert!(meets(Expect::Plot, &seen("", &[&png::of_size(401, 299)])).is_ok());
    }

    #[test]
    fn a_result_that_never_came_is_missed() {
        let scenario = Scenario::new("a", vec![("1", Expect::Text("1")); 2]);
        let heard = |count| Heard { results: vec![seen("1", &[]); count], ..Heard::default() };
        assert!(judge(&scenario, &heard(2)).is_ok());
        assert!(judge(&scenario, &heard(1)).is_err());
        assert!(judge(&scenario, &Heard { searched: true, ..heard(2) }).is_err());
    }
}
