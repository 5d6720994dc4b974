//! The R worker: started for one session, or as a zygote with `--zygote PACKAGES...`.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use windlass_worker_r::WarmR;

use crate::zygote::{self, PreparedReport, WarmInterpreter, ZygoteEnd};

pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match arguments.next() {
        Some(word) if word == "--zygote" => {
            let packages = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
            windlass_worker_r::run_zygote(packages, Box::new(live))
        }
        _ => windlass_worker_r::run(),
    }
}

fn live(warm: &mut WarmR) {
    match zygote::run(warm) {
        Ok(ZygoteEnd::Worker) => {}
        Ok(ZygoteEnd::NodeGone) => std::process::exit(0),
        Err(error) => {
            eprintln!("windlass-worker: r: {error}");
            std::process::exit(1);
        }
    }
}

impl WarmInterpreter for WarmR {
    fn prepare(&mut self, roots: Option<&[OsString]>) -> PreparedReport {
        let loaded = self.load_packages(roots);
        PreparedReport { missing: loaded.missing, paths: loaded.libraries }
    }

    fn rehearse(&mut self) {
        Self::rehearse(self);
    }

    fn serve(&mut self, environment: Vec<(OsString, OsString)>, socket: OwnedFd) {
        Self::serve(self, environment, socket);
    }
}
