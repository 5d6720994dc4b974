//! What a policy would amount to for a session here: the machine is asked, the files around are
//! looked at, a plan is made. Starts no session and needs no node.

use anyhow::Context;
use windlass_client::{ClientError, Dirs};
use windlass_confine::plan::depth;
use windlass_confine::survey::{Place, homes};
use windlass_confine::{Machine, Plan, PlanError, Site, plan, survey};
use windlass_protocol::policy::Policy;

/// A policy, in a place, on a machine.
#[derive(Debug)]
pub struct Outlook {
    pub place: Place,
    /// How a session would be confined, required or not; nothing where its level cannot be had.
    pub plan: Option<Plan>,
    /// Why a session would not start.
    pub refused: Option<PlanError>,
}

impl Outlook {
    pub fn new(policy: &Policy, machine: &Machine, site: &Site) -> Self {
        let place = survey(policy, site, depth(policy, machine));
        let refused = plan(policy, machine, &place).err();
        let lenient = Policy { required: Vec::new(), ..policy.clone() };
        let plan = plan(&lenient, machine, &place).ok();
        Self { place, plan, refused }
    }
}

/// The current directory as a workspace, as a node of this user would see it.
pub fn site_here() -> anyhow::Result<Site> {
    let dirs = Dirs::from_env().map_err(ClientError::from)?;
    Ok(Site {
        workspace: std::env::current_dir().context("the current directory is gone")?,
        program: None,
        needed: Vec::new(),
        hidden: vec![dirs.state, dirs.runtime],
        home: std::env::home_dir(),
        homes: homes::homes(),
        programs: homes::programs(),
        ..Site::default()
    })
}
