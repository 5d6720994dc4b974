//! A simulation of a fleet: nodes with drifting clocks that are stopped, killed and lost, and a store that loses its
//! leader or its quorum. Messages are lost, delayed and doubled. The seed determines every move. A failing test prints
//! its seed, and `FLEET_SEED=N` runs that seed alone.

mod facts;
mod machine;
mod random;
mod store;
mod tables;
mod world;

use world::{Coverage, World};

/// Seeds run by default; `FLEET_SEEDS=N` runs more.
const SEEDS: u64 = 150;

/// How long faults happen, in simulated time.
const FAULTS_MS: u64 = 600_000;

/// How long clients work on without faults.
const CALM_MS: u64 = 240_000;

/// How long the fleet has to agree after the last request of a client.
const QUIET_MS: u64 = 60_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_two_nodes_accept_turns_for_one_session_and_no_fact_is_lost() {
    let seeds = match number("FLEET_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("FLEET_SEEDS").unwrap_or(SEEDS),
    };
    let alone = seeds.start() == seeds.end();
    let mut coverage = Coverage::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run(FAULTS_MS);
        world.heal();
        world.run(CALM_MS);
        world.quiet();
        world.run(QUIET_MS);
        world.check_calm();
        if let Some(problem) = world.problem() {
            panic!("{problem}\nreplay it with FLEET_SEED={seed}");
        }
        coverage.add(&world.coverage());
    }
    println!("{coverage:?}");
    if !alone {
        coverage.check();
    }
}
