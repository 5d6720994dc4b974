//! Why credentials of a fleet cannot be read, made or used.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot {act} {path}: {cause}")]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
    #[error("{path} can be read by others (mode {mode:o}); run: chmod go= {path}")]
    OpenToOthers { path: PathBuf, mode: u32 },
    #[error("{path} belongs to user {owner}, not to you; use a directory of your own")]
    OtherOwner { path: PathBuf, owner: u32 },
    #[error("{path} is not a directory; remove it, or name another directory in `credentials`")]
    NotADirectory { path: PathBuf },
    #[error(
        "there is no {path}: make the credentials with `windlass fleet init` or `windlass fleet join`"
    )]
    Absent { path: PathBuf },
    #[error(
        "{path} cannot be used: {problem}; get new credentials with `windlass fleet join`, or restore the file"
    )]
    Unusable { path: PathBuf, problem: String },
    #[error(
        "there is a {path} already: this machine has the authority of a fleet; \
         `windlass fleet leave --force` removes it"
    )]
    AuthorityExists { path: PathBuf },
    #[error("cannot make a key or a certificate: {0}")]
    Make(String),
    #[error(
        "the certificate signing request is refused: {0}; send a request with a key of ECDSA P-256"
    )]
    Request(String),
    #[error("the certificate cannot be used: {0}; get a new one with `windlass fleet join`")]
    Certificate(String),
    #[error("there are {0} open invitations, and no more can be made; wait until some expire")]
    TooManyInvitations(usize),
}
