//! Renders a report as text for a terminal. The caller paints it, so that this module knows no colours.

use std::fmt::Write as _;

use crate::report::{CaseReport, CaseVerdict, CheckReport};

/// The meaning of a piece of text, for colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageTone {
    Passed,
    Failed,
    NotApplicable,
    Detail,
}

/// Paints a piece of text.
pub type Paint<'a> = &'a dyn Fn(PageTone, &str) -> String;

/// The table of all cases, the details of failed cases, and a line with the counts.
pub fn render(report: &CheckReport, paint: Paint<'_>) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "{}", head(report));
    let name = report.cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let class = report.cases.iter().map(|case| case.class.to_string().len()).max().unwrap_or(0);
    for case in &report.cases {
        let result = match &case.verdict {
            CaseVerdict::Passed => paint(PageTone::Passed, "passed"),
            CaseVerdict::Failed(_) => paint(PageTone::Failed, "failed"),
            CaseVerdict::NotApplicable(why) => {
                paint(PageTone::NotApplicable, &format!("not applicable: {why}"))
            }
        };
        let time = match case.verdict {
            CaseVerdict::NotApplicable(_) => String::new(),
            _ => format!("{} ms", case.ms),
        };
        let class_name = case.class.to_string();
        let _ = writeln!(page, "{:name$}  {class_name:class$}  {time:>9}  {result}", case.name);
    }
    for case in report.failed() {
        failure(&mut page, case, paint);
    }
    let (passed, failed, not_applicable) = report.counts();
    let _ = writeln!(page, "\n{passed} passed, {failed} failed, {not_applicable} not applicable");
    page
}

fn head(report: &CheckReport) -> String {
    let worker = report.worker.as_deref().unwrap_or("no worker");
    let capabilities = match report.capabilities.as_slice() {
        [] => "no capabilities".to_owned(),
        some => some.join(", "),
    };
    let language = report
        .language
        .as_deref()
        .map_or_else(|| "no snippets".to_owned(), |language| format!("snippets for {language}"));
    let ready = report.ready_ms.map_or_else(String::new, |ms| format!(", ready in {ms} ms"));
    format!("{worker}{ready}; {capabilities}; {language}\n")
}

fn failure(page: &mut String, case: &CaseReport, paint: Paint<'_>) {
    let CaseVerdict::Failed(why) = &case.verdict else { return };
    let _ = writeln!(page, "\n{} {}", paint(PageTone::Failed, "failed:"), case.name);
    let _ = writeln!(page, "  demands: {}", case.sentence);
    let _ = writeln!(page, "  but: {why}");
    for line in &case.transcript {
        let _ = writeln!(page, "  {}", paint(PageTone::Detail, line));
    }
    if !case.stderr.is_empty() {
        let _ = writeln!(page, "  standard error of the worker:");
        for line in case.stderr.lines() {
            let _ = writeln!(page, "  {}", paint(PageTone::Detail, &format!("| {line}")));
        }
    }
}
