//! The exporter, the table of metrics and the dashboard of `packaging/grafana` name the same metrics and labels.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_protocol::disk::{DiskKind, DiskShare};
use windlass_protocol::event::{Prewarm, PrewarmSource};

use super::*;

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/windlass.json");

/// Metrics in which everything was recorded once.
fn all_recorded() -> String {
    let metrics = Metrics::new();
    let usage = Usage { wall_ms: 1.0, cpu_ms: 1.5, peak_rss_bytes: 1, output_bytes: 1 };
    metrics.turn_ended("python", Outcome::Ok, &usage);
    let figures = StartFigures {
        startup_ms: 1,
        prewarm: Prewarm { how: PrewarmSource::Executed, ms: Some(1) },
        runtime_load_ms: Some(1),
        package_load_ms: Some(1),
        package_count: Some(1),
    };
    metrics.worker_ready("python", StartedBy::Exec, &figures);
    metrics.worker_started("python", StartedBy::Exec, &figures);
    metrics.session_starts("python", StartedBy::Pool);
    metrics.pool_claimed("python", true);
    metrics.pool_ready("python", 1);
    let mut load = KindLoad { memory_bytes: 7, cpu_seconds: 0.5, ..KindLoad::default() };
    load.add_session(SessionState::Busy);
    metrics.kind_load("python", &load);
    metrics.kind_usage("python", &load);
    metrics.waiting(1, 2);
    metrics.connection_slots(3);
    metrics.bound(&BoundLevel { name: "watches", used: 1, limit: 64 });
    let share = DiskShare { kind: DiskKind::Logs, bytes: 5, entries: 1 };
    metrics.disk(&DiskUse {
        state_dir: String::new(),
        bytes: 5,
        complete: true,
        kinds: vec![share],
        retain_age_s: 1,
        retain_bytes: 1,
    });
    metrics.disk_free(9);
    metrics.spans(1, 2);
    metrics.tenant_turn("acme".to_owned(), &usage);
    metrics.tenant_memory("acme".to_owned(), 1);
    metrics.audit(AuditStanding::default());
    metrics.render()
}

#[test]
fn the_exported_metrics_are_those_of_the_table() {
    let text = all_recorded();
    let mut exported: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    exported.sort_unstable();
    let named = METRICS.map(|metric| format!("{} {}", metric.name, metric.kind.name()));
    let mut named: Vec<&str> = named.iter().map(String::as_str).collect();
    named.sort_unstable();
    assert_eq!(exported, named, "{text}");
}

#[test]
fn the_exported_labels_are_those_of_the_table() {
    let text = all_recorded();
    for metric in METRICS {
        let sample = text.lines().find(|line| {
            let rest = line.strip_prefix(metric.name).unwrap_or_default();
            let rest = rest.strip_prefix("_count").unwrap_or(rest);
            rest.starts_with('{') || rest.starts_with(' ')
        });
        let sample = sample.unwrap_or_else(|| panic!("no sample of {}: {text}", metric.name));
        let found: BTreeSet<&str> = matchers(sample).into_iter().collect();
        let named: BTreeSet<&str> = metric.labels.split_whitespace().collect();
        assert_eq!(found, named, "{sample}");
    }
}

