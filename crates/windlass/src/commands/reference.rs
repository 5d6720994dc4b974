//! `windlass reference`: prints the pages of `docs/reference`, each from one table of the code. Hidden from the
//! help: `cargo xtask reference` writes the pages with it.

use std::fmt::Write as _;
use std::process::ExitCode;

use windlass_client::CLIENT_CODES;
use windlass_node::failure::{http_status, remedy};
use windlass_node::{METRICS, WORKER_KEYS};
use windlass_protocol::ErrorCode;
use windlass_protocol::variables::{VARIABLES, VariableGroup};

use crate::config_file::TOP_KEYS;
use crate::exit;
use crate::fleet_table::FLEET_KEYS;
use crate::settings::SETTINGS;
use crate::telemetry_table::TELEMETRY_KEYS;
use crate::tenant_tables::{TENANT_KEYS, meaning_of_name};
use crate::terminal::Terminal;

/// Print a page of the reference, or the names of all
#[derive(Debug, clap::Args)]
pub struct Args {
    page: Option<String>,
}

/// Writes the text of a page.
type PageWriter = fn() -> String;

/// The pages: name, and function that makes the text.
const PAGES: [(&str, PageWriter); 5] = [
    ("configuration", configuration),
    ("environment", environment),
    ("error-codes", error_codes),
    ("exit-codes", exit_codes),
    ("metrics", metrics),
];

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(page) = args.page else {
        for (name, _) in PAGES {
            terminal.say(name)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let found = PAGES.iter().find(|(name, _)| *name == page);
    let (_, text) = found.ok_or_else(|| anyhow::anyhow!("there is no page {page:?}"))?;
    let mark = "<!-- Written by `cargo xtask reference`; change the table in the code. -->";
    terminal.out(format!("{mark}\n\n{}", text()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A table in Markdown.
fn markdown<const COLUMNS: usize>(
    headings: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&headings.map(str::to_owned));
    text += &format!("|{}\n", "---|".repeat(COLUMNS));
    for row in rows {
        text += &line(&row.map(|cell| cell.replace('|', "\\|")));
    }
    text
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn configuration() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         This page lists every key of `config.toml`, for users and operators. The file is in `~/.config/windlass`, or in\n\
         `windlass` below `XDG_CONFIG_HOME`; `WINDLASS_CONFIG` names another file. The node reads it when it starts.\n\n\
         - `windlass config check` says what is wrong in the file, with the line. `windlass config show` shows the value of each\n  \
         setting and where it comes from.\n\
         - A file with an error sets nothing but `[fleet]` and `[tenants]`: the node starts with the defaults, and its log and\n  \
         `windlass workers` show the error. An error in `[fleet]` keeps the node from starting.\n\
         - The file belongs to you and is never in a workspace. No session can write it, unless its policy makes your home\n  \
         writable.\n\n",
    );
    let top =
        TOP_KEYS.map(|(key, default, meaning)| [code(key), code(default), meaning.to_owned()]);
    text += &markdown(["key", "default", "meaning"], top);
    text += "\n## `[node]`\n\nAn option of `windlass node` wins over the variable, the variable over the file, and the file over the \
             default.\n`windlass up` passes `--listen`, `--listen-anywhere`, `--tls-certificate`, `--tls-key`, `--session-idle` and \
             `--deadline` on to the node.\n\n";
    let settings = SETTINGS.iter().map(|setting| {
        let option = setting.option_name().map(|name| code(&name)).unwrap_or_default();
        let variable = setting.variable.map(code).unwrap_or_default();
        [
            code(setting.key),
            setting.form.describe(),
            code(setting.default),
            option,
            variable,
            setting.meaning.to_owned(),
        ]
    });
    text += &markdown(["key", "value", "default", "option", "variable", "meaning"], settings);
    text += "\nFor example:\n\n```toml\n[node]\nsession_idle = \"2h\"\nretain_age = \"3d\"\nretain_bytes = \"2G\"\n```\n";
    text += "\n## `[fleet]`\n\nThe table makes the node part of a fleet ([fleet.md](../fleet.md)); `windlass fleet init` and `windlass fleet join` write\n\
             it. If it has an error, the node does not start, also if another part of the file has one.\n\n";
    let fleet = FLEET_KEYS
        .iter()
        .map(|one| [code(one.key), one.value.into(), code(one.default), one.meaning.into()]);
    text += &markdown(["key", "value", "default", "meaning"], fleet);
    text += &telemetry_section();
    text += &format!(
        "\n## `[tenants.NAME]`\n\nA table limits what the sessions of a tenant hold together on this node\n\
         ([security.md](../security.md#quotas)). {}. With an error in\n\
         these tables the node starts, and tenants create no sessions.\n\n",
        meaning_of_name()
    );
    let tenants =
        TENANT_KEYS.iter().map(|one| [code(one.key), one.value.into(), one.meaning.into()]);
    text += &markdown(["key", "value", "meaning"], tenants);
    text += "\n## `[workers.NAME]`\n\nA table adds a kind of worker, or changes a built-in one. \
             [workers.md](../workers.md#the-configuration-file) has examples.\n\n";
    let workers =
        WORKER_KEYS.map(|one| [code(one.key), one.kinds.to_owned(), one.meaning.to_owned()]);
    text += &markdown(["key", "kinds", "meaning"], workers);
    text += "\n## Other files\n\n| file | page |\n|---|---|\n\
             | `environments.json`: interpreters with pooled workers | [environments.md](../environments.md) |\n\
             | `mcp.json`: MCP servers as tools for code | [servers.md](../servers.md) |\n";
    text
}

fn telemetry_section() -> String {
    let mut text = String::from(
        "\n## `[telemetry]`\n\nThe table sends spans to a collector of OpenTelemetry ([telemetry.md](../telemetry.md)). A variable wins over the\n\
         file. With an error in a variable the node starts without telemetry, and its log says why.\n\n",
    );
    let rows = TELEMETRY_KEYS.map(|one| {
        [code(one.key), one.value.into(), code(one.default), code(one.variable), one.meaning.into()]
    });
    text += &markdown(["key", "value", "default", "variable", "meaning"], rows);
    text
}

fn environment() -> String {
    let mut text = String::from(
        "# Environment variables\n\n\
         This page lists the variables that Windlass reads, for users, operators and authors of workers. An empty variable\n\
         counts as unset.\n",
    );
    let groups = [
        (VariableGroup::Place, "Where the node is"),
        (VariableGroup::Node, "Settings of a node"),
        (VariableGroup::Session, "In the environment of a session"),
        (VariableGroup::Worker, "Set by Windlass for workers"),
        (VariableGroup::Tests, "For tests and measurements"),
    ];
    for (group, heading) in groups {
        let rows = VARIABLES.iter().filter(|variable| variable.group == group).map(|variable| {
            [&code(variable.name), variable.read_by, variable.default, variable.meaning]
                .map(Into::into)
        });
        let _ = write!(text, "\n## {heading}\n\n");
        if group == VariableGroup::Node {
            text += "Set them before the node starts; a running node does not change. The keys are those of\n\
                     [config.toml](configuration.md).\n\n";
        }
        text += &markdown(["variable", "read by", "default", "meaning"], rows);
    }
    text += "\nWindlass also reads `NO_COLOR` (no colours on the terminal), `XDG_RUNTIME_DIR`, `XDG_STATE_HOME`, `XDG_CONFIG_HOME`,\n\
             `HOME` and `PATH`. Variables of the test suites (`WINDLASS_TEST_...`) are in [CONTRIBUTING.md](../../CONTRIBUTING.md).\n";
    text
}

fn error_codes() -> String {
    let mut text = String::from(
        "# Error codes\n\n\
         This page lists the codes of failures, for programs that use a node. An error has a stable `code`, a `message` that\n\
         may change, a `remedy`, and `retryable`. The same codes are used over HTTP and MCP, in the SDKs, on the command line and\n\
         in the journal. The HTTP status is that of a reply whose request failed; a turn that fails has its code in `error`.\n\n\
         A request that is `retryable` may succeed later without a change.\n\n",
    );
    let rows = ErrorCode::ALL.iter().map(|one| {
        let retryable = if one.retryable() { "yes" } else { "" };
        let (meaning, remedy) = (one.meaning(), remedy(*one));
        [
            code(one.as_str()),
            http_status(*one).to_string(),
            retryable.into(),
            meaning.into(),
            remedy.into(),
        ]
    });
    text += &markdown(["code", "HTTP status", "retryable", "meaning", "remedy"], rows);
    text += "\n## Codes of the command line and SDK clients\n\n\
             These failures are found by the command line or an SDK, not by a node, so they have no HTTP status.\n\n";
    let rows = CLIENT_CODES
        .map(|(name, meaning, remedy)| [code(name), meaning.to_owned(), remedy.to_owned()]);
    text += &markdown(["code", "meaning", "remedy"], rows);
    text
}

fn exit_codes() -> String {
    let mut text = String::from(
        "# Exit codes\n\n\
         This page lists the exit codes of `windlass`, for scripts. `windlass run` exits with the exit status of the code, or\n\
         with 128 and the signal's number if a signal ended the interpreter; the table says how it ends otherwise.\n\n",
    );
    let rows = exit::TABLE.map(|(number, meaning)| [number.to_string(), meaning.to_owned()]);
    text += &markdown(["code", "meaning"], rows);
    text
}

fn metrics() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         This page lists the metrics of a node, for operators. `GET /v1/metrics` has them in the text format of Prometheus. They\n\
         count from the start of the node. Histograms of `_seconds` have the series `_bucket`, `_sum` and `_count`.\n\n",
    );
    let rows = METRICS.map(|metric| {
        let labels: Vec<String> = metric.labels.split_whitespace().map(code).collect();
        [code(metric.name), metric.kind.name().into(), labels.join(", "), metric.help.into()]
    });
    text += &markdown(["metric", "type", "labels", "meaning"], rows);
    text += "\nLabels:\n\n\
             - `outcome` is how a turn (`ok`, `error`, `interrupted`, `timed_out`, `lost`) or a tool call (`ok`, `failed`, `timed_out`,\n  \
             `cancelled`, `host_gone`) ended.\n\
             - `worker` is the kind of worker, `configured` for the kinds of the configuration file together; `start` is how it was\n  \
             started (`exec`, `zygote`, `pool`, `fork`).\n\
             - `state` is a state of a session, `result` is `hit` or `miss`, or `exported` or `dropped`, `decision` is `allowed` or `refused`, `reason` is `quota`\n  \
             or `disk_full`, `kind` is a kind of data on the disk, and `bound` a limit of what all clients hold together.\n\n\
             The metrics of what is in a start (`prewarm`, `runtime_load`, `package_load`, `packages`) exist only with\n\
             [`start_figures = true`](configuration.md). [metrics.md](../metrics.md) says how to scrape a node.\n";
    text
}
