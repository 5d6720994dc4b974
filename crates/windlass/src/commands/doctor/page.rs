//! Prints the report for people.

use super::report::{CheckItem, CheckState, DoctorReport, LevelTest, ProgramCheck, SessionTest};
use crate::control_table;
use crate::terminal::{Terminal, Tone};

pub fn print(report: &DoctorReport, terminal: &mut Terminal) -> std::io::Result<()> {
    let user =
        if report.uid == 0 { "as root".to_owned() } else { format!("as user {}", report.uid) };
    terminal.say(&format!("windlass {} on Linux {}, {user}", report.version, report.kernel))?;
    section("Isolation levels", &report.levels, terminal)?;
    section("Mechanisms", &report.mechanisms, terminal)?;
    if !report.user_ids.is_empty() {
        section("User ids of sessions", &report.user_ids, terminal)?;
    }
    for test in &report.tests {
        level_test(test, terminal)?;
    }
    if let Some(session) = &report.session {
        session_test(session, terminal)?;
    }
    let programs = programs(&report.programs);
    section("Programs", &programs, terminal)?;
    section("Node", &report.node, terminal)?;
    section("Disk", &report.disk, terminal)?;
    terminal.say("")?;
    let (tone, verdict) = match report.confined {
        Some(_) if !report.has_user_ids() => (
            Tone::Error,
            "Sessions do not start here with `session_uids`: see the lines marked ✗.".to_owned(),
        ),
        Some(level) => (
            Tone::Good,
            format!("Sessions with the default policy are confined here, at level {level}."),
        ),
        None => (
            Tone::Error,
            "Sessions with the default policy do not start here: see the lines marked ✗."
                .to_owned(),
        ),
    };
    terminal.say(&terminal.tone(tone, &verdict))
}

fn heading(text: &str, terminal: &mut Terminal) -> std::io::Result<()> {
    terminal.say("")?;
    terminal.say(&terminal.tone(Tone::Strong, text))
}

fn section(name: &str, items: &[CheckItem], terminal: &mut Terminal) -> std::io::Result<()> {
    heading(name, terminal)?;
    for item in items {
        let (mark, tone) = match item.state {
            CheckState::Good => ("✓", Tone::Good),
            CheckState::Lacking => ("-", Tone::Busy),
            CheckState::Bad => ("✗", Tone::Error),
        };
        let name = terminal.tone(tone, &format!("{mark} {:14}", item.name));
        terminal.say(&format!("  {name} {}", item.says))?;
        if let Some(help) = &item.help {
            terminal.say(&format!("      help: {help}"))?;
        }
    }
    Ok(())
}

fn level_test(test: &LevelTest, terminal: &mut Terminal) -> std::io::Result<()> {
    let LevelTest { level, attempts, took_ms, program, controls, error } = test;
    heading(
        &format!(
            "Self-test at level {level}: tried {attempts} forbidden actions, {program} ran after {took_ms:.1} ms"
        ),
        terminal,
    )?;
    if let Some(error) = error {
        terminal.say(&terminal.tone(Tone::Error, &format!("  ✗ {error}")))?;
    }
    for line in control_table::lines(terminal, controls) {
        terminal.say(&line)?;
    }
    Ok(())
}

fn session_test(test: &SessionTest, terminal: &mut Terminal) -> std::io::Result<()> {
    let level = test.isolation.map_or_else(String::new, |level| format!(" at level {level}"));
    heading(
        &format!("A real session{level}: first answer after {:.1} ms", test.took_ms),
        terminal,
    )?;
    if let Some(error) = &test.error {
        terminal.say(&terminal.tone(Tone::Error, &format!("  ✗ {error}")))?;
    }
    for line in control_table::lines(terminal, &test.controls) {
        terminal.say(&line)?;
    }
    Ok(())
}

/// One line for each program that is installed or required. Missing optional programs share one line.
fn programs(programs: &[ProgramCheck]) -> Vec<CheckItem> {
    let mut items: Vec<CheckItem> = programs.iter().filter_map(program).collect();
    let missing = programs.iter().filter(|program| program.path.is_none() && !program.needed);
    let missing: Vec<&str> = missing.map(|program| program.name).collect();
    if !missing.is_empty() {
        items.push(CheckItem::lacking("not on PATH", missing.join(", ")));
    }
    items
}

fn program(program: &ProgramCheck) -> Option<CheckItem> {
    let name = program.name;
    let Some(path) = &program.path else {
        let help = "install it, or name an interpreter with --interpreter";
        return program.needed.then(|| CheckItem::bad(name, "not on PATH", help));
    };
    let version = program.version.as_deref().unwrap_or_default();
    let says = format!("{version} {}", path.display());
    let says = says.trim_start();
    Some(match &program.hidden_by {
        None => CheckItem::good(name, says),
        Some(hidden) => CheckItem::lacking(
            name,
            format!("{says}, which sessions cannot read: {} is hidden", hidden.display()),
        )
        .with_help(format!("install it elsewhere, or use --show {}", hidden.display())),
    })
}
