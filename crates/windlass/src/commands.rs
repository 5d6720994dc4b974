//! The commands, one file each.

pub mod attach;
pub mod completions;
pub mod doctor;
pub mod down;
pub mod egress;
pub mod environments;
pub mod hold_server;
pub mod install;
pub mod interrupt;
pub mod keeper;
pub mod kill;
pub mod logs;
pub mod man;
pub mod mcp;
pub mod node;
pub mod nursery;
pub mod policy;
pub mod ps;
pub mod repl;
pub mod run;
pub mod servers;
pub mod status;
pub mod token;
pub mod tools;
pub mod uninstall;
pub mod up;
