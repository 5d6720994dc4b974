//! Failures between a client and its node. Each has a stable code, a message that names the request
//! or path, and a remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, ApiError};
use windlass_protocol::frame::EncodeError;

use crate::dirs::DirsError;
use crate::named_tokens::NamedTokenError;
use crate::start::NodeStartError;
use crate::tls::TlsError;
use crate::token::TokenError;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The node answered with an error.
    #[error("{}", .0.message)]
    Api(ApiError),
    #[error(transparent)]
    Dirs(#[from] DirsError),
    /// Nothing was sent.
    #[error("{what} cannot be sent: {cause}")]
    TooLarge { what: String, cause: EncodeError },
    /// No node listens, or it stopped listening.
    #[error("no node answers at {address}: {cause}")]
    Unreachable { address: String, cause: io::Error },
    /// The same of a node that is reached over TCP.
    #[error("no node answers at {address}: {cause}")]
    RemoteUnreachable { address: String, cause: io::Error },
    #[error(
        "the node's address is not a plain URL such as http://127.0.0.1:8040 or https://node.example:8040"
    )]
    BadUrl,
    /// The client cannot set up TLS, or the TLS handshake with the node fails.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The message does not repeat the token.
    #[error("the node's token is malformed: a token has 64 hexadecimal digits")]
    BadToken,
    /// A node that is reached over TCP needs a token, and nothing names one.
    #[error("no token for the node: WINDLASS_TOKEN is not set, and there is no {}", path.display())]
    NoToken { path: PathBuf },
    /// A command reads or writes files of the node of this machine, and WINDLASS_URL is set.
    #[error("`{command}` is for the node of this machine, and WINDLASS_URL is set")]
    LocalOnly { command: String },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    NamedToken(#[from] NamedTokenError),
    /// The request left and no answer came. It is unknown whether the node acted on the request.
    #[error("the connection to the node ended before its answer came: {cause}")]
    Cut { cause: String },
    #[error("this client speaks API {API}, the node speaks {node}")]
    VersionMismatch { node: String },
    #[error(transparent)]
    StartFailed(#[from] NodeStartError),
    #[error("the node did not answer {request} within {} ms", after.as_millis())]
    Timeout { request: String, after: Duration },
    #[error("the node's answer to {request} cannot be understood: {cause}")]
    BadAnswer { request: String, cause: String },
}

impl ClientError {
    /// A name that does not change between releases.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Api(error) => error.code.as_str(),
            Self::Dirs(_) => "bad_directory",
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge.as_str(),
            Self::Unreachable { .. } | Self::RemoteUnreachable { .. } => "unreachable",
            Self::BadUrl => "bad_url",
            Self::Tls(error) => error.code(),
            Self::BadToken | Self::NoToken { .. } | Self::Token(_) => "bad_token",
            Self::LocalOnly { .. } => "local_only",
            Self::NamedToken(error) => error.code(),
            Self::Cut { .. } => "connection_lost",
            Self::VersionMismatch { .. } => ErrorCode::VersionMismatch.as_str(),
            Self::StartFailed(_) => "start_failed",
            Self::Timeout { .. } => "timeout",
            Self::BadAnswer { .. } => "bad_answer",
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Api(error) => error.remedy.clone(),
            Self::Dirs(error) => error.remedy(),
            Self::TooLarge { .. } => "use a shorter path".into(),
            Self::Unreachable { .. } => "start a node with: windlass up".into(),
            Self::RemoteUnreachable { .. } => {
                "check WINDLASS_URL; on the node's machine, `windlass status` shows the address that the node \
                 listens at, and `windlass up --listen ADDRESS:PORT` starts a node that listens"
                    .into()
            }
            Self::BadUrl => {
                "set WINDLASS_URL to the URL that `windlass status` prints on the node's machine"
                    .into()
            }
            Self::Tls(error) => error.remedy(),
            Self::BadToken => "set WINDLASS_TOKEN to what `windlass token` prints".into(),
            Self::NoToken { .. } => {
                "set WINDLASS_TOKEN to what `windlass token` prints on the node's machine, or unset WINDLASS_URL to \
                 use the node of this machine"
                    .into()
            }
            Self::LocalOnly { command } => {
                format!("run it on the node's machine: env -u WINDLASS_URL {command}")
            }
            Self::Token(error) => error.remedy(),
            Self::NamedToken(error) => error.remedy(),
            Self::Cut { .. } => {
                "check the session before you repeat the request: the node may have carried it out"
                    .into()
            }
            Self::VersionMismatch { .. } => {
                "install the same release on both sides, then restart the node with: \
                 windlass down --keep-sessions && windlass up"
                    .into()
            }
            Self::StartFailed(error) => error.remedy(),
            Self::Timeout { .. } => {
                "see whether the node is healthy with: windlass status".to_owned()
            }
            Self::BadAnswer { .. } => {
                "check that a windlass node, and not another program, listens on the socket".into()
            }
        }
    }

    /// Whether no node listens at all: there is no socket, or nobody listens at it.
    pub fn is_absence(&self) -> bool {
        let Self::Unreachable { cause, .. } = self else { return false };
        matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    }

    /// Whether the connection to the node could not be made, so that nothing was sent.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::RemoteUnreachable { .. })
    }

    /// The node's own code, where it answered with one.
    pub fn api_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Api(error) => Some(error.code),
            Self::VersionMismatch { .. } => Some(ErrorCode::VersionMismatch),
            _ => None,
        }
    }
}
