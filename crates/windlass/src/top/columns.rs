//! The columns of the table of `windlass top`: which ones fit, and what each says about a session.

use std::time::Duration;

use windlass_protocol::api::SessionRow;

use self::TopColumn::{
    Age, Client, Kind, Memory, Node, Processor, Queued, Session, State, Turns, Workspace,
};
use super::model::ShownSession;
use crate::{agent_view, duration, size};

/// The least and the greatest width of the column with the ids.
const ID_WIDTH_MIN: usize = 7;
const ID_WIDTH_MAX: usize = 24;

/// What stands for something that is not known.
const UNKNOWN: &str = "-";

/// A column. The order of the variants is that on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopColumn {
    Session,
    Node,
    State,
    Memory,
    Processor,
    Age,
    Turns,
    Queued,
    Kind,
    Client,
    Workspace,
}

const OF_NODE: [TopColumn; 10] =
    [Session, State, Memory, Processor, Age, Turns, Queued, Kind, Client, Workspace];
const OF_FLEET: [TopColumn; 11] =
    [Session, Node, State, Memory, Processor, Age, Turns, Queued, Kind, Client, Workspace];

/// Whose sessions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopScope {
    Node,
    Fleet,
}

impl TopScope {
    pub fn columns(self) -> &'static [TopColumn] {
        match self {
            Self::Node => &OF_NODE,
            Self::Fleet => &OF_FLEET,
        }
    }
}

impl TopColumn {
    pub fn heading(self) -> &'static str {
        match self {
            Session => "SESSION",
            Node => "NODE",
            State => "STATE",
            Memory => "MEMORY",
            Processor => "CPU%",
            Age => "AGE",
            Turns => "TURNS",
            Queued => "QUEUED",
            Kind => "KIND",
            Client => "CLIENT",
            Workspace => "WORKSPACE",
        }
    }

    /// The width on a screen. That of the ids depends on the ids, and the last column takes what is left.
    fn width(self) -> usize {
        match self {
            Session | Memory | Age => 7,
            Node => 10,
            State => 14,
            Processor | Queued => 6,
            Turns => 5,
            Kind => 8,
            Client | Workspace => 12,
        }
    }

    pub fn is_number(self) -> bool {
        matches!(self, Memory | Processor | Age | Turns | Queued)
    }

    /// What the column says about a session, on one line and without control characters.
    pub fn cell(self, session: &ShownSession, now_ms: u64) -> String {
        let row = &session.row;
        // Of a session whose node does not answer, only name, node and state are known.
        let is_known = !row.state.is_of_directory();
        let text = match self {
            Session => row.id.to_string(),
            Node => row.node.as_ref().map(ToString::to_string).unwrap_or_default(),
            State => state(row),
            Memory => row.memory_bytes.map(memory).unwrap_or_default(),
            Processor => session.processor_tenths.map(tenths).unwrap_or_default(),
            Age if is_known => age(row, now_ms),
            Turns if is_known => row.turns.to_string(),
            Queued if is_known => row.waiting.to_string(),
            Age | Turns | Queued => String::new(),
            Kind => row.kind.clone(),
            Client => row.client.as_ref().map(ToString::to_string).unwrap_or_default(),
            Workspace => row.workspace.clone(),
        };
        if text.is_empty() { UNKNOWN.to_owned() } else { one_line(&text) }
    }
}

/// The columns that fit into `width`, with the width of each. The last one gets what is left if it is text.
pub fn fitting(scope: TopScope, ids: &[usize], width: usize) -> Vec<(TopColumn, usize)> {
    let longest = ids.iter().copied().max().unwrap_or_default();
    let most = if width < 60 { ID_WIDTH_MAX / 2 } else { ID_WIDTH_MAX };
    let mut columns = Vec::new();
    let mut left = width;
    for column in scope.columns() {
        let wanted = match column {
            Session => longest.clamp(ID_WIDTH_MIN, most),
            other => other.width(),
        };
        let space = usize::from(!columns.is_empty());
        if wanted + space > left {
            break;
        }
        left -= wanted + space;
        columns.push((*column, wanted));
    }
    if let Some((column, width)) = columns.last_mut()
        && !column.is_number()
    {
        *width += left;
    }
    columns
}

/// Untrusted text as one line without control characters.
pub fn one_line(text: &str) -> String {
    agent_view::clean(text).replace(['\n', '\t'], " ")
}

pub fn state(row: &SessionRow) -> String {
    row.state.as_str().replace('_', " ")
}

/// A size in few characters: `312.0M`.
pub fn memory(bytes: u64) -> String {
    size::show(bytes).replace("iB", "").replace(' ', "")
}

/// A number of tenths with its decimal.
pub fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

fn age(row: &SessionRow, now_ms: u64) -> String {
    duration::show(Duration::from_millis(now_ms.saturating_sub(row.created_at_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_left_out_from_the_right_until_the_others_fit() {
        let names = |scope, width| {
            let columns = fitting(scope, &[10, 4], width);
            let names: Vec<&str> = columns.iter().map(|(column, _)| column.heading()).collect();
            let used: usize = columns.iter().map(|(_, width)| width).sum();
            assert!(used + columns.len().saturating_sub(1) <= width, "{columns:?}");
            names.join(" ")
        };
        for (width, expected) in [
            (0, ""),
            (6, ""),
            (9, ""),
            (10, "SESSION"),
            (25, "SESSION STATE"),
            (39, "SESSION STATE MEMORY"),
            (79, "SESSION STATE MEMORY CPU% AGE TURNS QUEUED KIND"),
            (84, "SESSION STATE MEMORY CPU% AGE TURNS QUEUED KIND CLIENT"),
            (200, "SESSION STATE MEMORY CPU% AGE TURNS QUEUED KIND CLIENT WORKSPACE"),
        ] {
            assert_eq!(names(TopScope::Node, width), expected, "{width}");
        }
        assert_eq!(names(TopScope::Fleet, 36), "SESSION NODE STATE");
        assert_eq!(fitting(TopScope::Node, &[64], 200)[0].1, ID_WIDTH_MAX);
        assert_eq!(fitting(TopScope::Node, &[64], 40)[0].1, ID_WIDTH_MAX / 2);
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([memory(0), memory(327_155_712)], ["0B", "312.0M"]);
        assert_eq!([tenths(0), tenths(1234)], ["0.0", "123.4"]);
    }
}
