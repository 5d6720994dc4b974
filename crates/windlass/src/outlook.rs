//! Predicts how a policy would be enforced for a session in the current directory: surveys the machine and
//! the files, and makes a plan. Starts no session and needs no node.

use anyhow::Context;
use windlass_client::{ClientError, Dirs};
use windlass_confine::plan::depth;
use windlass_confine::survey::{FileSurvey, homes};
use windlass_confine::{MachineSupport, Plan, PlanError, SurveyInput, plan, survey};
use windlass_protocol::policy::Policy;

/// The predicted enforcement of a policy, for one workspace on one machine.
#[derive(Debug)]
pub struct Outlook {
    pub place: FileSurvey,
    /// How a session would be confined, even if a required control is missing. `None` if the level is not
    /// available.
    pub plan: Option<Plan>,
    /// Why a session would not start.
    pub refused: Option<PlanError>,
}

impl Outlook {
    pub fn new(policy: &Policy, machine: &MachineSupport, site: &SurveyInput) -> Self {
        let place = survey(policy, site, depth(policy, machine));
        let refused = plan(policy, machine, &place).err();
        let lenient = Policy { required: Vec::new(), ..policy.clone() };
        let plan = plan(&lenient, machine, &place).ok();
        Self { place, plan, refused }
    }
}

/// The current directory as a workspace, as the node of this user would see it.
pub fn site_here() -> anyhow::Result<SurveyInput> {
    let dirs = Dirs::from_env().map_err(ClientError::from)?;
    Ok(SurveyInput {
        workspace: std::env::current_dir().context("the current directory does not exist")?,
        node_files: Vec::new(),
        needed: Vec::new(),
        hidden: vec![dirs.state, dirs.runtime],
        home: std::env::home_dir(),
        homes: homes::homes(),
        programs: homes::programs(),
        ..SurveyInput::default()
    })
}
