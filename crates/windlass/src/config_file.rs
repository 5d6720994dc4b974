//! The user's `config.toml`: where it is, what is wrong in it, and what it sets. Only the user writes it; it is
//! never in a workspace.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Table, TableLike, Value};
use windlass_node::{TenantQuotas, WORKER_KEYS, WorkersConfig};
use windlass_protocol::kinds;

use crate::fleet_table::{FLEET_KEYS, FleetTable, FleetTableProblem};
use crate::settings::{NodeSetting, SETTINGS, TLS_BOTH, ValueForm};
use crate::telemetry_table::{self, TELEMETRY_KEYS, TelemetryTable, TelemetryTableProblem};
use crate::tenant_tables::{self, TENANT_KEYS, TenantTableProblem};

/// The variable with the path of the file.
pub const VARIABLE: &str = "WINDLASS_CONFIG";

/// The keys at the top of the file, with their defaults and meanings.
pub const TOP_KEYS: [(&str, &str, &str); 6] = [
    (
        "start_figures",
        "false",
        "record what the start of each worker cost ([workers.md](../workers.md#what-a-start-cost))",
    ),
    ("fleet", "", "what makes the node part of a fleet, below"),
    ("node", "", "the settings of the node, below"),
    ("telemetry", "", "where spans for OpenTelemetry go, below"),
    ("tenants", "", "quotas of tenants, below: one table `[tenants.NAME]` for each"),
    ("workers", "", "kinds of worker, below: one table `[workers.NAME]` for each"),
];

/// A problem in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The line, from 1.
    pub line: usize,
    pub what: String,
    pub remedy: String,
}

impl std::fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}; {}", self.line, self.what, self.remedy)
    }
}

/// What a file sets. A file with a problem sets nothing, and `workers.error` says why.
#[derive(Debug, Default)]
pub struct UserConfigFile {
    pub workers: WorkersConfig,
    /// Values of `[node]` as text, by key.
    pub node: BTreeMap<String, String>,
    /// Why the settings of TLS in the file do not count: it has a problem. A TCP door must not be open without them.
    pub lost_tls: Option<String>,
    /// Why the user ids of sessions in the file do not count: it has a problem. Sessions must not share a user id where
    /// each was meant to have its own.
    pub lost_uids: Option<String>,
    pub fleet: FleetSetting,
    /// The tables `[tenants.NAME]`. They count also if another part of the file has a problem.
    pub tenants: TenantQuotas,
    pub telemetry: TelemetryTable,
}

/// The table `[fleet]`. It counts also if another part of the file has a problem.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum FleetSetting {
    #[default]
    Absent,
    Set(Box<FleetTable>),
    /// Why the table cannot be used. The node must not start as one without a fleet.
    Invalid(String),
}

/// The directory of the user's configuration files.
pub fn directory() -> PathBuf {
    let home = || std::env::home_dir().unwrap_or_default().join(".config");
    path_in("XDG_CONFIG_HOME").unwrap_or_else(home).join("windlass")
}

pub fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The path of the file.
pub fn path() -> PathBuf {
    path_in(VARIABLE).unwrap_or_else(|| directory().join("config.toml"))
}

/// The text of the file; `None` if the usual file does not exist.
pub fn text() -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(path()) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound && path_in(VARIABLE).is_none() => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads the user's file. An invalid file does not stop the node: `windlass workers` and the log report the
/// error, and the defaults apply.
pub fn read() -> UserConfigFile {
    let read = text().map(Option::unwrap_or_default).map_err(|error| error.to_string());
    let has_tls = matches!(&read, Ok(text) if mentions_tls(text));
    let has_uids = matches!(&read, Ok(text) if text.contains(UIDS_KEY));
    let fleet = read.as_deref().map(fleet_of).unwrap_or_default().if_private();
    let tenants = match &read {
        Ok(text) => tenants_of(text),
        Err(why) => TenantQuotas { error: Some(why.clone()), ..TenantQuotas::default() },
    };
    let parsed = read.and_then(|text| parse(&text));
    let mut file = parsed.unwrap_or_else(|why| {
        let error = format!("cannot use {}: {why}", path().display());
        let lost_tls = has_tls.then(|| error.clone());
        let lost_uids = has_uids.then(|| error.clone());
        let workers = WorkersConfig { error: Some(error), ..WorkersConfig::default() };
        UserConfigFile { workers, lost_tls, lost_uids, ..UserConfigFile::default() }
    });
    file.fleet = fleet;
    file.tenants = tenants;
    file
}

