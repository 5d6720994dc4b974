//! Starts R in this process. Owns the command line, the environment that R expects, and what is printed before the
//! worker is ready.

use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use windlass_worker_kit::{FD_VARIABLE, Link, StartupFigures, TERMINAL_VARIABLE, capability};

use crate::libr::{self, Installation, RLoadError};
use crate::session::RSession;
use crate::{console, json, library, signals};

/// The longest output of R's start that is kept, for each of the two streams.
const START_OUTPUT_BYTES: u16 = 32 * 1024;

/// The numbers that the socket is moved to, since some code expects the numbers from 3 to be free.
const HIGH_DESCRIPTORS: [c_int; 3] = [900, 200, 50];

const CAPABILITIES: [&str; 5] = [
    capability::STDIN,
    capability::INTERRUPT,
    capability::DISPLAY,
    capability::TOOLS,
    capability::CONTEXT,
];

/// What R reads when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiles {
    /// The profiles and environment files of the machine and of the user.
    Read,
    /// None: a zygote's children read them.
    Skip,
}

/// When this process began to load R, and what that cost once R could run code. A zygote's children report the figures
/// of the zygote.
static BEGAN: OnceLock<Instant> = OnceLock::new();
static FIGURES: OnceLock<StartupFigures> = OnceLock::new();

/// What the start of R cost. The first call ends the measurement.
pub fn figures() -> StartupFigures {
    *FIGURES.get_or_init(|| StartupFigures {
        runtime_load_ms: since_begin(Instant::now()),
        ..StartupFigures::default()
    })
}

/// A zygote has loaded packages since `began`.
pub fn note_packages(count: usize, began: Instant) {
    let _ = FIGURES.set(StartupFigures {
        runtime_load_ms: since_begin(began),
        package_load_ms: millis(began.elapsed()),
        package_count: u32::try_from(count).ok(),
        ..StartupFigures::default()
    });
}

fn since_begin(end: Instant) -> Option<u32> {
    BEGAN.get().and_then(|began| millis(end.duration_since(*began)))
}

fn millis(time: Duration) -> Option<u32> {
    u32::try_from(time.as_millis()).ok()
}

/// Loads and initialises R, and sets its callbacks. Nothing of a session runs yet.
pub fn initialize(profiles: Profiles) -> Result<(), RLoadError> {
    BEGAN.get_or_init(Instant::now);
    let installation = Installation::find()?;
    set_environment(&installation);
    libr::load(&installation.home)?;
    let mut words =
        vec!["R", "--quiet", "--interactive", "--no-restore", "--no-save", "--no-readline"];
    if profiles == Profiles::Skip {
        words.extend(["--no-site-file", "--no-init-file", "--no-environ"]);
    }
    let arguments = words.into_iter().filter_map(|word| CString::new(word).ok());
    // R keeps the pointers.
    let mut pointers: Vec<*mut c_char> = arguments.map(CString::into_raw).collect();
    let count = c_int::try_from(pointers.len()).unwrap_or_default();
    // SAFETY: this is the main thread, and R is started once. The arguments live as long as the process.
    unsafe {
        *libr::running_as_main_program() = 1;
        *libr::signal_handlers() = 0;
        libr::initialize(count, pointers.as_mut_ptr());
    }
    std::mem::forget(pointers);
    console::install();
    unbuffer_c_output();
    Ok(())
}

/// Runs R until the process ends. The stages run when R's top level asks for its first line.
pub fn run(stages: &[console::Stage]) -> ! {
    console::add_stages(stages);
    // SAFETY: R is initialised, and this is the main thread.
    unsafe {
        libr::set_up_main_loop();
        console::begin_top_level();
        libr::run_main_loop();
    }
    // The top level has reached the end of its input, which the callback never gives.
    signals::leave(1);
}

/// Attaches to the keeper's socket and says that the worker is ready. Call this at R's top level, with the library
/// loaded.
pub fn attach(link: Link, socket: RawFd) {
    signals::install();
    signals::close_in_children(socket);
    signals::watch(socket);
    let version = library::evaluate_text(
        "paste0('R ', R.version$major, '.', R.version$minor)",
        libr::base_environment(),
    );
    let version = json::first_text(version).unwrap_or_else(|| "R".to_owned());
    let mut session = RSession::new(link);
    // If the socket is closed, the first wait says so.
    let _ = session.ready(&version, &CAPABILITIES);
    console::set_session(session);
}

