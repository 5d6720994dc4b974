//! What a run has found and done: violations, and counts of everything that is told at the end. Shared by
//! all tasks of a run; it decides nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Characters of a violation that are printed.
const TEXT_CHARS_MAX: usize = 1500;

/// Violations of one seed that are printed; the rest is counted.
const PRINTED_MAX: u64 = 40;

#[derive(Debug)]
pub struct Ledger {
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    violations: u64,
    counts: BTreeMap<String, u64>,
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self { seed, inner: Mutex::default() }
    }

    /// A promise that did not hold, as `client` saw it.
    pub fn violation(&self, client: &str, kind: &str, text: &str) {
        let number = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.violations += 1;
            *inner.counts.entry(format!("violation {kind}")).or_default() += 1;
            inner.violations
        };
        if number <= PRINTED_MAX {
            let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
            println!("VIOLATION seed={} client={client} {kind} {text}", self.seed);
        }
    }

    pub fn count(&self, what: &str) {
        self.add(what, 1);
    }

    pub fn add(&self, what: &str, number: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        *inner.counts.entry(what.to_owned()).or_default() += number;
    }

    pub fn violations(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).violations
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }
}
