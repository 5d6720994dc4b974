//! The wheels: `windlass-bin` with the program, and `windlass`, the SDK that depends on it.

use std::path::Path;

use anyhow::Result;
use windlass_testkit::python;

use super::{Distribution, copy_next_program, succeed};
use crate::packages::Packages;
use crate::sdk::{BUILD, clean};
use crate::workspace;

pub fn make(dist: &Distribution) -> Result<()> {
    with_program(dist, &dist.program, dist.version, &dist.out)?;
    let next = dist.scratch.join("next-windlass");
    copy_next_program(&dist.program, &next)?;
    with_program(dist, &next, &format!("{}.post1", dist.version), &dist.next)?;
    let packages = Packages::prepare(&[BUILD])?;
    let mut build = clean(packages.directory(&BUILD).join("bin/python"));
    build.args(["-m", "build", "--wheel", "--outdir"]).arg(&dist.out);
    succeed(build.arg(workspace::root().join("sdk/python")))
}

fn with_program(dist: &Distribution, program: &Path, version: &str, out: &Path) -> Result<()> {
    let script = workspace::root().join("packaging/make_wheel.py");
    let mut make = clean(python());
    succeed(make.arg(script).arg(program).args([version, dist.tag]).arg(out))
}
