//! `windlass attach`: a session that runs already, live, with the person's answers for it.

use std::process::ExitCode;

use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::{OutputQuery, Session, SessionState, Turn, TurnQuery};

use crate::answers::Answers;
use crate::follow::{Followed, Follower, Person};
use crate::node_access;
use crate::terminal::Terminal;

/// The most bytes of the running turn's earlier output that are shown first.
const EARLIER_BYTES_MAX: u64 = 64 * 1024;

/// Follow a session live and answer its questions
///
/// Shows the running turn's output and whatever follows, from all of the session's clients. What
/// the code asks for is asked here. Ctrl-C leaves; the session goes on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session, as ps shows it
    #[arg(value_name = "SESSION")]
    session: SessionId,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::started().await?;
    let session = client.session(&args.session).await?;
    let running = running_turn(&client, &session).await?;
    if let Some(turn) = &running {
        show_earlier(&client, &session, turn, terminal).await?;
    }
    let mut person = Person::new(terminal, Some(Answers::from_stdin()?))?;
    let followed = Follower::new(&client, &session).session(running.as_ref(), &mut person).await?;
    let session = &args.session;
    match followed {
        Followed::Detached => terminal.note(&format!(
            "session {session} goes on; stop its turn with: windlass interrupt {session}"
        ))?,
        Followed::SessionEnded(reason) => {
            terminal.note(&format!("session {session} ended: {reason:?}"))?;
        }
        Followed::TurnEnded(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The turn that ran when `session` was read; a question that is asked later comes as an event.
async fn running_turn(client: &Client, session: &Session) -> anyhow::Result<Option<Turn>> {
    let Some(id) = &session.turn else { return Ok(None) };
    let mut turn = client.turn(&session.id, id, TurnQuery::default()).await?;
    if session.state != SessionState::AwaitingInput {
        turn.stdin_wait = None;
    }
    Ok(Some(turn))
}

/// The end of what the turn had printed when `session` was read; the events go on from there.
async fn show_earlier(
    client: &Client,
    session: &Session,
    turn: &Turn,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let end = session.output_bytes;
    let from = turn.output.from.max(end.saturating_sub(EARLIER_BYTES_MAX));
    if from >= end {
        return Ok(());
    }
    let query = OutputQuery { from: Some(from), to: Some(end), ..OutputQuery::default() };
    let earlier = client.output(&session.id, &query).await?;
    if from > turn.output.from {
        terminal.note(&format!("{} bytes before this are not shown", from - turn.output.from))?;
    }
    Ok(terminal.out(&earlier.bytes)?)
}
