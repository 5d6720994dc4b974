//! Hostile programs, the stage they run on, and the verdict on each. An [`AttackStage`] has a home with
//! secrets, services of the host, a node and a session to attack. [`AttackStage::scene`] returns the sessions
//! of one isolation level and network setting. The programs of `attacks/` run in them one by one.
//!
//! The stage creates every target. Without a sandbox the programs succeed and harm nothing else.

mod document;
mod families;
mod host;
mod listed;
mod network;
mod outsider;
mod plays;
mod program;
mod runner;
mod scene;
mod stage;
mod verdict;
mod watch;
mod workspaces;

pub use document::table as document_table;
pub use network::NetworkSetting;
pub use program::{Attack, Needs, all};
pub use runner::AttackWorker;
pub use scene::AttackScene;
pub use stage::{AttackStage, SECRET_VARIABLE};
pub use verdict::AttackVerdict;
