//! A plan for a session with a user id of its own (`crate::enter`).

use windlass_protocol::confinement::{Control, Isolation};

use super::{Attempt, Canary, Mount, MountAccess, Plan, PlanError};

impl Plan {
    /// The same plan for a session that has this user and group id outside of its user namespace. The session does not
    /// start unless a canary finds no other user id there. Only root can start it.
    pub fn with_own_user(mut self, uid: u32) -> Result<Self, PlanError> {
        if self.isolation != Isolation::Full {
            return Err(PlanError::NoOwnUser {
                why: "only sessions at level full can have one",
                remedy: "ask for the level full (`--isolation full`)",
            });
        }
        if matches!(self.view.first(), Some(Mount::Machine { access: MountAccess::Write })) {
            return Err(PlanError::NoOwnUser {
                why: "a session that writes the whole machine would need the ids of all users",
                remedy: "name the directories that the session may write (`--writable PATH`)",
            });
        }
        let canary = Canary { control: Control::Privileges, attempt: Attempt::OtherUser { uid } };
        // The first one: only a certain number of canaries is tried.
        self.canaries.insert(0, canary);
        if !self.required.contains(&Control::Privileges) {
            self.required.push(Control::Privileges);
        }
        for report in &mut self.controls {
            if report.control == Control::Privileges {
                report.mechanism = format!("own user id {uid}, {}", report.mechanism);
            }
        }
        self.own_uid = Some(uid);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::confinement::{ControlReport, ControlState};

    use super::*;
    use crate::plan::NetworkPlan;

    fn plan(isolation: Isolation, access: MountAccess) -> Plan {
        let privileges = ControlReport {
            control: Control::Privileges,
            state: ControlState::Enforced,
            mechanism: "seccomp".to_owned(),
            tested: false,
            remedy: None,
        };
        Plan {
            isolation,
            network: NetworkPlan::Own,
            view: vec![Mount::Machine { access }],
            landlock: None,
            sockets: None,
            rlimits: Vec::new(),
            canaries: Vec::new(),
            controls: vec![privileges],
            required: Vec::new(),
            own_uid: None,
        }
    }

    #[test]
    fn a_user_id_of_its_own_is_told_tried_and_required() {
        let plan = plan(Isolation::Full, MountAccess::Read).with_own_user(200_017).unwrap();
        assert_eq!(plan.own_uid, Some(200_017));
        assert_eq!(plan.canaries[0].attempt, Attempt::OtherUser { uid: 200_017 });
        assert_eq!(plan.controls[0].mechanism, "own user id 200017, seccomp");
        assert_eq!(plan.required, [Control::Privileges]);
    }

    #[test]
    fn a_session_that_cannot_have_its_own_user_id_is_refused() {
        for (isolation, access, why) in [
            (Isolation::Landlock, MountAccess::Read, "only sessions at level full"),
            (Isolation::None, MountAccess::Read, "only sessions at level full"),
            (Isolation::Full, MountAccess::Write, "writes the whole machine"),
        ] {
            let error = plan(isolation, access).with_own_user(200_017).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
