//! Draws what `windlass top` shows into a buffer of cells. Decides about columns, lines and colours, and writes to no
//! terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use windlass_protocol::api::SessionState;

use super::columns::{TopColumn, TopScope, fitting, memory, one_line, state, tenths};
use super::model::{NodeContact, ShownSession, TailState, TopMode, TopModel};
use super::tail::TailLine;
use crate::counted::counted;
use crate::terminal::Tone;

/// A body with fewer lines shows no output.
const BODY_LINES_WITH_TAIL: u16 = 6;

/// What stands before the selected session, also where no colours are.
const SELECTED: &str = ">";

const HELP: [&str; 11] = [
    "up, down, k, j   select a session; PageUp, PageDown, Home, End",
    "s                sort by attention, memory, processor, state or age",
    "/                show only sessions that contain a text; Escape ends it",
    "i                interrupt the running turn; the session keeps its state",
    "K                kill the session and all its processes, after a question",
    "a, Enter         attach: follow the session and answer it; Ctrl-C comes back",
    "Ctrl-L           draw the screen again",
    "?                this help",
    "q, Ctrl-C        quit; the sessions keep running",
    "",
    "Any key closes this help.",
];

/// How the screen looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopLook {
    pub scope: TopScope,
    pub colours: TopColours,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopColours {
    On,
    /// Only bold, faint and reversed text.
    Off,
}

impl TopLook {
    fn style(self, tone: Tone) -> Style {
        let plain = Style::default();
        let (colour, modifier) = match tone {
            Tone::Error => (Some(Color::Red), Modifier::BOLD),
            Tone::Good => (Some(Color::Green), Modifier::empty()),
            Tone::Busy => (Some(Color::Yellow), Modifier::empty()),
            Tone::Faint => (None, Modifier::DIM),
            Tone::Strong => (None, Modifier::BOLD),
            Tone::Plain => (None, Modifier::empty()),
        };
        let style = plain.add_modifier(modifier);
        match colour.filter(|_| self.colours == TopColours::On) {
            Some(colour) => style.fg(colour),
            None => style,
        }
    }
}

/// How many lines of a screen the parts between header and footer get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BodyLines {
    /// Sessions, below their headings.
    sessions: u16,
    /// Output, with its title. 0: none is shown.
    tail: u16,
}

impl BodyLines {
    fn of(height: u16, sessions: usize) -> Self {
        let body = height.saturating_sub(2);
        if body < BODY_LINES_WITH_TAIL {
            return Self { sessions: body.saturating_sub(1), tail: 0 };
        }
        let wanted = u16::try_from(sessions).unwrap_or(u16::MAX).saturating_add(1);
        let table = wanted.clamp(2, body - body / 2);
        Self { sessions: table - 1, tail: body - table }
    }
}

/// The number of sessions that a screen of this height shows.
pub fn page(model: &TopModel, height: u16) -> usize {
    usize::from(BodyLines::of(height, model.visible().len()).sessions)
}

/// Draws everything. The buffer is empty before.
pub fn render(model: &TopModel, look: TopLook, now_ms: u64, buffer: &mut Buffer) {
    let area = buffer.area;
    if area.width == 0 || area.height == 0 {
        return;
    }
    // Where both have one line, a question is more important than the node.
    let asks = matches!(model.mode, TopMode::ConfirmClose(_));
    if area.height > 1 || !asks {
        header(model, look, buffer);
    }
    if area.height > 1 || asks {
        footer(model, look, buffer);
    }
    if model.mode == TopMode::Help {
        let lines = usize::from(area.height.saturating_sub(2));
        for (y, line) in (1..).zip(HELP.iter().take(lines)) {
            put(buffer, y, line, Style::default());
        }
        return;
    }
    let visible = model.visible();
    let lines = BodyLines::of(area.height, visible.len());
    if area.height > 2 {
        table(model, &visible, lines.sessions, look, now_ms, buffer);
    }
    if lines.tail > 0 {
        tail(model, 2 + lines.sessions, lines.tail, look, buffer);
    }
}

fn header(model: &TopModel, look: TopLook, buffer: &mut Buffer) {
    let (text, tone) = match &model.contact {
        NodeContact::Waiting => ("windlass top: waiting for the node".to_owned(), Tone::Strong),
        NodeContact::Answers => (summary(model), Tone::Strong),
        NodeContact::Lost(cause) => {
            (format!("the node does not answer, trying again: {}", one_line(cause)), Tone::Error)
        }
    };
    let style = look.style(tone).add_modifier(Modifier::REVERSED);
    buffer.set_style(Rect { height: 1, ..buffer.area }, style);
    put(buffer, 0, &text, style);
}

