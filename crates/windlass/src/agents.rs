//! The agent clients on this machine and their configuration files: which clients there are, where their
//! files are, how the Windlass entry looks in them, and how to change a file safely. Prints nothing; the
//! commands `install` and `uninstall` do.

pub mod client;
pub mod config_paths;
pub mod diff;
pub mod document;
mod json;
pub mod launch;
pub mod plan;
pub mod store;
#[cfg(test)]
mod tests;
mod toml;
