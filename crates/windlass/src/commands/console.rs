//! `windlass console`: opens the node's web console in the browser, with a login that works once.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use windlass_protocol::api::ConsoleLogin;

use crate::node_access;
use crate::terminal::Terminal;

/// The program that opens a file with the user's browser.
const OPENER: &str = "xdg-open";

/// The page that leads to the login, in the runtime directory, which no other user can read. The command line of a browser
/// can be read by all users of the machine, so it has the path of this page and not the login.
const REDIRECT_FILE: &str = "console-login.html";

/// Variables of which one is set where a browser can show a window.
const DISPLAYS: [&str; 3] = ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY"];

/// Open the node's web console in the browser
///
/// Starts the node if none is running. The address that it prints logs in once, within a minute; the login lasts 12 hours
/// after its last use. With WINDLASS_URL it prints the address of that node's console, where you log in with a token.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass console                 open the console
  windlass console --no-browser    print the address and how to reach it over SSH
  windlass console --url-only      print only the address")]
pub struct Args {
    /// Print the address and open no browser
    #[arg(long)]
    no_browser: bool,
    /// Print only the address, for programs; opens no browser
    #[arg(long)]
    url_only: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if let Some(url) = node_access::remote_url() {
        let url = format!("{}/console/", url.trim_end_matches('/'));
        terminal.say(&url)?;
        if !args.url_only {
            terminal.note("open this address in a browser, and log in with a token of the node")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let client = node_access::connect_or_start().await?;
    let login = client.console_login().await?;
    if args.url_only {
        terminal.say(&login.url)?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal.say(&login.url)?;
    let seconds = login.expires_in_s;
    if !args.no_browser && has_display() && open(&client.dirs().runtime, &login)? {
        terminal
            .note(&format!("if no page opens: this address logs in once, within {seconds} s"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let note = format!("open this address in a browser: it logs in once, within {seconds} s");
    terminal.note(&note)?;
    if let Some(address) = address_of(&login.url) {
        let note = format!("from another machine, first run there: {}", ssh_line(address));
        terminal.note(&note)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a browser can show a window here. Without a display some openers start a browser in the terminal.
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    DISPLAYS.into_iter().any(is_set)
}

/// Opens the login in the user's browser. Returns whether the opener was started; the page may still fail to open.
fn open(runtime: &Path, login: &ConsoleLogin) -> anyhow::Result<bool> {
    let file = write_redirect(runtime, &login.url)?;
    Ok(start_opener(OPENER, &file))
}

/// Starts the opener and does not wait for it: on some desktops it lasts as long as the browser.
fn start_opener(opener: &str, file: &Path) -> bool {
    let started = Command::new(opener)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in the terminal is not for the browser.
        .process_group(0)
        .spawn();
    started.is_ok()
}

/// Writes the page that leads to the login. It stays until the next login: its code works once, so it is of no use then.
fn write_redirect(runtime: &Path, url: &str) -> anyhow::Result<PathBuf> {
    let path = runtime.join(REDIRECT_FILE);
    let failed = || format!("cannot write {}", path.display());
    // Only the user can read what `tempfile` makes.
    let mut file = tempfile::NamedTempFile::new_in(runtime).with_context(failed)?;
    file.write_all(redirect(url).as_bytes()).with_context(failed)?;
    file.persist(&path).with_context(failed)?;
    Ok(path)
}

fn redirect(url: &str) -> String {
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n<title>Windlass</title>\n\
         <a href=\"{url}\">Open the console</a>\n"
    )
}

/// `127.0.0.1:PORT` of a URL.
fn address_of(url: &str) -> Option<&str> {
    url.split('/').nth(2)
}

/// Forwards the address from another machine, and ends if a program there has it: that program would get the login. With
/// a port alone SSH is content with one loopback address of the two.
fn ssh_line(address: &str) -> String {
    format!("ssh -o ExitOnForwardFailure=yes -L {address}:{address} HOST")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const URL: &str = "http://127.0.0.1:4000/console/#login=0a";

    #[test]
    fn the_page_that_leads_to_the_login_is_private_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        write_redirect(dir.path(), "http://127.0.0.1:1/").unwrap();
        let path = write_redirect(dir.path(), URL).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("content=\"0; url={URL}\"")), "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_address_to_forward_is_that_of_the_login() {
        let line = address_of(URL).map(ssh_line);
        let expected = "ssh -o ExitOnForwardFailure=yes -L 127.0.0.1:4000:127.0.0.1:4000 HOST";
        assert_eq!(line.as_deref(), Some(expected));
        assert_eq!(address_of("nothing"), None);
    }

    #[test]
    fn a_missing_opener_opens_nothing() {
        assert!(!start_opener("windlass-no-such-opener", Path::new("x")));
    }
}
