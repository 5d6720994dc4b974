//! The last word on a session: everything that its client was told is compared with its events, its marks
//! and what a follower saw.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use windlass_protocol::{ErrorCode, Outcome};

use super::asker::Asker;
use super::code::MARKS;
use super::http::Request;
use super::model::SessionModel;
use super::random::Random;
use super::turns::{Stop, look_at_session, wait_end};

/// How long the end of a closed session may be owed to the journal, and the time between two looks.
const RECORDED_WAIT: Duration = Duration::from_secs(20);
const RECORDED_LOOK: Duration = Duration::from_millis(200);

/// What is still open is waited for, and the marks are read, before the session is closed.
pub async fn running(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    look_at_session(asker, session).await?;
    let open = session.turns.iter().filter(|turn| turn.outcome.is_none() && !turn.refused);
    let open: Vec<String> = open.map(|turn| turn.id.clone()).collect();
    for id in open {
        wait_end(asker, session, &id, random).await?;
    }
    marks(asker, session).await
}

/// Each turn that ran has left one mark in the workspace, and no other session's turn has.
async fn marks(asker: &mut Asker, session: &SessionModel) -> Result<(), Stop> {
    let path = format!("{}/files/{MARKS}", session.path());
    let answer = asker.patient(&Request::get(path), 0).await?;
    if answer.status != 200 {
        // A disk that was full, or a session none of whose turns ran.
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let mut ran: BTreeMap<&str, u64> = BTreeMap::new();
    for mark in text.lines() {
        *ran.entry(mark).or_default() += 1;
    }
    for (mark, times) in ran {
        if times > 1 {
            asker.violation("twice", format!("{mark} of {} ran {times} times", session.id));
        }
        let is_own = session.turns.iter().any(|turn| turn.id == mark);
        if !is_own && session.inherited.is_empty() {
            asker.violation("mixed", format!("{mark} ran in {}", session.id));
        }
    }
    Ok(())
}

/// Reads all events in pages, and checks them against the model and against what the follower has.
pub async fn events(
    asker: &mut Asker,
    session: &mut SessionModel,
    random: &mut Random,
) -> Result<(), Stop> {
    let mut events: Vec<Value> = Vec::new();
    let until = Instant::now() + RECORDED_WAIT;
    loop {
        let (after, limit) = (events.len(), random.pick(&[7, 100, 1000, 1000]));
        let path = format!("{}/events?after={after}&limit={limit}", session.path());
        let answer = asker.patient(&Request::get(path), 0).await?;
        let page: Value = asker.read("a page of events", &answer).ok_or(Stop::GivenUp)?;
        let Some(page) = page["events"].as_array().filter(|_| answer.status == 200) else {
            asker.violation("events", format!("{}: {}", session.id, answer.shown()));
            return Err(Stop::GivenUp);
        };
        if page.is_empty() {
            // On a full disk the end is told before it is recorded.
            let is_whole = events.last().is_some_and(|last| last["kind"] == "session_ended");
            if is_whole || Instant::now() > until {
                if !is_whole {
                    asker.violation("events", format!("{}: its end is not recorded", session.id));
                }
                break;
            }
            tokio::time::sleep(RECORDED_LOOK).await;
        }
        for event in page {
            let wanted = events.len() as u64 + 1;
            if event["seq"].as_u64() != Some(wanted) {
                let got = &event["seq"];
                let text = format!("{}: event {wanted} is next, and {got} came", session.id);
                asker.violation("events", text);
                return Err(Stop::GivenUp);
            }
            events.push(event.clone());
        }
    }
    asker.world.ledger.add("events", events.len() as u64);
    if let Some(follower) = session.follower.take() {
        compare_follower(asker, session, &events, &follower.finish(events.len()).await);
    }
    let told = Told::of(asker, session, &events);
    check_turns(asker, session, &told);
    check_memory(asker, session, &told);
    Ok(())
}

fn compare_follower(asker: &Asker, session: &SessionModel, events: &[Value], followed: &[Value]) {
    if followed.len() < events.len() {
        let (have, all) = (followed.len(), events.len());
        asker.violation("stream", format!("{}: {have} of {all} events came", session.id));
    }
    let differs = events.iter().zip(followed).find(|(page, stream)| page != stream);
    if let Some((page, stream)) = differs {
        let text = format!("{}: a page says {page}, the stream {stream}", session.id);
        asker.violation("stream", text);
    }
}

/// One turn as the events tell it.
#[derive(Debug, Default)]
struct TurnTold {
    id: String,
    accepted: u64,
    ended: u64,
    outcome: Option<Outcome>,
    output: Vec<u8>,
    /// Bodies that are too large for an event are left out of it.
    is_partial: bool,
    /// Which of the session's workers it ended with.
    worker: u64,
}

/// All turns by their number.
#[derive(Debug, Default)]
struct Told {
    turns: BTreeMap<u64, TurnTold>,
    /// The session ended because its keeper was gone.
    lost_keeper: bool,
}

impl Told {
    fn of(asker: &Asker, session: &SessionModel, events: &[Value]) -> Self {
        let mut told = Self::default();
        let (mut worker, mut link) = (0, 0);
        for event in events {
            if let Some(next) = event["link"].as_u64() {
                if next <= link {
                    let text = format!("{}: link {next} came after {link}", session.id);
                    asker.violation("events", text);
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
                        asker.violation("events", text);
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

    fn by_id(&self, id: &str) -> impl Iterator<Item = &TurnTold> {
        let id = id.to_owned();
        self.turns.values().filter(move |turn| turn.id == id)
    }
}

impl TurnTold {
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

/// Every accepted turn ended once, as its client was told, with the bytes that its client read.
fn check_turns(asker: &Asker, session: &SessionModel, told: &Told) {
    for (number, turn) in &told.turns {
        let (accepted, ended) = (turn.accepted, turn.ended);
        if (accepted, ended) != (1, 1) {
            let text = format!(
                "turn {number} ({}) of {} was accepted {accepted} times and ended {ended} times",
                turn.id, session.id
            );
            asker.violation("events", text);
        }
    }
    for turn in session.turns.iter().filter(|turn| !turn.refused) {
        let mut found = told.by_id(&turn.id);
        let (first, second) = (found.next(), found.next());
        let Some(first) = first else {
            if turn.outcome.is_some() {
                asker.violation("events", format!("{} is in no event", turn.id));
            }
            continue;
        };
        if second.is_some() {
            asker.violation("twice", format!("{} was accepted twice", turn.id));
        }
        // Told on a full disk, its session closed or its keeper killed, and the node ended before there was room:
        // only the node knew.
        let was_owed =
            turn.told_on_full_disk && first.outcome == Some(Outcome::Lost) && told.lost_keeper;
        if turn.outcome.is_some() && first.outcome != turn.outcome && !was_owed {
            let (told, now) = (turn.outcome, first.outcome);
            asker.violation("outcome", format!("{}: told {told:?}, recorded {now:?}", turn.id));
        }
        // What a full disk dropped when it was read may be there after a restart: the keeper held it.
        let may_grow = turn.code == Some(ErrorCode::DiskFull);
        let is_same = turn.output.as_ref().is_none_or(|output| match may_grow {
            true => first.output.starts_with(output),
            false => *output == first.output,
        });
        if !is_same && !first.is_partial {
            let (read, recorded) =
                (turn.output.as_ref().map(Vec::len).unwrap_or_default(), first.output.len());
            let text = format!("{}: {read} bytes were read, events hold {recorded}", turn.id);
            asker.violation("output", text);
        }
    }
}

/// What a turn saw in memory is what ran with the same worker before it: each turn once, in the order
/// accepted, none missing that ended well.
fn check_memory(asker: &Asker, session: &SessionModel, told: &Told) {
    for turn in &session.turns {
        let Some(seen) = &turn.seen else { continue };
        let Some((number, at)) = told.turns.iter().find(|(_, told)| told.id == turn.id) else {
            continue;
        };
        let inherits = seen.starts_with(&session.inherited);
        let own = if inherits { &seen[session.inherited.len()..] } else { &seen[..] };
        let before = told.turns.range(..=number).filter(|(_, told)| told.worker == at.worker);
        let before: Vec<&TurnTold> = before.map(|(_, told)| told).collect();
        let order: Vec<Option<usize>> =
            own.iter().map(|mark| before.iter().position(|told| told.id == *mark)).collect();
        let is_ordered = order.iter().all(Option::is_some) && order.is_sorted_by(|a, b| a < b);
        if !is_ordered {
            let strange = own.iter().zip(&order).find(|(_, place)| place.is_none());
            let text = format!("{}: memory holds {own:?}; strange: {strange:?}", turn.id);
            asker.violation("memory", text);
        }
        let ran = before.iter().filter(|told| told.outcome == Some(Outcome::Ok));
        let ran = ran.filter(|told| session.turns.iter().any(|turn| turn.id == told.id));
        let missing: Vec<&str> =
            ran.filter(|told| !own.contains(&told.id)).map(|told| told.id.as_str()).collect();
        if !missing.is_empty() {
            asker.violation("memory", format!("{}: memory lacks {missing:?}", turn.id));
        }
    }
}
