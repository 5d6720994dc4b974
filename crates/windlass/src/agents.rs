//! The agent clients on this machine and their configuration files: who they are, where their
//! files are, how our server stands in them, and how a file is changed without harm. Says nothing
//! to the terminal; the commands `install` and `uninstall` do.

pub mod client;
pub mod diff;
pub mod document;
mod json;
pub mod launch;
pub mod places;
pub mod plan;
pub mod store;
#[cfg(test)]
mod tests;
mod toml;
