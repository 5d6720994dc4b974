//! The parts of `windlass top`: a pure model, the view that draws it, the keys, and what reaches node and terminal.
//! The command itself is in `commands::top`.

pub mod columns;
pub mod feed;
pub mod keys;
pub mod model;
pub mod screen;
pub mod tail;
pub mod view;

#[cfg(test)]
mod tests;
