//! The tables `[tenants.NAME]` of `config.toml`: their keys, what is wrong in them, and what they set. With an error in
//! them the node runs, and creates no sessions for tenants: a tenant would have no quota.

use toml_edit::{Item, TableLike, Value};
use windlass_node::{OTHER_TENANTS, TenantQuota, TenantQuotas};
use windlass_protocol::TenantName;
use windlass_protocol::policy::HostRule;

use crate::size;

/// A key of `[tenants.NAME]`.
#[derive(Debug, Clone, Copy)]
pub struct TenantKey {
    pub key: &'static str,
    /// What a value is, for people.
    pub value: &'static str,
    pub meaning: &'static str,
    set: fn(&mut TenantQuota, &Value) -> Result<(), String>,
}

/// What is wrong in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantTableProblem {
    pub table: String,
    /// Absent: the table itself.
    pub key: Option<&'static str>,
    pub what: String,
    pub remedy: String,
}

/// Every key of `[tenants.NAME]`.
pub static TENANT_KEYS: [TenantKey; 6] = [
    TenantKey {
        key: "sessions",
        value: "a number from 1",
        meaning: "how many live sessions the tenant may have",
        set: |to, value| set(&mut to.sessions, number(value)),
    },
    TenantKey {
        key: "memory",
        value: "a size: `\"8G\"`",
        meaning: "the memory limits of its sessions together",
        set: |to, value| set(&mut to.memory_bytes, bytes(value)),
    },
    TenantKey {
        key: "cpu_percent",
        value: "a number from 1; 100 is one core",
        meaning: "the limits of CPU time of its sessions together",
        set: |to, value| set(&mut to.cpu_percent, number(value)),
    },
    TenantKey {
        key: "processes",
        value: "a number from 1",
        meaning: "the limits of processes of its sessions together",
        set: |to, value| set(&mut to.processes, number(value)),
    },
    TenantKey {
        key: "disk",
        value: "a size: `\"50G\"`",
        meaning: "by how much the workspaces of its sessions may grow together",
        set: |to, value| set(&mut to.disk_bytes, bytes(value)),
    },
    TenantKey {
        key: "hosts",
        value: "a list of host rules: `[\"pypi.org\", \"*.example.org:443\"]`",
        meaning: "the hosts that policies of the tenant's clients may name; default: none",
        set: |to, value| hosts(value).map(|hosts| to.hosts = hosts),
    },
];

/// The quotas that the item `tenants` sets, or everything that is wrong in it. The caller looks for unknown keys.
pub fn read(tenants: &dyn TableLike) -> Result<TenantQuotas, Vec<TenantTableProblem>> {
    let (mut quotas, mut problems) = (TenantQuotas::default(), Vec::new());
    for (name, item) in tenants.iter() {
        let problem = |key, what: String, remedy: &str| TenantTableProblem {
            table: name.to_owned(),
            key,
            what,
            remedy: remedy.to_owned(),
        };
        if let Err(error) = TenantName::parse(name) {
            problems.push(problem(None, error.to_string(), "correct the name of the table"));
        }
        let Some(table) = item.as_table_like() else {
            let what = format!("`tenants.{name}` is not a table");
            problems.push(problem(None, what, "begin a table with [tenants.NAME]"));
            continue;
        };
        let mut quota = TenantQuota::default();
        for key in &TENANT_KEYS {
            let Some(item) = table.get(key.key) else { continue };
            let set = match item {
                Item::Value(value) => (key.set)(&mut quota, value),
                _ => Err("it is a table".to_owned()),
            };
            if let Err(why) = set {
                let what = format!("`{}` has a wrong value: {why}", key.key);
                problems.push(problem(Some(key.key), what, &format!("write {}", key.value)));
            }
        }
        quotas.tables.insert(name.to_owned(), quota);
    }
    if problems.is_empty() { Ok(quotas) } else { Err(problems) }
}

/// What the table of this name is for.
pub fn meaning_of_name() -> String {
    format!(
        "`NAME` is the name of a tenant; `[tenants.{OTHER_TENANTS}]` holds for tenants without a table"
    )
}

fn set<T>(to: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *to = Some(value?);
    Ok(())
}

fn number(value: &Value) -> Result<u64, String> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| "it is not a number from 1".to_owned())
}

fn bytes(value: &Value) -> Result<u64, String> {
    match value.as_str() {
        Some(text) => size::parse(text).map_err(|error| error.to_string()),
        None => number(value),
    }
}

fn hosts(value: &Value) -> Result<Vec<HostRule>, String> {
    let list = value.as_array().ok_or_else(|| "it is not a list".to_owned())?;
    let rule = |item: &Value| {
        let text = item.as_str().ok_or_else(|| "a host rule is text in quotes".to_owned())?;
        HostRule::parse(text).map_err(|error| error.to_string())
    };
    list.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use toml_edit::Document;

    use super::*;

    fn of(text: &str) -> Result<TenantQuotas, Vec<String>> {
        let document = Document::parse(text).unwrap();
        let tenants = document.get("tenants").and_then(Item::as_table_like).unwrap();
        read(tenants).map_err(|problems| problems.into_iter().map(|one| one.what).collect())
    }

    #[test]
    fn a_table_sets_the_quota_of_a_tenant() {
        let quotas = of("[tenants.acme]\nsessions = 3\nmemory = \"2G\"\ncpu_percent = 150\n\
             processes = 9\ndisk = 4096\nhosts = [\"pypi.org\"]\n[tenants.default]\nsessions = 1\n")
        .unwrap();
        let expected = TenantQuota {
            sessions: Some(3),
            memory_bytes: Some(2 << 30),
            cpu_percent: Some(150),
            processes: Some(9),
            disk_bytes: Some(4096),
            hosts: vec![HostRule::parse("pypi.org").unwrap()],
        };
        assert_eq!(quotas.tables["acme"], expected);
        assert_eq!(quotas.tables[OTHER_TENANTS].sessions, Some(1));
    }

    #[test]
    fn each_wrong_value_is_named() {
        for (text, expected) in [
            ("[tenants.acme]\nsessions = 0", "`sessions` has a wrong value"),
            ("[tenants.acme]\nsessions = -1", "`sessions` has a wrong value"),
            ("[tenants.acme]\nmemory = \"much\"", "`memory` has a wrong value"),
            ("[tenants.acme]\nmemory = 0", "`memory` has a wrong value"),
            ("[tenants.acme]\nhosts = \"pypi.org\"", "it is not a list"),
            ("[tenants.acme]\nhosts = [\"a b\"]", "`hosts` has a wrong value"),
            ("[tenants.acme.disk]\n", "it is a table"),
            ("[tenants.Acme]\n", "is not the name of a tenant"),
            ("[tenants]\nacme = 3", "is not a table"),
        ] {
            let problems = of(text).unwrap_err();
            assert!(problems[0].contains(expected), "{text}: {problems:?}");
        }
    }
}