/// The node, its sessions by state, and what they use together.
pub fn summary(model: &TopModel) -> String {
    let sessions = model.all();
    let mut states: Vec<(SessionState, usize)> = Vec::new();
    for session in sessions {
        match states.iter_mut().find(|(state, _)| *state == session.row.state) {
            Some((_, count)) => *count += 1,
            None => states.push((session.row.state, 1)),
        }
    }
    states.sort_by_key(|(state, _)| state.as_str());
    let states: Vec<String> = states
        .iter()
        .map(|(state, count)| format!("{count} {}", state.as_str().replace('_', " ")))
        .collect();
    let of_states =
        if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
    let cut = if model.is_cut { "the first " } else { "" };
    // The figures are the node's: no sum of them may overflow.
    let bytes =
        sessions.iter().filter_map(|session| session.row.memory_bytes).fold(0, u64::saturating_add);
    // Tenths of a percent of one processor, as tenths of a processor.
    let processors =
        sessions.iter().filter_map(|session| session.processor_tenths).fold(0, u64::saturating_add)
            / 100;
    let tenant = model.node.tenant.as_ref().map(|name| format!("  tenant {name}"));
    let address = model.node.address.as_ref().map(|address| format!("  {address}"));
    // The edge of a narrow screen cuts what comes last.
    one_line(&format!(
        "windlass {}  {}  {} CPU  {cut}{}{of_states}{}{}",
        model.node.version,
        memory(bytes),
        tenths(processors),
        counted(sessions.len(), "session", "sessions"),
        tenant.unwrap_or_default(),
        address.unwrap_or_default(),
    ))
}

fn footer(model: &TopModel, look: TopLook, buffer: &mut Buffer) {
    let y = buffer.area.height - 1;
    let (text, tone) = match &model.mode {
        TopMode::Filter { .. } => (format!("/{}_", one_line(&model.filter)), Tone::Strong),
        TopMode::ConfirmClose(session) => {
            (format!("kill session {session} and all its processes? y or n"), Tone::Error)
        }
        _ if !model.notice.is_empty() => (one_line(&model.notice), Tone::Busy),
        TopMode::Sessions | TopMode::Help => (keys(model), Tone::Faint),
    };
    put(buffer, y, &text, look.style(tone));
}

fn keys(model: &TopModel) -> String {
    let filter = match model.filter.as_str() {
        "" => "/ filter".to_owned(),
        filter => format!("/ filter: {}", one_line(filter)),
    };
    format!(
        "q quit  ? help  i interrupt  K kill  a attach  s sort: {}  {filter}",
        model.sort.as_str()
    )
}

fn table(
    model: &TopModel,
    visible: &[&ShownSession],
    lines: u16,
    look: TopLook,
    now_ms: u64,
    buffer: &mut Buffer,
) {
    let ids: Vec<usize> = visible.iter().map(|one| one.row.id.as_str().len()).collect();
    // One column is for the mark of the selected session.
    let width = usize::from(buffer.area.width).saturating_sub(1);
    let columns = fitting(look.scope, &ids, width);
    put(buffer, 1, &format!(" {}", headings(&columns)), look.style(Tone::Strong));
    let selected = model.selected_at();
    let page = usize::from(lines);
    let first = first_shown(selected.unwrap_or_default(), visible.len(), page);
    let shown = visible.iter().enumerate().skip(first).take(page);
    for (y, (at, session)) in (2..).zip(shown) {
        let mark = if selected == Some(at) { SELECTED } else { " " };
        let cells: Vec<String> =
            columns.iter().map(|(column, _)| column.cell(session, now_ms)).collect();
        let mut style = look.style(tone(session));
        if matches!(model.contact, NodeContact::Lost(_)) {
            style = look.style(Tone::Faint);
        }
        if selected == Some(at) {
            style = style.add_modifier(Modifier::REVERSED);
            buffer.set_style(Rect { y, height: 1, ..buffer.area }, style);
        }
        put(buffer, y, &format!("{mark}{}", aligned(&columns, &cells)), style);
    }
    if visible.is_empty() && lines > 0 && model.contact == NodeContact::Answers {
        let text = if model.all().is_empty() {
            " there are no sessions"
        } else {
            " no session contains the text of the filter"
        };
        put(buffer, 2, text, look.style(Tone::Faint));
    }
}

