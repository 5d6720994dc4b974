//! What `windlass fleet dev` shows of the fleet: rows of nodes and of servers, as a table, as lines, or as JSON. Prints
//! nothing.

use serde::Serialize;
use serde_json::{Value, json};

use crate::counted::counted;
use crate::terminal::table;

/// The fleet at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FleetPicture {
    pub nodes: Vec<DevNodeRow>,
    pub servers: Vec<DevServerRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DevNodeRow {
    pub node: String,
    pub state: String,
    /// Absent if the node does not answer.
    pub sessions: Option<u64>,
    /// Where other nodes reach it.
    pub address: String,
    /// Where clients reach it.
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DevServerRow {
    pub server: String,
    pub state: String,
    pub address: String,
}

impl FleetPicture {
    /// The fleet as a table.
    pub fn lines(&self) -> Vec<String> {
        let nodes: Vec<[String; 5]> = self.nodes.iter().map(DevNodeRow::cells).collect();
        let servers: Vec<[String; 3]> = self.servers.iter().map(DevServerRow::cells).collect();
        let mut lines = table(["NODE", "STATE", "SESSIONS", "ADDRESS", "URL"], &nodes);
        lines.push(String::new());
        lines.extend(table(["SERVER", "STATE", "ADDRESS"], &servers));
        lines
    }

    /// A line in words for each row that differs from the one before.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|row| !before.nodes.contains(row));
        let servers = self.servers.iter().filter(|row| !before.servers.contains(row));
        let nodes = nodes.map(|row| {
            let sessions = row.sessions.map(|count| counted(count, "session", "sessions"));
            let sessions = sessions.map(|text| format!(", {text}")).unwrap_or_default();
            format!("node {}: {}{sessions}", row.node, row.state)
        });
        let servers = servers.map(|row| format!("server {}: {}", row.server, row.state));
        nodes.chain(servers).collect()
    }

    /// The same as JSON.
    pub fn json_changes(&self, before: &Self) -> Vec<Value> {
        let nodes = self.nodes.iter().filter(|row| !before.nodes.contains(row));
        let servers = self.servers.iter().filter(|row| !before.servers.contains(row));
        let nodes = nodes.map(|row| event("node", json!(row)));
        let servers = servers.map(|row| event("server", json!(row)));
        nodes.chain(servers).collect()
    }
}

/// An object whose first key tells what it is about.
pub(super) fn event(name: &str, body: Value) -> Value {
    let mut event = json!({"event": name});
    if let (Some(event), Value::Object(body)) = (event.as_object_mut(), body) {
        event.extend(body);
    }
    event
}

impl DevNodeRow {
    fn cells(&self) -> [String; 5] {
        let sessions = self.sessions.map_or_else(|| "-".to_owned(), |count| count.to_string());
        [self.node.clone(), self.state.clone(), sessions, self.address.clone(), self.url.clone()]
    }
}

impl DevServerRow {
    fn cells(&self) -> [String; 3] {
        [self.server.clone(), self.state.clone(), self.address.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(sessions: Option<u64>, server: &str) -> FleetPicture {
        let row = |number: u16, state: &str, sessions| DevNodeRow {
            node: format!("n{number}"),
            state: state.to_owned(),
            sessions,
            address: format!("127.0.0.1:500{number}"),
            url: format!("http://127.0.0.1:400{number}"),
        };
        let state = if sessions.is_some() { "alive" } else { "down, unreachable" };
        FleetPicture {
            nodes: vec![row(1, "alive", Some(0)), row(2, state, sessions)],
            servers: vec![DevServerRow {
                server: "s1".to_owned(),
                state: server.to_owned(),
                address: "127.0.0.1:4222".to_owned(),
            }],
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_node_and_each_server() {
        assert_eq!(
            picture(Some(2), "leader").lines(),
            [
                "NODE  STATE  SESSIONS  ADDRESS         URL",
                "n1    alive  0         127.0.0.1:5001  http://127.0.0.1:4001",
                "n2    alive  2         127.0.0.1:5002  http://127.0.0.1:4002",
                "",
                "SERVER  STATE   ADDRESS",
                "s1      leader  127.0.0.1:4222",
            ]
        );
    }

    #[test]
    fn only_rows_that_changed_are_told() {
        let (before, after) = (picture(Some(1), "leader"), picture(None, "leader"));
        assert!(before.changes(&before).is_empty() && before.json_changes(&before).is_empty());
        assert_eq!(after.changes(&before), ["node n2: down, unreachable"]);
        assert_eq!(
            before.changes(&FleetPicture::default()),
            ["node n1: alive, 0 sessions", "node n2: alive, 1 session", "server s1: leader"]
        );
        let changes = picture(Some(1), "up").json_changes(&before);
        assert_eq!(
            changes,
            [
                json!({"event": "server", "server": "s1", "state": "up", "address": "127.0.0.1:4222"})
            ]
        );
    }
}
