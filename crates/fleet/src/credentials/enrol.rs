//! How a machine joins a fleet and renews its certificate: requests to the node that has the fleet's authority.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use windlass_protocol::NodeName;
use windlass_protocol::api::ApiError;
use windlass_protocol::enrolment::{
    ENROLMENT, ENROLMENT_BYTES_MAX, JOIN_PATH, JoinAnswer, JoinRequest, RENEW_PATH, RenewAnswer,
};

use super::error::CredentialsError;
use super::node_files::{AuthoritySite, NodeCredentialFiles};
use super::random::{base64url, sha256};
use super::request::{new_key, request_of};
use super::tls::{NodeTls, check_files, der_of, join_connector};
use super::token::JoinToken;

/// How long one request may take, with its connection.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Why a node could not join, or its certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(
        "no node answers at {address}: {cause}; start the node of the fleet's authority, or check the address"
    )]
    Connect { address: String, cause: std::io::Error },
    #[error(
        "no trusted connection with the node {node} at {address}: {cause}; check that the address leads to that node, \
         and that both clocks are right"
    )]
    Handshake { address: String, node: NodeName, cause: std::io::Error },
    #[error("the node at {address} gave no answer within {} s; try again", ANSWER_WAIT.as_secs())]
    Slow { address: String },
    #[error("the connection with the node at {address} ended: {cause}; try again")]
    Cut { address: String, cause: String },
    /// The authority's own words.
    #[error("{}", .0.message)]
    Refused(ApiError),
    #[error(
        "the answer of the node at {address} cannot be used: {problem}; use the same release on all nodes"
    )]
    BadAnswer { address: String, problem: String },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Where a request goes, and who must answer.
struct EnrolCall<'a> {
    connector: TlsConnector,
    address: &'a str,
    node: &'a NodeName,
    path: &'static str,
}

/// Joins the fleet of the token. The credentials are checked, and written nowhere.
pub async fn join(
    token: &JoinToken,
    node: &NodeName,
) -> Result<(NodeCredentialFiles, JoinAnswer), EnrolError> {
    let key = new_key()?;
    let request = JoinRequest {
        version: ENROLMENT,
        secret: base64url(&token.secret),
        node: node.clone(),
        csr: request_of(&key)?,
    };
    let call = EnrolCall {
        connector: join_connector(token.ca),
        address: &token.address,
        node: &token.authority,
        path: JOIN_PATH,
    };
    let answer: JoinAnswer = call.post(&request).await?;
    call.check_version(answer.version)?;
    if sha256(&der_of(&answer.ca)?) != token.ca {
        return Err(call.bad("its authority is not the one of the token".to_owned()));
    }
    let (ca, certificate) = (answer.ca.clone(), answer.certificate.clone());
    let files = NodeCredentialFiles { ca, certificate, key };
    check_files(&files, node)?;
    Ok((files, answer))
}

/// Gets a new certificate from the authority's node, and uses it for new connections.
pub async fn renew(tls: &NodeTls, authority: &AuthoritySite) -> Result<(), EnrolError> {
    let request = tls.renewal_request()?;
    let call = EnrolCall {
        connector: tls.connector(),
        address: &authority.address,
        node: &authority.node,
        path: RENEW_PATH,
    };
    let answer: RenewAnswer = call.post(&request).await?;
    call.check_version(answer.version)?;
    Ok(tls.install(&answer)?)
}

impl EnrolCall<'_> {
    async fn post<A: DeserializeOwned>(&self, request: &impl Serialize) -> Result<A, EnrolError> {
        let body = serde_json::to_vec(request).map_err(|error| self.bad(error.to_string()))?;
        let exchanged = timeout(ANSWER_WAIT, self.exchange(Bytes::from(body))).await;
        let slow = |_| EnrolError::Slow { address: self.address.to_owned() };
        let (status, body) = exchanged.map_err(slow)??;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| self.bad(error.to_string()));
        }
        match serde_json::from_slice(&body) {
            Ok(refusal) => Err(EnrolError::Refused(refusal)),
            Err(_) => Err(self.bad(format!("the status is {status}"))),
        }
    }

    async fn exchange(&self, body: Bytes) -> Result<(StatusCode, Bytes), EnrolError> {
        let address = || self.address.to_owned();
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|cause| EnrolError::Connect { address: address(), cause })?;
        let stream =
            self.connector.connect(NodeTls::server_name(self.node), stream).await.map_err(
                |cause| {
                    let (address, node) = (address(), self.node.clone());
                    EnrolError::Handshake { address, node, cause }
                },
            )?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.cut(error))?;
        let request = Request::post(self.path)
            .header(HOST, self.address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| self.bad(error.to_string()))?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|error| self.cut(error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ENROLMENT_BYTES_MAX).collect().await;
            let body = body.map_err(|error| self.cut(error))?;
            Ok::<_, EnrolError>((status, body.to_bytes()))
        };
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            // The connection may end right after the answer. If it failed, the request says why.
            _ = connection => answered.await,
        }
    }

    fn check_version(&self, version: u32) -> Result<(), EnrolError> {
        if version == ENROLMENT {
            return Ok(());
        }
        Err(self.bad(format!("it has version {version}, this release knows {ENROLMENT}")))
    }

    fn cut(&self, cause: impl std::fmt::Display) -> EnrolError {
        EnrolError::Cut { address: self.address.to_owned(), cause: cause.to_string() }
    }

    fn bad(&self, problem: String) -> EnrolError {
        EnrolError::BadAnswer { address: self.address.to_owned(), problem }
    }
}
