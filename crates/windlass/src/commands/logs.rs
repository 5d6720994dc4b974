//! `windlass logs`: prints the output of a session, as bytes or as events, up to now or continuously.

use std::process::ExitCode;

use windlass_client::Client;
use windlass_protocol::agent;
use windlass_protocol::api::{EventItem, EventsQuery, OutputQuery, TurnQuery};
use windlass_protocol::event::{DropReason, EndReason};
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::{EventKind, Seq, SessionId, TurnId, TurnNo};

use crate::agent_view::{self, AgentView, ShownMessages};
use crate::counted::{OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED, counted};
use crate::follow::show_refusal;
use crate::node_access;
use crate::output_bytes::{self, OutputOffset};
use crate::terminal::Terminal;

/// Show the output of a session
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass logs SESSION              all output so far
  windlass logs SESSION -f           all output so far, then new output as it arrives
  windlass logs SESSION --turn 3     the output of one turn
  windlass logs SESSION --json       every event, one JSON object per line")]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// Keep printing new output until the session (or the turn) ends
    #[arg(long, short)]
    follow: bool,
    /// Show only this turn
    #[arg(long, value_name = "TURN")]
    turn: Option<TurnId>,
    /// Print events as JSON, one per line
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let session = client.session(&args.session).await?;
    let is_agent = is_agent(&session.kind);
    // Of a session that was lost with its node, other nodes have events only.
    let is_lost = session.ended.is_some_and(|ended| ended.reason == EndReason::Lost);
    match (args.follow, args.json) {
        (false, false) if is_agent => agent_events(&args, &client, terminal).await?,
        (false, false) if is_lost => follow(&args, &client, terminal).await?,
        (true, _) => follow(&args, &client, terminal).await?,
        (false, true) => pages(&args, &client, terminal).await?,
        (false, false) => output(&args, &client, terminal).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all output so far, in ranges as large as the node returns them.
async fn output(args: &Args, client: &Client, terminal: &mut Terminal) -> anyhow::Result<()> {
    let turn = args.turn.as_ref().map(TurnId::to_string);
    let mut from = 0;
    loop {
        let query = OutputQuery { turn: turn.clone(), from: Some(from), ..OutputQuery::default() };
        let part = client.output(&args.session, &query).await?;
        if part.from > from {
            let dropped = part.from - from;
            terminal.note(&counted(dropped, OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED))?;
        }
        terminal.out(&part.bytes)?;
        if part.next <= from || part.next >= part.total {
            return Ok(());
        }
        from = part.next;
    }
}

/// Prints the turns of an agent so far.
async fn agent_events(args: &Args, client: &Client, terminal: &mut Terminal) -> anyhow::Result<()> {
    let turn = turn_number(args, client).await?;
    let mut view = AgentView::with(ShownMessages::Live);
    let mut after = 0;
    loop {
        let query = EventsQuery { after, wait_ms: 0, limit: None };
        let page = client.events_page(&args.session, query).await?;
        let of_turn = page.events.iter().filter(|item| turn.is_none() || item.event.turn == turn);
        for item in of_turn.filter(|item| is_agent_event(item)) {
            show_agent(client, args, item, &mut view, terminal).await?;
        }
        if page.ended || page.events.is_empty() {
            return Ok(());
        }
        after = page.after.0;
    }
}

fn is_agent_event(item: &EventItem) -> bool {
    matches!(&item.event.kind, EventKind::Display { mime, more: false, .. } if mime == agent::MIME)
}

async fn show_agent(
    client: &Client,
    args: &Args,
    item: &EventItem,
    view: &mut AgentView,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if let Some(event) = agent_view::read(client, &args.session, item).await? {
        view.print(&event, terminal)?;
    }
    Ok(())
}

/// Prints every event so far as JSON.
async fn pages(args: &Args, client: &Client, terminal: &mut Terminal) -> anyhow::Result<()> {
    let turn = turn_number(args, client).await?;
    let mut after = 0;
    loop {
        let query = EventsQuery { after, wait_ms: 0, limit: None };
        let page = client.events_page(&args.session, query).await?;
        for item in page.events.iter().filter(|item| turn.is_none() || item.event.turn == turn) {
            terminal.say(&serde_json::to_string(item)?)?;
        }
        if page.ended || page.events.is_empty() {
            return Ok(());
        }
        after = page.after.0;
    }
}

async fn follow(args: &Args, client: &Client, terminal: &mut Terminal) -> anyhow::Result<()> {
    let turn = turn_number(args, client).await?;
    let mut events = client.events(&args.session, Seq(0));
    let mut offset = OutputOffset::at(0);
    let mut view = AgentView::new();
    while let Some(item) = events.next().await? {
        let from = offset.advance(&item);
        if turn.is_some() && item.event.turn != turn {
            continue;
        }
        if args.json {
            terminal.say(&serde_json::to_string(&item)?)?;
        } else if is_agent_event(&item) {
            show_agent(client, args, &item, &mut view, terminal).await?;
        } else if let EventKind::Output { .. } = item.event.kind
            && view.wants_answer()
        {
            terminal.out(&output_bytes::fetch(client, &args.session, &item, from).await?)?;
        } else if let EventKind::OutputDropped { bytes, reason: DropReason::NotCopied } =
            item.event.kind
        {
            terminal.note(&counted(bytes, OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED))?;
        } else if let EventKind::TurnEnded { refusal, .. } = &item.event.kind {
            show_refusal(refusal.as_deref(), terminal)?;
        }
        if turn.is_some() && matches!(item.event.kind, EventKind::TurnEnded { .. }) {
            break;
        }
    }
    Ok(())
}

/// The number of the requested turn.
async fn turn_number(args: &Args, client: &Client) -> anyhow::Result<Option<TurnNo>> {
    let Some(turn) = &args.turn else { return Ok(None) };
    let query = TurnQuery { wait_ms: 0, output_bytes_max: Some(0), ..TurnQuery::default() };
    Ok(Some(client.turn(&args.session, turn, query).await?.number))
}
