//! Hostile programs, the stage they play on, and what came of each. A [`Stage`] has a home with
//! secrets, services of the host, a node and a session to attack; [`Stage::scene`] gives the sessions
//! of one isolation level and network setting, in which the programs of `attacks/` run one by one.
//!
//! Every target is made by the stage: without a sandbox the programs succeed and harm nothing.

mod document;
mod families;
mod host;
mod listed;
mod network;
mod outsider;
mod plays;
mod program;
mod scene;
mod stage;
mod verdict;
mod watch;
mod workspaces;

pub use document::table as document_table;
pub use network::NetworkSetting;
pub use program::{Attack, Needs, all};
pub use scene::Scene;
pub use stage::{SECRET_VARIABLE, Stage};
pub use verdict::Verdict;