/// The columns of the session's terminal, or 0.
pub fn terminal_columns() -> u16 {
    let size = std::env::var(TERMINAL_VARIABLE).unwrap_or_default();
    size.split('x').next().and_then(|columns| columns.parse().ok()).unwrap_or_default()
}

/// Moves the protocol socket to a high number that no other program inherits.
pub fn out_of_the_way(socket: OwnedFd) -> OwnedFd {
    for lowest in HIGH_DESCRIPTORS {
        // SAFETY: duplicates an open descriptor.
        let moved = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if moved >= 0 {
            // SAFETY: the descriptor is new and has no other owner.
            return unsafe { OwnedFd::from_raw_fd(moved) };
        }
    }
    socket
}

/// Sets the variables that R's start script would set, and a locale with UTF-8.
pub fn set_environment(installation: &Installation) {
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::remove_var(FD_VARIABLE);
        for (name, value) in &installation.variables {
            std::env::set_var(name, value);
        }
    }
    set_locale();
}

/// R writes the locale's encoding, and Windlass expects UTF-8.
fn set_locale() {
    let effective = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let lower = effective.unwrap_or_default().to_ascii_lowercase();
    if !lower.ends_with("utf-8") && !lower.ends_with("utf8") {
        let name = if std::env::var_os("LC_ALL").is_some() { "LC_ALL" } else { "LC_CTYPE" };
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var(name, "C.UTF-8") };
    }
}

/// What C code prints comes out in order with what R prints.
fn unbuffer_c_output() {
    // SAFETY: the symbol is libc's variable `stdout`.
    unsafe {
        let stdout = libc::dlsym(libc::RTLD_DEFAULT, c"stdout".as_ptr()).cast::<*mut libc::FILE>();
        if !stdout.is_null() {
            libc::setvbuf(*stdout, std::ptr::null_mut(), libc::_IONBF, 0);
        }
    }
}

/// The raw pipes while R starts: what is written to them is held until the worker is ready.
#[derive(Debug)]
pub struct HeldOutput {
    streams: [(RawFd, OwnedFd, File); 2],
}

impl HeldOutput {
    pub fn begin() -> Option<Self> {
        Some(Self { streams: [hold(libc::STDOUT_FILENO)?, hold(libc::STDERR_FILENO)?] })
    }

    /// Restores the pipes and writes to them what was held.
    pub fn end(self) {
        for (number, pipe, held) in self.streams {
            // SAFETY: both descriptors are open.
            let written = unsafe {
                libc::dup2(pipe.as_raw_fd(), number);
                libc::lseek(held.as_raw_fd(), 0, libc::SEEK_CUR)
            };
            let written = usize::try_from(written).unwrap_or_default();
            let mut bytes = vec![0; written.min(usize::from(START_OUTPUT_BYTES))];
            if held.read_exact_at(&mut bytes, 0).is_ok() {
                signals::write_raw(number, &bytes);
            }
        }
    }
}

/// Replaces a descriptor by a memory file of a fixed size. Writes past its end fail.
fn hold(number: RawFd) -> Option<(RawFd, OwnedFd, File)> {
    // SAFETY: the name ends with NUL, and each descriptor is new and has no other owner.
    unsafe {
        let pipe = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3);
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let memory = libc::memfd_create(c"windlass-start".as_ptr(), flags);
        if pipe < 0 || memory < 0 {
            return None;
        }
        let (pipe, file) = (OwnedFd::from_raw_fd(pipe), File::from_raw_fd(memory));
        file.set_len(u64::from(START_OUTPUT_BYTES)).ok()?;
        libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK);
        libc::dup2(memory, number);
        Some((number, pipe, file))
    }
}

/// The descriptor of a link's socket, for the link that is made over it.
pub fn link_over(socket: OwnedFd) -> (Link, RawFd) {
    let number = socket.into_raw_fd();
    // SAFETY: the number was just taken from its owner.
    (Link::over(unsafe { OwnedFd::from_raw_fd(number) }), number)
}
