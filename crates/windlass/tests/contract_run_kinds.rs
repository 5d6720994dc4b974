//! Line 75 of the contract for bash, R and Node.js: `run FILE ARGS` against what the interpreter itself prints for the
//! same file, and its exit code.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use windlass_testkit::{TestNode, skip};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A kind with its interpreter.
struct Interpreter {
    program: PathBuf,
    /// Options of `windlass run`.
    options: Vec<String>,
}

impl Interpreter {
    /// The interpreter of this name, or the one that the variable names. `None` after a skip.
    fn find(name: &str, variable: Option<&str>) -> Option<Self> {
        let named = variable.and_then(std::env::var_os).map(PathBuf::from);
        let options = match &named {
            Some(path) => vec!["--interpreter".to_owned(), path.to_str().unwrap().to_owned()],
            None => Vec::new(),
        };
        let on_path = || PATH.split(':').map(|dir| Path::new(dir).join(name));
        let program =
            named.or_else(|| on_path().find(|path| path.exists()).filter(|_| variable.is_none()));
        if program.is_none() {
            skip(format!("there is no {name}"));
        }
        Some(Self { program: program?, options })
    }
}

/// Runs each file with the interpreter itself and with `windlass run`, with the same arguments, and compares what they
/// print to standard output and how they exit.
fn compare(interpreter: &Interpreter, beside: &[(&str, &str)], files: &[(&str, &str, i32)]) {
    let place = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap();
    let directory = place.base().join("project");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    for (name, text) in beside {
        std::fs::write(directory.join("sub").join(name), text).unwrap();
    }
    let output = |command: &mut Command| -> Output {
        let command = command.current_dir(&directory).env("PATH", PATH).stdin(Stdio::null());
        command.output().unwrap()
    };
    for (name, code, status) in files {
        let file = directory.join("sub").join(name);
        std::fs::write(&file, code).unwrap();
        let args = ["one", "two words", "it's $HOME\n*", "--deadline", "", "é"];
        let real = output(Command::new(&interpreter.program).arg(&file).args(args));
        let mut command = Command::new(place.program());
        command.arg("run").args(&interpreter.options).arg(&file).args(args);
        command.env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime);
        let ran = output(command.env("WINDLASS_STATE_DIR", &place.dirs().state));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let errors = (text(&real.stderr), text(&ran.stderr));
        assert_eq!(text(&ran.stdout), text(&real.stdout), "{code}\n{errors:?}");
        // As a shell gives it for a program that a signal has ended.
        let real_code = real.status.code().or_else(|| Some(128 + real.status.signal()?));
        let codes = (ran.status.code(), real_code);
        assert_eq!(codes, (Some(*status), Some(*status)), "{code}\n{errors:?}");
    }
}

#[test]
fn contract_75_a_shell_script_behaves_as_bash_runs_it() {
    let Some(bash) = Interpreter::find("bash", None) else { return };
    let job = "#!/bin/bash\n\
        set -euo pipefail\n\
        trap 'echo \"the trap, $?\"' EXIT\n\
        printf '<%s>' \"$#\" \"$@\" \"$0\" \"${BASH_SOURCE[0]}\"; echo\n\
        source sub/beside.sh\n\
        source \"$(dirname \"$0\")/beside.sh\"\n\
        if [[ ${BASH_SOURCE[0]} == \"$0\" ]]; then echo main $LINENO; fi\n\
        shift 2; echo $#\n\
        exit 7\n";
    let files = [
        ("job.sh", job, 7),
        ("plain.sh", "echo $1; (exit 3)", 3),
        ("fails.sh", "set -e\ntrap 'echo bye' EXIT\nfalse\necho no", 1),
        ("unset.sh", "set -u; echo $nothing; echo no", 1),
        ("replaced.sh", "exec sh -c 'echo \"$1\"; exit 5' x \"$@\"", 5),
        ("ends.sh", "trap 'echo bye' EXIT\necho end", 0),
        ("faults.sh", "echo before; kill -SEGV $$; echo no", 139),
        ("killed.sh", "echo before; kill -KILL $$; echo no", 137),
        ("told.sh", "trap 'echo bye' EXIT\nf() { kill -TERM $$; echo no; }\nf", 143),
        ("traps.sh", "trap 'echo mine' TERM\nkill -TERM $$; echo on", 0),
        ("wrong.sh", "echo before\nif then\n", 2),
    ];
    compare(&bash, &[("beside.sh", "echo beside \"${BASH_SOURCE[0]##*/}\"")], &files);
}

#[test]
fn contract_75_an_r_file_behaves_as_rscript_runs_it() {
    let Some(rscript) = Interpreter::find("Rscript", None) else { return };
    let job = "args <- commandArgs(trailingOnly = TRUE)\n\
        cat(length(args), args, sep = '|')\n\
        file <- sub('^--file=', '', grep('^--file=', commandArgs(), value = TRUE))\n\
        cat(basename(file), basename(getwd()), '\\n')\n\
        source('sub/beside.R')\n\
        source(file.path(dirname(file), 'beside.R'))\n\
        name\n\
        invisible(5)\n\
        quit(status = 7)\n\
        cat('no')\n";
    let files = [
        ("job.R", job, 7),
        ("error.R", "cat('before\\n'); stop('the end'); cat('no')", 1),
        ("ends.R", "x <- 1\nx + 1", 0),
        ("quits.R", "f <- function() q('no', 3); f()", 3),
    ];
    compare(&rscript, &[("beside.R", "name <- 'beside'; cat(name, '\\n')")], &files);
}

#[test]
fn contract_75_a_javascript_file_behaves_as_node_runs_it() {
    let Some(node) = Interpreter::find("node", Some("WINDLASS_TEST_NODE")) else { return };
    let job = "const path = require('path');\n\
        process.on('exit', (status) => console.log('exit', status));\n\
        console.log(process.argv.length, process.argv.slice(2), process.argv[1] === __filename);\n\
        console.log(path.basename(__filename), path.basename(__dirname), path.basename(process.cwd()));\n\
        console.log(require('./beside.cjs'), require.main === module);\n\
        import('./other.mjs').then(({ name }) => {\n\
            console.log(name);\n\
            setTimeout(() => { console.log('late'); process.exitCode = 7 }, 20);\n\
        });\n\
        'not shown'";
    let files = [
        ("job.js", job, 7),
        (
            "module.mjs",
            "import { name } from './other.mjs';\nconsole.log(name, process.argv[2]);\nawait 1;",
            0,
        ),
        ("exits.js", "setInterval(() => {}, 5); setTimeout(() => process.exit(4), 5)", 4),
        ("throws.js", "console.log('before'); throw new Error('the end')", 1),
        (
            "late.js",
            "setTimeout(() => { throw new Error('late') }, 5); setInterval(() => {}, 5)",
            1,
        ),
        ("rejects.js", "Promise.reject(new Error('nobody'))", 1),
        ("pending.mjs", "await new Promise(() => {})", 13),
        ("wrong.js", "let x = = 1", 1),
    ];
    let beside = [
        (
            "beside.cjs",
            "module.exports = [require.main.filename === process.argv[1], module.id === '.']",
        ),
        ("other.mjs", "export const name = 'other'"),
    ];
    compare(&node, &beside, &files);
}
