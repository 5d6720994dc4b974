//! `windlass attach`: follows a running session live and sends the user's answers to it.

use std::process::ExitCode;

use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::{OutputQuery, Session, Turn};

use crate::answers::AnswerReader;
use crate::follow::{FollowEnd, Person, SessionFollower};
use crate::node_access;
use crate::running_turn::running_turn;
use crate::terminal::Terminal;

/// Maximum number of bytes of earlier output to show from the running turn.
const EARLIER_BYTES_MAX: u64 = 64 * 1024;

/// Follow a session live and answer its prompts
///
/// Shows the output of the running turn and of all later turns, whichever client submits them. When the code
/// reads input, type the answer here. Ctrl-C detaches; the session keeps running.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
}

impl Args {
    /// Attaches to this session.
    pub fn of(session: SessionId) -> Self {
        Self { session }
    }
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let session = client.session(&args.session).await?;
    let running = running_turn(&client, &session).await?;
    if let Some(turn) = &running {
        show_earlier(&client, &session, turn, terminal).await?;
    }
    let mut person = Person::new(terminal, Some(AnswerReader::from_stdin()?))?;
    let followed =
        SessionFollower::new(&client, &session).session(running.as_ref(), &mut person).await?;
    let session = &args.session;
    match followed {
        FollowEnd::Detached => terminal.note(&format!(
            "detached; session {session} keeps running. Stop its turn with: windlass interrupt {session}"
        ))?,
        FollowEnd::SessionEnded(reason) => {
            terminal.note(&format!("session {session} ended: {reason:?}"))?;
        }
        FollowEnd::TurnEnded { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the last output that the turn had printed when `session` was read. Events deliver the rest.
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
        terminal.note(&format!(
            "{} earlier bytes of output are not shown; read them with: windlass logs {} --turn {}",
            from - turn.output.from,
            session.id,
            turn.id
        ))?;
    }
    Ok(terminal.out(&earlier.bytes)?)
}
