//! Why a case failed.

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CaseFailure(pub String);

/// The result of a step of a case.
pub(crate) type Step<T = ()> = Result<T, CaseFailure>;

/// A failure with this text.
pub(crate) fn fail<T>(text: impl Into<String>) -> Step<T> {
    Err(CaseFailure(text.into()))
}
