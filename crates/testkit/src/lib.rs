//! Helpers for tests with real processes: a node of a test's own, load on the machine, facts about
//! processes, and waits with a deadline. For tests only; nothing that is shipped uses it.
//!
//! No process started through [`TestNode`] or [`Load`] outlives it, also when the test panics.

mod load;
mod node;
pub mod processes;
mod python;
mod wait;

pub use load::Load;
pub use node::{TestNode, TestNodeBuilder};
pub use python::python;
pub use wait::{turn_ended, wait_for_event, within};