#[test]
fn sessions_are_counted_by_kind_and_state() {
    let metrics = Metrics::new();
    let mut load = KindLoad::default();
    for state in [SessionState::Idle, SessionState::Idle, SessionState::Busy] {
        load.add_session(state);
    }
    // No node has a session in this state.
    load.add_session(SessionState::Unreachable);
    metrics.kind_load("python", &load);
    let text = metrics.render();
    for (state, count) in [("idle", 2), ("busy", 1), ("starting", 0)] {
        let expected =
            format!("windlass_sessions_by_state{{worker=\"python\",state=\"{state}\"}} {count}\n");
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    assert_eq!(metrics.known_kinds().collect::<Vec<_>>(), ["python"]);
    metrics.kind_load("python", &KindLoad::default());
    assert!(metrics.render().contains("state=\"idle\"} 0\n"), "the last sessions have ended");
}

#[test]
fn the_kinds_of_the_configuration_file_share_a_label() {
    for (name, label) in [
        ("python", "python"),
        ("jupyter:ir", "jupyter"),
        ("lua", CONFIGURED),
        ("another", CONFIGURED),
        ("", CONFIGURED),
    ] {
        assert_eq!(kind_label(name), label, "{name}");
    }
}

#[test]
fn an_open_connection_is_counted_until_it_is_dropped() {
    let metrics = Metrics::new();
    let open = [metrics.connection_opened(), metrics.connection_opened()];
    assert!(metrics.render().contains("windlass_http_connections 2\n"));
    drop(open);
    assert!(metrics.render().contains("windlass_http_connections 0\n"));
}

/// The names of labels between the braces that come first in `text`.
fn matchers(text: &str) -> Vec<&str> {
    let inner = text.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let Some((inner, _)) = inner else { return Vec::new() };
    inner.split(',').filter_map(|one| one.split(['=', '!']).next()).map(str::trim).collect()
}

/// Where a metric's name begins in an expression, and the name.
fn names(expression: &str) -> Vec<(usize, &str)> {
    let ends = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let found = expression
        .match_indices("windlass_")
        .filter(|(at, _)| !expression[..*at].ends_with(|letter: char| !ends(letter)));
    found
        .map(|(at, _)| {
            let rest = &expression[at..];
            (at, &rest[..rest.find(ends).unwrap_or(rest.len())])
        })
        .collect()
}

fn metric_of(name: &str) -> Option<MetricInfo> {
    METRICS.into_iter().find(|metric| match metric.kind {
        MetricKind::Seconds => {
            ["_bucket", "_sum", "_count"].iter().any(|part| name == metric.name.to_owned() + part)
        }
        MetricKind::Counter | MetricKind::Gauge => name == metric.name,
    })
}

/// Labels that a dashboard may use besides those of the metrics: of buckets, and of what Prometheus scrapes.
const FOREIGN: [&str; 3] = ["le", "job", "instance"];

/// What is wrong in an expression and its legend.
fn wrong(expression: &str, legend: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut labels: BTreeSet<&str> = FOREIGN.into_iter().collect();
    let found = names(expression);
    if found.is_empty() {
        wrong.push("no metric".to_owned());
    }
    for (at, name) in found {
        let Some(metric) = metric_of(name) else {
            wrong.push(name.to_owned());
            continue;
        };
        let own: Vec<&str> = metric.labels.split_whitespace().chain(FOREIGN).collect();
        labels.extend(&own);
        let rest = &expression[at + name.len()..];
        let used = if rest.starts_with('{') { matchers(rest) } else { Vec::new() };
        wrong.extend(used.iter().filter(|label| !own.contains(label)).map(|one| (*one).to_owned()));
    }
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    let grouped = groups.flat_map(|group| group.split(',')).map(str::trim);
    let legends = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let used = grouped.chain(legends.map(str::trim)).filter(|label| !labels.contains(label));
    wrong.extend(used.map(str::to_owned));
    wrong
}

#[test]
fn a_wrong_name_or_label_in_an_expression_is_found() {
    for (expression, legend, expected) in [
        ("windlass_sessions", "", vec![]),
        (
            "sum by (outcome) (rate(windlass_turns_total{worker=\"python\"}[5m]))",
            "{{outcome}}",
            vec![],
        ),
        ("sum by (le) (rate(windlass_turn_seconds_bucket{job=\"w\"}[5m]))", "", vec![]),
        ("rate(windlass_turn_seconds[5m])", "", vec!["windlass_turn_seconds"]),
        ("windlass_session", "", vec!["windlass_session"]),
        ("windlass_turns_total{kind=~\"a|b\"}", "", vec!["kind"]),
        ("sum by (tenant) (windlass_sessions)", "", vec!["tenant"]),
        ("windlass_sessions", "{{worker}}", vec!["worker"]),
        ("up", "", vec!["no metric"]),
    ] {
        assert_eq!(wrong(expression, legend), expected, "{expression}");
    }
}

#[test]
fn the_dashboard_uses_metrics_and_labels_that_exist() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
    let mut expressions = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            assert_eq!(wrong(expression, legend), [""; 0], "{title}: {expression}");
            expressions += 1;
        }
    }
    assert!(expressions > 20, "{expressions}");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|one| one["type"] == "datasource" && one["name"] == "datasource"));
}
