//! A simulation of the link between node and keeper: connections break at any byte, either side stalls,
//! nodes are killed, two nodes claim one keeper. The seed determines every move. A failing test prints its
//! seed, and `LINK_SEED=N` runs that seed alone.

mod world;

use world::World;

/// Seeds run by default; `LINK_SEEDS=N` runs more.
const SEEDS: u64 = 400;

/// Random moves per seed. After them, the world heals and the totals are checked.
const MOVES: usize = 600;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..MOVES {
        world.random_move();
        world.check()?;
    }
    world.heal();
    world.check()?;
    world.check_complete()
}

#[test]
fn nothing_is_lost_doubled_or_reordered_whatever_is_cut_or_killed() {
    let seeds = match number("LINK_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("LINK_SEEDS").unwrap_or(SEEDS),
    };
    let mut coverage = world::Coverage::default();
    for seed in seeds {
        if let Err(problem) = run(seed) {
            panic!("{problem}\nreplay it with LINK_SEED={seed}");
        }
        coverage.add(&World::coverage_of(seed, MOVES));
    }
    coverage.check();
}
