//! The violations of a run, and the counts that are printed at the end. All tasks of a run share the ledger.
//! It decides nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The most characters of a violation that are printed.
const TEXT_CHARS_MAX: usize = 1500;

/// The most violations of one seed that are printed. All are counted.
const PRINTED_MAX: u64 = 40;

#[derive(Debug)]
pub struct ChaosLedger {
    seed: u64,
    inner: Mutex<LedgerCounts>,
}

#[derive(Debug, Default)]
struct LedgerCounts {
    violations: u64,
    counts: BTreeMap<String, u64>,
}

impl ChaosLedger {
    pub fn new(seed: u64) -> Self {
        Self { seed, inner: Mutex::default() }
    }

    /// Records a broken promise that `client` found.
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
