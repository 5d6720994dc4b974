//! The overview of sessions: one short row for each, with what its processes use now. The rows are those of the list of
//! sessions (`super::session_list`).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use windlass_protocol::api::{ApiError, SessionOverview, SessionRow, SessionsQuery};

use super::App;
use super::body::Asked;
use super::reply::Answer;
use super::session_list::wanted_rows;
use super::tenant::RequestTenant;
use crate::context::Context;
use crate::failure::Failure;
use crate::session_figures::{ReadSession, UsageReading};
use crate::session_rows::RowPage;

/// The sessions as short rows, with the memory and the CPU time of their processes. Takes the query of the list of
/// sessions.
#[utoipa::path(get, path = "/v1/overview", params(SessionsQuery),
    responses((status = 200, body = SessionOverview), (status = "default", body = ApiError)))]
pub(super) async fn overview(
    State(app): State<App>,
    RequestTenant(tenant): RequestTenant,
    headers: HeaderMap,
    Asked(query): Asked<SessionsQuery>,
) -> Answer<Json<SessionOverview>> {
    let RowPage { mut sessions, cursor } =
        wanted_rows::<SessionRow>(&app, tenant, &headers, query).await?;
    measure(&app, &mut sessions).await?;
    Ok(Json(SessionOverview { sessions, cursor }))
}

/// Adds what the sessions of this node use. Other nodes of the fleet have done it for their rows.
async fn measure(context: &Context, rows: &mut [SessionRow]) -> Result<(), Failure> {
    let own = context.fleet().map(|fleet| fleet.name());
    let asked: Vec<ReadSession> = rows
        .iter()
        .filter(|row| row.node.as_ref() == own)
        .filter_map(|row| Some((row.id.clone(), context.sessions.find(&row.id)?.cgroups)))
        .collect();
    let readings = context.serving.figures.of(asked).await?;
    for row in rows {
        if let Some(reading) = readings.get(&row.id).filter(|_| row.node.as_ref() == own) {
            set_figures(row, *reading);
        }
    }
    Ok(())
}

fn set_figures(row: &mut SessionRow, UsageReading { usage, at_ms }: UsageReading) {
    row.memory_bytes = usage.memory_bytes;
    row.cpu_ms = usage.cpu_time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    if row.memory_bytes.is_some() || row.cpu_ms.is_some() {
        row.measured_at_ms = Some(at_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_procs::cgroup::CgroupUsage;
    use windlass_protocol::api::{Session, SessionState};
    use windlass_protocol::{NodeName, SessionId};

    use super::*;

    #[test]
    fn a_figure_is_absent_if_nothing_counts_it() {
        let (memory, cpu) = (Some(5), Some(Duration::from_micros(2900)));
        for (memory_bytes, cpu_time, expected) in [
            (memory, cpu, (Some(5), Some(2), Some(7))),
            (memory, None, (Some(5), None, Some(7))),
            (None, cpu, (None, Some(2), Some(7))),
            (None, None, (None, None, None)),
        ] {
            let (id, node) = (SessionId::parse("s").unwrap(), NodeName::parse("n").unwrap());
            let session = Session::of_directory(id, node, SessionState::Idle);
            let mut row = SessionRow::from(&session);
            let usage = CgroupUsage { memory_bytes, cpu_time };
            set_figures(&mut row, UsageReading { usage, at_ms: 7 });
            assert_eq!((row.memory_bytes, row.cpu_ms, row.measured_at_ms), expected);
        }
    }
}