/// The tables `[tenants.NAME]` of the text. If they cannot be read, tenants create no sessions.
fn tenants_of(text: &str) -> TenantQuotas {
    let invalid = |why: String| TenantQuotas { error: Some(why), ..TenantQuotas::default() };
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return invalid(format!("the file is not TOML: {}", error.message())),
    };
    let Some(item) = document.get("tenants") else { return TenantQuotas::default() };
    let mut problems = Vec::new();
    let quotas = Lines(text).check_tenants(document.as_table(), item, &mut problems);
    match quotas {
        Some(quotas) if problems.is_empty() => quotas,
        _ => {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            invalid(shown.join("; "))
        }
    }
}

/// The table `[fleet]` of the text.
fn fleet_of(text: &str) -> FleetSetting {
    let document = match Document::parse(text) {
        Ok(document) => document,
        // Nobody knows what the file sets. If it has the table, the node belongs to a fleet.
        Err(_) if text.lines().any(|line| line.trim_start().starts_with("[fleet")) => {
            return FleetSetting::Invalid("the file is not TOML".to_owned());
        }
        Err(_) => return FleetSetting::Absent,
    };
    let Some(item) = document.get("fleet") else { return FleetSetting::Absent };
    let mut problems = Vec::new();
    let table = Lines(text).check_fleet(document.as_table(), item, &mut problems);
    match table {
        Some(table) if problems.is_empty() => FleetSetting::Set(Box::new(table)),
        _ => {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            FleetSetting::Invalid(shown.join("; "))
        }
    }
}

impl FleetSetting {
    /// Refuses a table with a password in a file that others can read.
    fn if_private(self) -> Self {
        let has_password = matches!(&self, Self::Set(table) if table.has_password());
        if has_password && others_can_read() {
            let path = path();
            return Self::Invalid(format!(
                "the file has a password and others can read it; run: chmod 600 {}",
                path.display()
            ));
        }
        self
    }
}

/// Whether others can read the file. A file whose mode is unknown counts as one that they can read.
pub fn others_can_read() -> bool {
    std::fs::metadata(path()).map_or(true, |about| about.mode() & 0o077 != 0)
}

/// Whether a file, which may not be TOML, is meant to encrypt the TCP door.
fn mentions_tls(text: &str) -> bool {
    TLS_KEYS.iter().any(|key| text.contains(key))
}

/// The keys of `[node]` that encrypt the TCP door together.
const TLS_KEYS: [&str; 2] = ["tls_certificate", "tls_key"];

/// The key of `[node]` that gives each session a user id of its own.
const UIDS_KEY: &str = "session_uids";

fn parse(text: &str) -> Result<UserConfigFile, String> {
    let problems = check(text);
    if !problems.is_empty() {
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(shown.join("\n"));
    }
    let workers = WorkersConfig::parse(text).map_err(|error| error.to_string())?;
    let (node, telemetry) = (node_values(text), telemetry_table::of(text));
    Ok(UserConfigFile { workers, node, telemetry, ..UserConfigFile::default() })
}

/// The values of `[node]`. The file has no problem.
fn node_values(text: &str) -> BTreeMap<String, String> {
    let Ok(document) = Document::parse(text) else { return BTreeMap::new() };
    let Some(table) = document.get("node").and_then(Item::as_table_like) else {
        return BTreeMap::new();
    };
    let values = table.iter().filter_map(|(key, item)| Some((key.to_owned(), text_of(item)?)));
    values.collect()
}

/// A value as an option of the command line would have it.
fn text_of(item: &Item) -> Option<String> {
    match item.as_value()? {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Boolean(switch) => Some(switch.value().to_string()),
        _ => None,
    }
}

