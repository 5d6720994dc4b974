//! The functions and variables of libR that the worker uses. Owns the loading of the library and the address of
//! each symbol. Knows nothing about turns.
//!
//! R reports errors with `longjmp`. A function that can raise an R error may be called only while no Rust value
//! with a destructor lives between the call and R's top level. The comments of the wrappers say which ones can.

use std::ffi::{CStr, CString, OsString, c_char, c_double, c_int, c_uchar, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// A pointer to an R object. R's collector frees an object that is neither protected nor reachable.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sexp(*mut c_void);

impl Sexp {
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// The types of R objects (`SEXPTYPE`) that the worker distinguishes.
pub mod kind {
    pub const NIL: u32 = 0;
    pub const SYMBOL: u32 = 1;
    pub const LOGICAL: u32 = 10;
    pub const INTEGER: u32 = 13;
    pub const REAL: u32 = 14;
    pub const STRING: u32 = 16;
    pub const LIST: u32 = 19;
    pub const RAW: u32 = 24;
}

/// Results of [`parse_vector`].
pub mod parsed {
    pub const OK: i32 = 1;
    pub const INCOMPLETE: i32 = 2;
}

/// The encoding mark of UTF-8 text (`CE_UTF8`).
pub const UTF8: c_int = 1;

/// The bit pattern of R's `NA_real_`: a NaN with the low word 1954.
pub const NA_REAL_BITS: u64 = 0x7FF0_0000_0000_07A2;

/// R's `NA_integer_` and `NA`.
pub const NA_INTEGER: i32 = i32::MIN;

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Why R cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RLoadError {
    #[error("R was not found: set R_HOME, or install R so that `R` is on PATH")]
    NotFound,
    #[error("{path} cannot be loaded: R must be built as a shared library (--enable-R-shlib)")]
    Library {
        path: PathBuf,
        #[source]
        cause: libloading::Error,
    },
    #[error("libR has no symbol {name}: R 4.2 or newer is needed")]
    Symbol { name: &'static str },
}

/// Loads libR from R's home directory. Every required symbol is checked, so that no later call can fail.
pub fn load(home: &Path) -> Result<(), RLoadError> {
    let libraries = home.join("lib");
    for name in ["libRblas.so", "libRlapack.so"] {
        let path = libraries.join(name);
        if path.exists() {
            // An R with its own BLAS finds it only by a search path. The library is loaded for good.
            std::mem::forget(open(&path)?);
        }
    }
    let library = open(&libraries.join("libR.so"))?;
    let required = || FUNCTIONS.iter().chain(VARIABLES).copied();
    for name in required() {
        if address_in(&library, name).is_none() {
            return Err(RLoadError::Symbol { name });
        }
    }
    // A second load returns the same library.
    let _ = LIBRARY.set(library);
    Ok(())
}

fn open(path: &Path) -> Result<Library, RLoadError> {
    // SAFETY: the initialisers of R's libraries have no preconditions. Packages need the symbols globally.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|cause| RLoadError::Library { path: path.to_owned(), cause })
}

fn address_in(library: &Library, name: &str) -> Option<usize> {
    let name = CString::new(name).ok()?;
    // SAFETY: only the address is taken here; the wrappers know the types.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) }.ok()?;
    Some(symbol.into_raw() as usize)
}

fn address(name: &str) -> usize {
    let library = LIBRARY.get().expect("R is loaded before any call");
    address_in(library, name).expect("load has checked every symbol")
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        const FUNCTIONS: &[&str] = &[$($symbol),*];
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// R is initialised, this is its main thread, and the arguments have the types that R expects.
            pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
                static ADDRESS: OnceLock<usize> = OnceLock::new();
                let address = *ADDRESS.get_or_init(|| address($symbol));
                type Function = unsafe extern "C-unwind" fn($($type),*) $(-> $result)?;
                // SAFETY: the symbol is a function of this type in R's headers.
                let function = unsafe { std::mem::transmute::<usize, Function>(address) };
                // SAFETY: the caller's promise.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

macro_rules! variables {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal : $type:ty;)*) => {
        const VARIABLES: &[&str] = &[$($symbol),*];
        $(
            $(#[$doc])*
            pub fn $name() -> *mut $type {
                static ADDRESS: OnceLock<usize> = OnceLock::new();
                *ADDRESS.get_or_init(|| address($symbol)) as *mut $type
            }
        )*
    };
}

functions! {
    /// Reads R's command line.
    initialize = "Rf_initialize_R"(count: c_int, arguments: *mut *mut c_char) -> c_int;
    /// Sets what `commandArgs()` returns. Copies the words.
    set_command_line = "R_set_command_line_arguments"(count: c_int, words: *mut *mut c_char);
    /// Starts R: loads the base packages and the profiles.
    set_up_main_loop = "setup_Rmainloop"();
    /// Runs R's top level until the end of its input.
    run_main_loop = "run_Rmainloop"();
    /// Parses text. Can raise an error.
    parse_vector = "R_ParseVector"(text: Sexp, count: c_int, status: *mut c_int, file: Sexp) -> Sexp;
    /// Evaluates an expression. Can raise an error.
    eval = "Rf_eval"(expression: Sexp, environment: Sexp) -> Sexp;
    /// Prints a value as the top level does. Can raise an error.
    print_value = "Rf_PrintValue"(value: Sexp);
    protect = "Rf_protect"(value: Sexp) -> Sexp;
    unprotect = "Rf_unprotect"(count: c_int);
    preserve = "R_PreserveObject"(value: Sexp);
    release = "R_ReleaseObject"(value: Sexp);
    /// Allocates a vector. Raises an error if there is no memory.
    allocate = "Rf_allocVector"(kind: u32, length: isize) -> Sexp;
    /// Makes an element of a character vector. The text has no NUL.
    make_char = "Rf_mkCharLenCE"(text: *const c_char, length: c_int, encoding: c_int) -> Sexp;
    set_string = "SET_STRING_ELT"(vector: Sexp, index: isize, value: Sexp);
    string_at = "STRING_ELT"(vector: Sexp, index: isize) -> Sexp;
    set_element = "SET_VECTOR_ELT"(vector: Sexp, index: isize, value: Sexp) -> Sexp;
    element_at = "VECTOR_ELT"(vector: Sexp, index: isize) -> Sexp;
    char_bytes = "R_CHAR"(text: Sexp) -> *const c_char;
    length = "Rf_xlength"(vector: Sexp) -> isize;
    type_of = "TYPEOF"(value: Sexp) -> c_int;
    integers = "INTEGER"(vector: Sexp) -> *mut c_int;
    logicals = "LOGICAL"(vector: Sexp) -> *mut c_int;
    reals = "REAL"(vector: Sexp) -> *mut c_double;
    raw_bytes = "RAW"(vector: Sexp) -> *mut c_uchar;
    get_attribute = "Rf_getAttrib"(value: Sexp, name: Sexp) -> Sexp;
    set_attribute = "Rf_setAttrib"(value: Sexp, name: Sexp, to: Sexp) -> Sexp;
    inherits = "Rf_inherits"(value: Sexp, class: *const c_char) -> c_int;
    symbol = "Rf_install"(name: *const c_char) -> Sexp;
    set_symbol_value = "SET_SYMVALUE"(symbol: Sexp, value: Sexp);
    find_in_frame = "Rf_findVarInFrame"(environment: Sexp, symbol: Sexp) -> Sexp;
    call_0 = "Rf_lang1"(function: Sexp) -> Sexp;
    call_1 = "Rf_lang2"(function: Sexp, first: Sexp) -> Sexp;
    /// Raises R's interrupt condition. Does not return unless the code resumes.
    raise_interrupt = "Rf_onintr"();
    /// Unwinds to the top level, and never returns.
    jump_to_top_level = "Rf_jump_to_toplevel"();
    remove_temporary_directory = "R_CleanTempDir"();
    /// Makes a new temporary directory if `temporary_directory` is null.
    new_temporary_directory = "R_reInitTempDir"(die: c_int);
    /// Reads the environment file of R's installation.
    read_system_environment = "process_system_Renviron"();
    read_site_environment = "process_site_Renviron"();
    read_user_environment = "process_user_Renviron"();
    run_exit_finalizers = "R_RunExitFinalizers"();
    close_devices = "Rf_KillAllDevices"();
    embedding_library = "R_getEmbeddingDllInfo"() -> *mut c_void;
    register_routines = "R_registerRoutines"(
        library: *mut c_void, of_c: *const c_void, of_call: *const CallRoutine,
        of_fortran: *const c_void, of_external: *const c_void
    ) -> c_int;
}

variables! {
    nil_cell = "R_NilValue": Sexp;
    global_environment_cell = "R_GlobalEnv": Sexp;
    base_environment_cell = "R_BaseEnv": Sexp;
    names_symbol_cell = "R_NamesSymbol": Sexp;
    class_symbol_cell = "R_ClassSymbol": Sexp;
    row_names_symbol_cell = "R_RowNamesSymbol": Sexp;
    last_value_symbol_cell = "R_LastvalueSymbol": Sexp;
    na_string_cell = "R_NaString": Sexp;
    /// R raises an interrupt at its next check if this is not 0.
    interrupts_pending = "R_interrupts_pending": c_int;
    signal_handlers = "R_SignalHandlers": c_int;
    running_as_main_program = "R_running_as_main_program": c_int;
    /// Whether the value of the last evaluation is to be printed. The type is `int` or `bool`, by version; the
    /// first byte says it in both.
    visible = "R_Visible": u8;
    /// R calls this function whenever it looks for interrupts.
    polled_events = "R_PolledEvents": Option<PolledEvents>;
    console_file = "R_Consolefile": *mut c_void;
    output_file = "R_Outputfile": *mut c_void;
    temporary_directory = "R_TempDir": *mut c_char;
    on_read_console = "ptr_R_ReadConsole": Option<ReadConsole>;
    on_write_console = "ptr_R_WriteConsole": *mut c_void;
    on_write_console_ex = "ptr_R_WriteConsoleEx": Option<WriteConsoleEx>;
    on_show_message = "ptr_R_ShowMessage": Option<ShowMessage>;
    on_suicide = "ptr_R_Suicide": Option<ShowMessage>;
    on_busy = "ptr_R_Busy": Option<Busy>;
    on_clean_up = "ptr_R_CleanUp": Option<CleanUp>;
}

pub type ReadConsole =
    unsafe extern "C-unwind" fn(*const c_char, *mut c_uchar, c_int, c_int) -> c_int;
pub type WriteConsoleEx = unsafe extern "C-unwind" fn(*const c_char, c_int, c_int);
pub type ShowMessage = unsafe extern "C-unwind" fn(*const c_char);
pub type PolledEvents = unsafe extern "C-unwind" fn();
pub type Busy = unsafe extern "C-unwind" fn(c_int);
pub type CleanUp = unsafe extern "C-unwind" fn(c_int, c_int, c_int);

/// One row of R's table of `.Call` routines (`R_CallMethodDef`).
#[repr(C)]
#[derive(Debug)]
pub struct CallRoutine {
    pub name: *const c_char,
    pub function: *const c_void,
    pub arguments: c_int,
}

macro_rules! constants {
    ($($name:ident = $cell:ident;)*) => {
        $(
            pub fn $name() -> Sexp {
                // SAFETY: R has set the variable at its start and never changes it.
                unsafe { *$cell() }
            }
        )*
    };
}

constants! {
    nil = nil_cell;
    global_environment = global_environment_cell;
    base_environment = base_environment_cell;
    names_symbol = names_symbol_cell;
    class_symbol = class_symbol_cell;
    row_names_symbol = row_names_symbol_cell;
    last_value_symbol = last_value_symbol_cell;
    na_string = na_string_cell;
}

/// The symbol of this name.
pub fn install(name: &CStr) -> Sexp {
    // SAFETY: the name ends with NUL. R allocates a symbol only if it is new.
    unsafe { symbol(name.as_ptr()) }
}

/// Where R is, and the directories that R's start script would export.
#[derive(Debug, Clone)]
pub struct Installation {
    pub home: PathBuf,
    /// Variables like `R_SHARE_DIR` with their values.
    pub variables: Vec<(&'static str, OsString)>,
}

impl Installation {
    /// Finds R by `R_HOME`, or asks the program `R` on PATH.
    pub fn find() -> Result<Self, RLoadError> {
        let home = match std::env::var_os("R_HOME").filter(|home| !home.is_empty()) {
            Some(home) => PathBuf::from(home),
            None => ask_for_home().ok_or(RLoadError::NotFound)?,
        };
        let script = std::fs::read_to_string(home.join("bin/R")).unwrap_or_default();
        let mut variables = vec![("R_HOME", home.clone().into_os_string())];
        for (name, directory) in
            [("R_SHARE_DIR", "share"), ("R_INCLUDE_DIR", "include"), ("R_DOC_DIR", "doc")]
        {
            let in_script = script
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .filter(|value| value.starts_with('/') && !value.contains('$'));
            let value = match in_script {
                Some(value) => OsString::from(value.trim_matches('"')),
                None => home.join(directory).into_os_string(),
            };
            variables.push((name, value));
        }
        Ok(Self { home, variables })
    }
}

fn ask_for_home() -> Option<PathBuf> {
    let answer = std::process::Command::new("R").arg("RHOME").output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let home = PathBuf::from(text.trim());
    home.is_absolute().then_some(home)
}
