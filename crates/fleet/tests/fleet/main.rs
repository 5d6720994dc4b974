//! The fleet's store, membership, directory and copies against three real servers of NATS.

mod copies;
mod engine;
mod membership;
mod records;

/// Three servers, or a skipped test if there is no `nats-server`.
macro_rules! three_servers {
    () => {
        match crate::engine::Engine::start().await {
            Some(engine) => engine,
            None => return,
        }
    };
}
pub(crate) use three_servers;
