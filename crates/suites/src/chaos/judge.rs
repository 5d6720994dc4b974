//! The final check of a session: compares every answer that its client got with the session's events, its
//! marks and the events of its follower.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use windlass_protocol::{ErrorCode, Outcome};

use super::code::MARKS;
use super::http_client::HttpClient;
use super::model::SessionModel;
use super::random::Random;
use super::raw_http::RawRequest;
use super::turns::{EarlyStop, look_at_session, wait_end};

/// How long the journal may take to record the end of a closed session, and the time between two checks.
const RECORDED_WAIT: Duration = Duration::from_secs(20);
const RECORDED_LOOK: Duration = Duration::from_millis(200);

/// Waits for all open turns and checks the marks. The session is still running.
pub async fn running(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    look_at_session(http, session).await?;
    let open = session.turns.iter().filter(|turn| turn.outcome.is_none() && !turn.refused);
    let open: Vec<String> = open.map(|turn| turn.id.clone()).collect();
    for id in open {
        wait_end(http, session, &id, random).await?;
    }
    marks(http, session).await
}

/// Checks that each mark in the workspace belongs to this session and occurs once.
async fn marks(http: &mut HttpClient, session: &SessionModel) -> Result<(), EarlyStop> {
    let path = format!("{}/files/{MARKS}", session.path());
    let answer = http.send_with_retry(&RawRequest::get(path), 0).await?;
    if answer.status != 200 {
        // The file is missing if the disk was full or no turn ran.
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let mut ran: BTreeMap<&str, u64> = BTreeMap::new();
    for mark in text.lines() {
        *ran.entry(mark).or_default() += 1;
    }
    for (mark, times) in ran {
        if times > 1 {
            http.violation("twice", format!("{mark} of {} ran {times} times", session.id));
        }
        let is_own = session.turns.iter().any(|turn| turn.id == mark);
        if !is_own && session.inherited.is_empty() {
            http.violation("mixed", format!("{mark} ran in {}", session.id));
        }
    }
    Ok(())
}

/// Reads all events in pages and compares them with the model and with the follower's events.
pub async fn events(
    http: &mut HttpClient,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), EarlyStop> {
    let mut events: Vec<Value> = Vec::new();
    let until = Instant::now() + RECORDED_WAIT;
    loop {
        let (after, limit) = (events.len(), random.pick(&[7, 100, 1000, 1000]));
        let path = format!("{}/events?after={after}&limit={limit}", session.path());
        let answer = http.send_with_retry(&RawRequest::get(path), 0).await?;
        let page: Value = http.read("a page of events", &answer).ok_or(EarlyStop::GivenUp)?;
        let Some(page) = page["events"].as_array().filter(|_| answer.status == 200) else {
            http.violation("events", format!("{}: {}", session.id, answer.shown()));
            return Err(EarlyStop::GivenUp);
        };
        if page.is_empty() {
            // On a full disk the node reports the end before it records it.
            let is_whole = events.last().is_some_and(|last| last["kind"] == "session_ended");
            if is_whole || Instant::now() > until {
                if !is_whole {
                    http.violation("events", format!("{}: its end is not recorded", session.id));
                }
                break;
            }
            tokio::time::sleep(RECORDED_LOOK).await;
        }
        for event in page {
            let wanted = events.len() as u64 + 1;
            if event["seq"].as_u64() != Some(wanted) {
                let got = &event["seq"];
                let text = format!("{}: expected event {wanted}, got {got}", session.id);
                http.violation("events", text);
                return Err(EarlyStop::GivenUp);
            }
            events.push(event.clone());
        }
    }
    http.world.ledger.add("events", events.len() as u64);
    if let Some(follower) = session.follower.take() {
        compare_follower(http, session, &events, &follower.finish(events.len()).await);
    }
    let recorded = RecordedTurns::of(http, session, &events);
    check_turns(http, session, &recorded);
    check_memory(http, session, &recorded);
    Ok(())
}

fn compare_follower(
    http: &HttpClient,
    session: &SessionModel,
    events: &[Value],
    followed: &[Value],
) {
    if followed.len() < events.len() {
        let (have, all) = (followed.len(), events.len());
        http.violation("stream", format!("{}: the stream had {have} of {all} events", session.id));
    }
    let differs = events.iter().zip(followed).find(|(page, stream)| page != stream);
    if let Some((page, stream)) = differs {
        let text =
            format!("{}: the page has the event {page}, the stream has {stream}", session.id);
        http.violation("stream", text);
    }
}

/// One turn according to the events.
#[derive(Debug, Default)]
struct RecordedTurn {
    id: String,
    accepted: u64,
    ended: u64,
    outcome: Option<Outcome>,
    output: Vec<u8>,
    /// Some output is missing, because events leave out large bodies.
    is_partial: bool,
    /// The number of the session's worker when the turn ended.
    worker: u64,
}

/// All turns according to the events, by number.
#[derive(Debug, Default)]
struct RecordedTurns {
    turns: BTreeMap<u64, RecordedTurn>,
    /// The session ended because it lost its keeper.
    lost_keeper: bool,
}

impl RecordedTurns {
    fn of(http: &HttpClient, session: &SessionModel, events: &[Value]) -> Self {
        let mut told = Self::default();
        let (mut worker, mut link) = (0, 0);
        for event in events {
            if let Some(next) = event["link"].as_u64() {
                if next <= link {
                    let text = format!("{}: link {next} came after {link}", session.id);
                    http.violation("events", text);
                }
                link = next;
            }
            if event["kind"] == "worker_ready" {
                worker += 1;
            }
            if event["kind"] == "session_ended" {
                told.lost_keeper = event["reason"] == "keeper_lost";
            }
            let Some(number) = event["turn"].as_u64() else { continue };
            let turn = told.turns.entry(number).or_default();
            match event["kind"].as_str().unwrap_or_default() {
                "turn_accepted" if event["more"] != true => {
                    turn.id = event["id"].as_str().unwrap_or_default().to_owned();
                    turn.accepted += 1;
                }
                "output" if event["background"] != true => {
                    if turn.ended > 0 {
                        let seq = &event["seq"];
                        let text = format!("{} printed after its end, at event {seq}", turn.id);
                        http.violation("events", text);
                    }
                    turn.take_output(event);
                }
                "turn_ended" => {
                    turn.ended += 1;
                    turn.worker = worker;
                    turn.outcome = serde_json::from_value(event["outcome"].clone()).ok();
                }
                _ => {}
            }
        }
        told
    }

    fn by_id(&self, id: &str) -> impl Iterator<Item = &RecordedTurn> {
        let id = id.to_owned();
        self.turns.values().filter(move |turn| turn.id == id)
    }
}

impl RecordedTurn {
    fn take_output(&mut self, event: &Value) {
        if let Some(text) = event["text"].as_str() {
            self.output.extend_from_slice(text.as_bytes());
        } else if let Some(text) = event["base64"].as_str() {
            self.output.extend(STANDARD.decode(text).unwrap_or_default());
        } else if event["bytes"].as_u64().unwrap_or_default() > 0 {
            self.is_partial = true;
        }
    }
}

/// Checks that every accepted turn ended once, with the outcome and the output that its client got.
fn check_turns(http: &HttpClient, session: &SessionModel, told: &RecordedTurns) {
    for (number, turn) in &told.turns {
        let (accepted, ended) = (turn.accepted, turn.ended);
        if (accepted, ended) != (1, 1) {
            let text = format!(
                "turn {number} ({}) of {} was accepted {accepted} times and ended {ended} times",
                turn.id, session.id
            );
            http.violation("events", text);
        }
    }
    for turn in session.turns.iter().filter(|turn| !turn.refused) {
        let mut found = told.by_id(&turn.id);
        let (first, second) = (found.next(), found.next());
        let Some(first) = first else {
            if turn.outcome.is_some() {
                http.violation("events", format!("{} is in no event", turn.id));
            }
            continue;
        };
        if second.is_some() {
            http.violation("twice", format!("{} was accepted twice", turn.id));
        }
        // On a full disk the node reports an outcome that it cannot record yet. If the keeper and the node
        // end before the disk has space, the outcome is lost.
        let was_unrecorded =
            turn.told_on_full_disk && first.outcome == Some(Outcome::Lost) && told.lost_keeper;
        if turn.outcome.is_some() && first.outcome != turn.outcome && !was_unrecorded {
            let (told, now) = (turn.outcome, first.outcome);
            http.violation(
                "outcome",
                format!("{}: the client got {told:?}, the events have {now:?}", turn.id),
            );
        }
        // Output that was dropped on a full disk may appear after a restart, because the keeper still held
        // it.
        let may_grow = turn.code == Some(ErrorCode::DiskFull);
        let is_same = turn.output.as_ref().is_none_or(|output| match may_grow {
            true => first.output.starts_with(output),
            false => *output == first.output,
        });
        if !is_same && !first.is_partial {
            let (read, recorded) =
                (turn.output.as_ref().map(Vec::len).unwrap_or_default(), first.output.len());
            let text =
                format!("{}: the client read {read} bytes, the events have {recorded}", turn.id);
            http.violation("output", text);
        }
    }
}

/// Checks the marks that a turn found in memory: they are those of the turns that ran before it with the same
/// worker, each once, in the order accepted. No turn that ended well is missing.
fn check_memory(http: &HttpClient, session: &SessionModel, told: &RecordedTurns) {
    for turn in &session.turns {
        let Some(seen) = &turn.seen else { continue };
        let Some((number, at)) = told.turns.iter().find(|(_, told)| told.id == turn.id) else {
            continue;
        };
        let inherits = seen.starts_with(&session.inherited);
        let own = if inherits { &seen[session.inherited.len()..] } else { &seen[..] };
        let before = told.turns.range(..=number).filter(|(_, told)| told.worker == at.worker);
        let before: Vec<&RecordedTurn> = before.map(|(_, told)| told).collect();
        let order: Vec<Option<usize>> =
            own.iter().map(|mark| before.iter().position(|told| told.id == *mark)).collect();
        let is_ordered = order.iter().all(Option::is_some) && order.is_sorted_by(|a, b| a < b);
        if !is_ordered {
            let strange = own.iter().zip(&order).find(|(_, place)| place.is_none());
            let text =
                format!("{}: memory holds {own:?}; the first unknown mark: {strange:?}", turn.id);
            http.violation("memory", text);
        }
        let ran = before.iter().filter(|told| told.outcome == Some(Outcome::Ok));
        let ran = ran.filter(|told| session.turns.iter().any(|turn| turn.id == told.id));
        let missing: Vec<&str> =
            ran.filter(|told| !own.contains(&told.id)).map(|told| told.id.as_str()).collect();
        if !missing.is_empty() {
            http.violation("memory", format!("{}: memory lacks {missing:?}", turn.id));
        }
    }
}
