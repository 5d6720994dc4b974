//! Random choices from a seed: the same seed gives the same choices on every machine.

/// A generator (SplitMix64). Each operation of each client has its own, so the draws of one operation never
/// change the next operation.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator for a list of numbers, such as seed, client and operation.
    pub fn of(path: &[u64]) -> Self {
        let mut random = Self(0x5851_f42d_4c95_7f2d);
        for number in path {
            random.0 ^= *number;
            random.0 = random.next();
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or_default()
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `true` in `percent` of all calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.below(choices.len() as u64);
        &choices[usize::try_from(at).unwrap_or_default()]
    }

    /// One of `choices`, by weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(T, u64)]) -> T {
        let whole: u64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(whole);
        for (choice, weight) in choices {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *choice,
            }
        }
        choices[0].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_path_gives_the_same_choices_and_another_path_gives_others() {
        let draw = |path: &[u64]| {
            let mut random = Random::of(path);
            [random.next(), random.next(), random.below(10), random.within(3, 5)]
        };
        assert_eq!(draw(&[7, 1, 2]), draw(&[7, 1, 2]));
        assert_ne!(draw(&[7, 1, 2]), draw(&[7, 2, 1]));
        assert_ne!(draw(&[7, 1]), draw(&[8, 1]));
    }

    #[test]
    fn a_weighted_choice_never_gives_what_weighs_nothing() {
        let mut random = Random::of(&[1]);
        let drawn = |_| random.weighted(&[('a', 0), ('b', 3), ('c', 1)]);
        let all: std::collections::BTreeSet<char> = (0..200).map(drawn).collect();
        assert_eq!(all.into_iter().collect::<String>(), "bc");
    }
}