/// Everything that is wrong in the file. Further problems of `[workers.NAME]` show up when these are corrected.
pub fn check(text: &str) -> Vec<ConfigProblem> {
    let lines = Lines(text);
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let what = format!("the file is not TOML: {}", one_line(error.message()));
            let line = lines.at(error.span().map(|span| span.start));
            return vec![ConfigProblem { line, what, remedy: "correct the line".to_owned() }];
        }
    };
    let mut problems = Vec::new();
    let top = document.as_table();
    lines.unknown_keys(top, "the file", &TOP_KEYS.map(|(key, ..)| key), &mut problems);
    if let Some(item) = top.get("node") {
        lines.check_node(top, item, &mut problems);
    }
    if let Some(item) = top.get("fleet") {
        lines.check_fleet(top, item, &mut problems);
    }
    if let Some(item) = top.get("telemetry") {
        lines.check_telemetry(top, item, &mut problems);
    }
    if let Some(item) = top.get("tenants") {
        lines.check_tenants(top, item, &mut problems);
    }
    if let Some(workers) = top.get("workers").and_then(Item::as_table_like) {
        for (name, item) in workers.iter() {
            if let Some(table) = item.as_table_like() {
                let keys = WORKER_KEYS.map(|one| one.key);
                lines.unknown_keys(table, &format!("[workers.{name}]"), &keys, &mut problems);
            }
        }
    }
    if problems.is_empty()
        && let Err(error) = WorkersConfig::parse(text)
    {
        problems.push(lines.of_workers(top, &error.to_string()));
    }
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// The text of the file, for the line of a position.
struct Lines<'a>(&'a str);

impl Lines<'_> {
    /// The line of a byte; the first line if it is unknown.
    fn at(&self, byte: Option<usize>) -> usize {
        let before = self.0.get(..byte.unwrap_or_default()).unwrap_or(self.0);
        1 + before.matches('\n').count()
    }

    fn of_key(&self, table: &dyn TableLike, key: &str) -> usize {
        let span = table.get_key_value(key).and_then(|(key, _)| key.span());
        self.at(span.map(|span| span.start))
    }

    fn unknown_keys(
        &self,
        table: &dyn TableLike,
        owner: &str,
        known: &[&str],
        problems: &mut Vec<ConfigProblem>,
    ) {
        for (key, _) in table.iter().filter(|(key, _)| !known.contains(key)) {
            let remedy = match nearest(key, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            let what = format!("{owner} has no key `{key}`");
            problems.push(ConfigProblem { line: self.of_key(table, key), what, remedy });
        }
    }

    fn check_node(&self, top: &Table, item: &Item, problems: &mut Vec<ConfigProblem>) {
        let Some(table) = item.as_table_like() else {
            let line = self.of_key(top, "node");
            let (what, remedy) =
                ("`node` is not a table".to_owned(), "begin a table with [node]".to_owned());
            return problems.push(ConfigProblem { line, what, remedy });
        };
        self.unknown_keys(table, "[node]", &SETTINGS.map(|setting| setting.key), problems);
        for setting in &SETTINGS {
            let Some(item) = table.get(setting.key) else { continue };
            if let Err(why) = check_value(setting, item) {
                let what = format!("`{}` has a wrong value: {why}", setting.key);
                let remedy = format!("write {}", setting.form.describe());
                let line = self.of_key(table, setting.key);
                problems.push(ConfigProblem { line, what, remedy });
            }
        }
        let flag = |key: &str| table.get(key).and_then(Item::as_bool).unwrap_or_default();
        let address = table.get("listen").and_then(Item::as_str);
        let address = address.and_then(|text| text.parse::<std::net::SocketAddr>().ok());
        if address.is_some_and(|address| !address.ip().is_loopback()) && !flag("listen_anywhere") {
            problems.push(ConfigProblem {
                line: self.of_key(table, "listen"),
                what: "other machines can reach the address of `listen`".to_owned(),
                remedy: "use 127.0.0.1, or set `listen_anywhere = true`".to_owned(),
            });
        }
        let [certificate, key] = TLS_KEYS;
        for (present, absent) in [(certificate, key), (key, certificate)] {
            if table.contains_key(present) && !table.contains_key(absent) {
                let line = self.of_key(table, present);
                let what = format!("`{present}` is set and `{absent}` is not");
                problems.push(ConfigProblem { line, what, remedy: TLS_BOTH.to_owned() });
            }
        }
    }

    /// Reads `[fleet]`. The table counts only if no problem was added.
    fn check_fleet(
        &self,
        top: &Table,
        item: &Item,
        problems: &mut Vec<ConfigProblem>,
    ) -> Option<FleetTable> {
        let Some(table) = item.as_table_like() else {
            let line = self.of_key(top, "fleet");
            let (what, remedy) = ("`fleet` is not a table", "begin a table with [fleet]");
            let (what, remedy) = (what.to_owned(), remedy.to_owned());
            problems.push(ConfigProblem { line, what, remedy });
            return None;
        };
        let keys: Vec<&str> = FLEET_KEYS.iter().map(|one| one.key).collect();
        self.unknown_keys(table, "[fleet]", &keys, problems);
        match FleetTable::read(table) {
            Ok(read) => Some(read),
            Err(found) => {
                problems.extend(found.into_iter().map(
                    |FleetTableProblem { key, what, remedy }| {
                        let line = match key {
                            Some(key) => self.of_key(table, key),
                            None => self.of_key(top, "fleet"),
                        };
                        ConfigProblem { line, what, remedy }
                    },
                ));
                None
            }
        }
    }

    fn check_telemetry(&self, top: &Table, item: &Item, problems: &mut Vec<ConfigProblem>) {
        let table = item.as_table_like();
        if let Some(table) = table {
            let keys = TELEMETRY_KEYS.map(|one| one.key);
            self.unknown_keys(table, "[telemetry]", &keys, problems);
        }
        for TelemetryTableProblem { key, what, remedy } in telemetry_table::check(item) {
            let line = match (table, key) {
                (Some(table), Some(key)) => self.of_key(table, key),
                _ => self.of_key(top, "telemetry"),
            };
            problems.push(ConfigProblem { line, what, remedy });
        }
    }

    /// Reads `[tenants.NAME]`. The tables count only if no problem was added.
    fn check_tenants(
        &self,
        top: &Table,
        item: &Item,
        problems: &mut Vec<ConfigProblem>,
    ) -> Option<TenantQuotas> {
        let Some(tenants) = item.as_table_like() else {
            let line = self.of_key(top, "tenants");
            let what = "`tenants` is not a table".to_owned();
            let remedy = "begin a table with [tenants.NAME]".to_owned();
            problems.push(ConfigProblem { line, what, remedy });
            return None;
        };
        for (name, table) in tenants.iter() {
            if let Some(table) = table.as_table_like() {
                let keys: Vec<&str> = TENANT_KEYS.iter().map(|one| one.key).collect();
                self.unknown_keys(table, &format!("[tenants.{name}]"), &keys, problems);
            }
        }
        let found = match tenant_tables::read(tenants) {
            Ok(quotas) => return Some(quotas),
            Err(found) => found,
        };
        for TenantTableProblem { table, key, what, remedy } in found {
            let inner = tenants.get(&table).and_then(Item::as_table_like);
            let line = match (inner, key) {
                (Some(inner), Some(key)) => self.of_key(inner, key),
                _ => self.of_key(tenants, &table),
            };
            problems.push(ConfigProblem { line, what, remedy });
        }
        None
    }

    /// A problem of the tables of workers. The message begins with the table's name, or has the line in it.
    fn of_workers(&self, top: &Table, message: &str) -> ConfigProblem {
        let in_text = message.split_once("at line ").and_then(|(_, rest)| {
            rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
        });
        let name = message.strip_prefix("[workers.").and_then(|rest| rest.split(']').next());
        let workers = top.get("workers").and_then(Item::as_table_like);
        let of_table = || Some(self.of_key(workers?, name?));
        let line = in_text.or_else(of_table).unwrap_or(1);
        let what = message.lines().last().filter(|_| in_text.is_some()).unwrap_or(message);
        let builtin = name.is_some_and(|name| kinds::find(name).is_some());
        let remedy = match builtin {
            true => "the kind is built in: see docs/reference/configuration.md for its keys",
            false => "see docs/reference/configuration.md for the keys of a worker",
        };
        ConfigProblem { line, what: one_line(what), remedy: remedy.to_owned() }
    }
}