/// The first session on a screen that shows the selected one in its middle, where the list is longer than the screen.
fn first_shown(selected: usize, sessions: usize, page: usize) -> usize {
    selected.saturating_sub(page / 2).min(sessions.saturating_sub(page))
}

fn tone(session: &ShownSession) -> Tone {
    match session.row.state {
        _ if session.row.waits_for_input => Tone::Strong,
        SessionState::AwaitingInput => Tone::Strong,
        SessionState::Idle => Tone::Good,
        SessionState::Ended => Tone::Faint,
        SessionState::Unreachable | SessionState::Lost => Tone::Error,
        _ => Tone::Busy,
    }
}

fn headings(columns: &[(TopColumn, usize)]) -> String {
    let cells: Vec<String> =
        columns.iter().map(|(column, _)| column.heading().to_owned()).collect();
    aligned(columns, &cells)
}

/// Cells in their columns: numbers at the right, text at the left and cut.
fn aligned(columns: &[(TopColumn, usize)], cells: &[String]) -> String {
    let cells = columns.iter().zip(cells).map(|(&(column, width), cell)| {
        let cell: String = cell.chars().take(width).collect();
        if column.is_number() { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    });
    cells.collect::<Vec<_>>().join(" ")
}

fn tail(model: &TopModel, y: u16, lines: u16, look: TopLook, buffer: &mut Buffer) {
    let title = model.selected().map_or_else(String::new, title);
    let rule = "─".repeat(usize::from(buffer.area.width));
    put(buffer, y, &rule, look.style(Tone::Faint));
    if !title.is_empty() {
        put(buffer, y, &format!("── {title} "), look.style(Tone::Strong));
    }
    let mut shown = model.tail.output.last(usize::from(lines - 1));
    let ending = match &model.tail.state {
        _ if model.tail.session.is_none() => None,
        TailState::Loading => Some("reading the output".to_owned()),
        TailState::Live => None,
        TailState::Ended => Some("no more output follows".to_owned()),
        TailState::Failed(cause) => Some(format!("the output cannot be read: {cause}")),
    };
    if let Some(ending) = ending.filter(|_| lines > 1) {
        if shown.len() == usize::from(lines - 1) {
            shown.remove(0);
        }
        shown.push(TailLine::Note(one_line(&ending)));
    }
    for (y, line) in (y + 1..).zip(&shown) {
        let style = match line {
            TailLine::Output(_) => look.style(Tone::Plain),
            TailLine::Note(_) => look.style(Tone::Faint),
        };
        put(buffer, y, line.text(), style);
    }
}

/// What the table may have no place for.
fn title(session: &ShownSession) -> String {
    let row = &session.row;
    let mut parts = vec![row.id.to_string(), state(row)];
    parts.extend(row.turn.map(|turn| format!("turn {turn}")));
    let client = row.client.as_ref().map(ToString::to_string).unwrap_or_default();
    let of_environment = row.environment.clone().unwrap_or_default();
    let more = [row.kind.clone(), client, of_environment, row.workspace.clone()];
    parts.extend(more.into_iter().filter(|part| !part.is_empty()));
    one_line(&parts.join("  "))
}

/// A line of text, cut at the right edge. Lines outside of the buffer are left out.
fn put(buffer: &mut Buffer, y: u16, text: &str, style: Style) {
    if y < buffer.area.height {
        buffer.set_stringn(0, y, text, usize::from(buffer.area.width), style);
    }
}

/// The whole table as lines of text, for output that is no screen.
pub fn plain(model: &TopModel, scope: TopScope, now_ms: u64) -> Vec<String> {
    let columns = scope.columns();
    let sessions = model.visible();
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|session| columns.iter().map(|column| column.cell(session, now_ms)).collect())
        .collect();
    let widths = columns.iter().enumerate().map(|(at, column)| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or_default();
        (*column, longest.max(column.heading().len()))
    });
    let widths: Vec<(TopColumn, usize)> = widths.collect();
    let mut lines = vec![summary(model), headings(&widths).trim_end().to_owned()];
    lines.extend(rows.iter().map(|row| aligned(&widths, row).trim_end().to_owned()));
    lines
}
