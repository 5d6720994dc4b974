//! R in a zygote: loads packages before the fork, and applies the session's environment, libraries and profiles
//! after it. Everything of the session runs in the forked worker, which is confined by then.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use crate::libr::{self, Installation};
use crate::start::{self, HeldOutput, Profiles};
use crate::{STARTING, Starting, console, json, library, natives, serve_starting, signals};

/// What a zygote does when R is warm. It returns in a forked worker only.
pub type ZygoteLife = Box<dyn FnOnce(&mut WarmR)>;

thread_local! {
    static LIFE: RefCell<Option<(WarmR, ZygoteLife)>> = const { RefCell::new(None) };
}

/// R with its packages, before a fork.
#[derive(Debug)]
pub struct WarmR {
    packages: Vec<String>,
}

/// Packages that could not be loaded, and the libraries in use.
#[derive(Debug, Default)]
pub struct LoadedPackages {
    pub missing: Vec<String>,
    pub libraries: Vec<String>,
}

/// Starts R without profiles and lives as a zygote. Returns only if R cannot start.
pub fn run_zygote(packages: Vec<String>, life: ZygoteLife) -> ExitCode {
    // The package cli starts a thread for its progress bars when it is loaded, and a fork would lose the thread.
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("CLI_NO_THREAD", "1") };
    if let Err(error) = start::initialize(Profiles::Skip) {
        eprintln!("windlass-worker: {error}");
        return ExitCode::FAILURE;
    }
    LIFE.replace(Some((WarmR { packages }, life)));
    start::run(&[live])
}

fn live() {
    natives::register();
    library::load();
    let Some((mut warm, life)) = LIFE.take() else { signals::leave(1) };
    life(&mut warm);
}

impl WarmR {
    /// Loads the packages, but none below `roots`, where sessions can write. `None`: unknown.
    pub fn load_packages(&mut self, roots: Option<&[OsString]>) -> LoadedPackages {
        let texts = |roots: &[OsString]| -> Vec<String> {
            roots
                .iter()
                .map(|root| root.to_string_lossy().trim_end_matches('/').to_owned())
                .collect()
        };
        let wanted = json!({
            "packages": self.packages,
            "known": roots.is_some(),
            "roots": roots.map(texts).unwrap_or_default(),
        });
        let began = Instant::now();
        let answer = library::call_with(c"preload", json::from_json(&wanted));
        // SAFETY: the function returns a list of two character vectors.
        let [missing, libraries] = [0, 1].map(|index| unsafe { libr::element_at(answer, index) });
        let loaded =
            LoadedPackages { missing: json::texts(missing), libraries: json::texts(libraries) };
        // Every worker makes a directory of its own, and a zygote that is killed leaves none behind.
        // SAFETY: R removes its own directory.
        unsafe { libr::remove_temporary_directory() };
        start::note_packages(self.packages.len() - loaded.missing.len(), began);
        loaded
    }

    /// Parses and evaluates code as a turn does.
    pub fn rehearse(&mut self) {
        library::evaluate_text("1 + 1", libr::global_environment());
    }

    /// In a forked worker: takes the session's environment and socket. R's top level then does the rest.
    pub fn serve(&mut self, environment: Vec<(OsString, OsString)>, socket: OwnedFd) {
        let held = HeldOutput::begin();
        let (link, socket) = start::link_over(start::out_of_the_way(socket));
        STARTING.replace(Some(Starting { link, socket, held }));
        replace_environment(&environment);
        renew_process();
        console::add_stages(&[renew, site_profile, user_profile, first, serve_starting]);
    }
}

/// Sets exactly the session's variables, and those that R itself needs.
fn replace_environment(environment: &[(OsString, OsString)]) {
    let installation = Installation::find();
    // SAFETY: this process has one thread.
    unsafe {
        for (name, _) in std::env::vars_os() {
            std::env::remove_var(name);
        }
        for (name, value) in environment {
            if !name.is_empty() {
                std::env::set_var(name, value);
            }
        }
    }
    if let Ok(installation) = installation {
        start::set_environment(&installation);
    }
}

/// Renews what two workers of one zygote must not share.
fn renew_process() {
    let mut seed: libc::c_uint = 0;
    // SAFETY: the seed has these many bytes, and a null pointer makes R choose a new directory.
    unsafe {
        libc::getrandom((&raw mut seed).cast(), size_of_val(&seed), 0);
        libc::srand(seed);
        libr::read_system_environment();
        *libr::temporary_directory() = std::ptr::null_mut();
        libr::new_temporary_directory(1);
    }
}

fn renew() {
    // SAFETY: R's command line did not ask for other files.
    unsafe {
        libr::read_site_environment();
        libr::read_user_environment();
    }
    library::call(c"renew");
}

fn site_profile() {
    library::call(c"site_profile");
}

fn user_profile() {
    library::call(c"user_profile");
}

fn first() {
    library::call(c"first");
}