fn check_value(setting: &NodeSetting, item: &Item) -> Result<(), String> {
    let Some(value) = item.as_value() else { return Err("it is a table".to_owned()) };
    let fits = match (setting.form, value) {
        (ValueForm::Switch, Value::Boolean(_)) | (ValueForm::Size, Value::Integer(_)) => true,
        (ValueForm::Switch, _) => false,
        (_, Value::String(_)) => true,
        _ => false,
    };
    let text = text_of(item).filter(|_| fits);
    let Some(text) = text else { return Err(format!("it is {}", named(value))) };
    if setting.form == ValueForm::Path && !Path::new(&text).is_absolute() {
        return Err(format!("the path {text:?} is not absolute"));
    }
    setting.check(&text)
}

fn named(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text in quotes",
        Value::Integer(_) | Value::Float(_) => "a number without quotes",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::InlineTable(_) => "a table",
    }
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The most similar known key, if it is similar enough to be meant.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = key.to_ascii_lowercase().replace('-', "_");
    let distance = |known: &str| edit_distance(&written, known);
    let near = known.iter().min_by_key(|known| distance(known))?;
    (distance(near) <= 1 + near.len() / 4).then_some(*near)
}

/// How many characters must be inserted, removed or replaced to make one text the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_its_line_and_a_remedy() {
        for (text, expected) in [
            ("", ""),
            ("start_figures = true\n[node]\nretain_age = \"3d\"\nretain_bytes = 5000\n", ""),
            (
                "[node]\n\nretain_age = 7",
                "line 3: `retain_age` has a wrong value: it is a number without quotes",
            ),
            (
                "[node]\nretain-age = \"7d\"",
                "line 2: [node] has no key `retain-age`; did you mean `retain_age`?",
            ),
            ("[node]\nsesion_idle = \"7d\"", "did you mean `session_idle`?"),
            ("[node]\ncolour = 1", "line 2: [node] has no key `colour`; known keys: session_idle"),
            ("[nod]\na = 1", "line 1: the file has no key `nod`; did you mean `node`?"),
            ("node = 3", "line 1: `node` is not a table"),
            ("[node]\nretain_age = \"3d\"\n[tenants.acme]\nsessions = 2\n", ""),
            ("[node]\ndeadline = \"8d\"", "line 2: `deadline` has a wrong value: the maximum"),
            ("[node]\nmcp_config = \"mcp.json\"", "\"mcp.json\" is not absolute"),
            ("[node]\nlisten = \"0.0.0.0:80\"", "line 2: other machines can reach"),
            ("[node]\nlisten = \"0.0.0.0:80\"\nlisten_anywhere = true", ""),
            ("[node]\n\nlisten = \n", "line 3: the file is not TOML"),
            ("[node]\ntls_certificate = \"/a.pem\"\ntls_key = \"/a.key\"", ""),
            (
                "[node]\ntls_certificate = \"/a.pem\"",
                "line 2: `tls_certificate` is set and `tls_key` is not; set both",
            ),
            ("[node]\ntls_key = \"a.key\"", "\"a.key\" is not absolute"),
            (
                "[workers.perl]\ncomand = [\"perl\"]",
                "line 2: [workers.perl] has no key `comand`; did you mean `command`?",
            ),
            (
                "\n[workers.perl]\nlanguage = \"Perl\"",
                "line 2: [workers.perl]: there is no command",
            ),
            ("[workers.perl]\ncommand = 3", "line 2: "),
        ] {
            let problems = check(text);
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let shown = shown.join("\n");
            assert!(shown.contains(expected), "{text}: {shown}");
            assert_eq!(shown.is_empty(), expected.is_empty(), "{text}: {shown}");
        }
    }

    #[test]
    fn a_fleet_with_a_problem_is_never_taken_for_none() {
        let good = "[fleet]\nnode = \"n1\"\nservers = [\"nats://h\"]\nlisten = \"10.0.0.2:7421\"\n";
        let is_set = |text: &str| matches!(fleet_of(text), FleetSetting::Set(_));
        assert_eq!(fleet_of("[node]\ncolour = 1\n"), FleetSetting::Absent);
        assert!(is_set(good) && check(good).is_empty());
        // The rest of the file may have a problem.
        assert!(is_set(&format!("{good}[node]\ncolour = 1\n")));
        for (text, expected) in [
            (
                format!("{good}lost_aftr = \"1m\""),
                "line 5: [fleet] has no key `lost_aftr`; did you mean",
            ),
            (format!("{good}lease = \"1s\""), "line 5: `lease` has a wrong value: 1s is not"),
            ("[fleet]\nnode = \"n1\"".to_owned(), "line 1: [fleet] has no `servers`"),
            ("fleet = 3".to_owned(), "line 1: `fleet` is not a table"),
            (format!("{good}\nx = \n"), "the file is not TOML"),
        ] {
            let FleetSetting::Invalid(why) = fleet_of(&text) else { panic!("{text}") };
            assert!(why.contains(expected), "{text}: {why}");
            assert!(!check(&text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_file_sets_values_only_if_it_has_no_problem() {
        let good = "[node]\nretain_bytes = 5000\nlisten_anywhere = true\nlog = \"debug\"\n";
        let read = parse(good).unwrap();
        let values: Vec<_> =
            read.node.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(values, ["listen_anywhere=true", "log=debug", "retain_bytes=5000"]);
        assert!(parse(&format!("{good}colour = 1\n")).is_err());
    }
}
