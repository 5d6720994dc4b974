//! Who gets a certificate: invitations, renewals and removals.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::TcpListener;
use windlass_protocol::enrolment::{
    ENROLMENT, FleetSettings, JOIN_PATH, JoinRequest, RENEW_PATH, RenewRequest,
};
use windlass_protocol::{ErrorCode, NodeName};

use super::super::certificate::CertificateFacts;
use super::super::random::base64url;
use super::super::request::{new_key, request_of};
use super::super::{
    AuthoritySite, EnrolError, FleetAuthority, INVITATIONS_MAX, JoinError, JoinToken,
    NODE_VALID_MS, NewInvitation, NodeTls, join, renew,
};
use super::{TestDir, credentials, named, now_ms};

const HOUR_MS: u64 = 3_600_000;

fn invite(authority: &FleetAuthority, node: Option<&str>) -> JoinToken {
    let invitation = NewInvitation {
        address: "127.0.0.1:1".to_owned(),
        authority: named("n1"),
        node: node.map(named),
        valid_for_ms: HOUR_MS,
    };
    authority.invite(invitation, now_ms()).unwrap()
}

fn request(token: &JoinToken, node: &str) -> JoinRequest {
    JoinRequest {
        version: ENROLMENT,
        secret: base64url(&token.secret),
        node: named(node),
        csr: request_of(&new_key().unwrap()).unwrap(),
    }
}

fn node_of(pem: &str) -> Option<NodeName> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    CertificateFacts::read(&der).map(|facts| facts.node)
}

#[test]
fn an_invitation_is_for_one_node_once_until_it_expires() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let token = invite(&authority, None);
    let unknown = |found| matches!(found, Err(JoinError::UnknownInvitation));

    let late = authority.join(&request(&token, "n2"), now_ms() + HOUR_MS + 1_000);
    assert!(matches!(late, Err(JoinError::Expired)));
    let foreign = invite(&dir.authority("b"), None);
    assert!(unknown(authority.join(&request(&foreign, "n2"), now_ms())));
    for secret in ["", "x", &"A".repeat(43), &"A".repeat(10_000)] {
        let guessed = JoinRequest { secret: secret.to_owned(), ..request(&token, "n2") };
        assert!(unknown(authority.join(&guessed, now_ms())));
    }
    let older = JoinRequest { version: 2, ..request(&token, "n2") };
    assert!(matches!(authority.join(&older, now_ms()), Err(JoinError::Version(2))));
    let bad = JoinRequest { csr: "-".to_owned(), ..request(&token, "n2") };
    assert_eq!(authority.join(&bad, now_ms()).unwrap_err().code(), ErrorCode::BadRequest);

    // None of the failures has used the invitation up.
    let issued = authority.join(&request(&token, "n2"), now_ms()).unwrap();
    assert_eq!(node_of(&issued.certificate), Some(named("n2")));
    assert_eq!(issued.ca, authority.certificate());
    assert!(unknown(authority.join(&request(&token, "n3"), now_ms())));
    // Another process sees the same.
    let reopened = FleetAuthority::open(&dir.of("a")).unwrap().unwrap();
    assert!(unknown(reopened.join(&request(&token, "n3"), now_ms())));
    assert_eq!(reopened.members().unwrap(), [named("n2")]);
}

#[test]
fn a_name_that_has_joined_needs_an_invitation_of_its_own() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    authority.join(&request(&invite(&authority, None), "n2"), now_ms()).unwrap();
    let again = authority.join(&request(&invite(&authority, None), "n2"), now_ms());
    assert!(matches!(again, Err(JoinError::NameTaken(_))));
    let token = invite(&authority, Some("n2"));
    let other = authority.join(&request(&token, "n3"), now_ms());
    assert!(matches!(other, Err(JoinError::BoundTo(_))));
    authority.join(&request(&token, "n2"), now_ms()).unwrap();
}

#[test]
fn a_removed_name_gets_no_certificate_until_its_last_one_has_expired() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    authority.join(&request(&invite(&authority, None), "n2"), now_ms()).unwrap();
    let renewal = || RenewRequest { version: 1, csr: request_of(&new_key().unwrap()).unwrap() };
    let renewed = authority.renew(&renewal(), &named("n2"), now_ms()).unwrap();
    assert_eq!(node_of(&renewed.certificate), Some(named("n2")));
    let stranger = authority.renew(&renewal(), &named("n3"), now_ms());
    assert!(matches!(stranger, Err(JoinError::NotMember(_))));

    let before = invite(&authority, Some("n2"));
    authority.remove_node(&named("n2"), now_ms()).unwrap();
    assert!(authority.remove_node(&named("n2"), now_ms()).is_err());
    let removed: Vec<NodeName> = authority.removed(now_ms()).unwrap().into_keys().collect();
    assert_eq!(removed, [named("n2")]);
    let refused = authority.renew(&renewal(), &named("n2"), now_ms());
    assert!(matches!(refused, Err(JoinError::Removed(_))));
    let void = authority.join(&request(&before, "n2"), now_ms());
    assert!(matches!(void, Err(JoinError::UnknownInvitation)));
    let after = invite(&authority, Some("n2"));
    let refused = authority.join(&request(&after, "n2"), now_ms());
    assert!(matches!(refused, Err(JoinError::Removed(_))));

    let later = now_ms() + NODE_VALID_MS + 1_000;
    assert!(authority.removed(later).unwrap().is_empty());
    let invitation = NewInvitation {
        address: String::new(),
        authority: named("n1"),
        node: None,
        valid_for_ms: HOUR_MS,
    };
    let token = authority.invite(invitation, later).unwrap();
    authority.join(&request(&token, "n2"), later).unwrap();
}

#[test]
fn open_invitations_are_bounded_and_expired_ones_make_room() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let mut records = super::super::records::AuthorityRecords::read(&dir.of("a")).unwrap();
    let record = super::super::records::InvitationRecord {
        sha256: base64url(&[0; 32]),
        expires_at_ms: now_ms() + HOUR_MS,
        node: None,
    };
    records.invitations = vec![record; INVITATIONS_MAX];
    records.write(&dir.of("a")).unwrap();
    let invitation = || NewInvitation {
        address: String::new(),
        authority: named("n1"),
        node: None,
        valid_for_ms: 1,
    };
    assert!(authority.invite(invitation(), now_ms()).is_err());
    authority.invite(invitation(), now_ms() + 2 * HOUR_MS).unwrap();
}

#[test]
fn a_request_is_signed_for_the_given_name_and_nothing_that_it_asks_for() {
    let dir = TestDir::new();
    let authority = dir.authority("a");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["n1.node.windlass".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let csr = params.serialize_request(&key).unwrap();
    let signed = authority.sign(&csr.pem().unwrap(), &named("n2")).unwrap();
    assert_eq!(node_of(&signed), Some(named("n2")));
    let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
    assert!(!certificate.is_ca());
    assert_eq!(certificate.subject().iter().count(), 0);

    // The sender must have the key: one changed bit of the signature is refused.
    let mut bytes = csr.der().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let changed = pem("CERTIFICATE REQUEST", &bytes);
    assert!(authority.sign(&changed, &named("n2")).is_err());
    let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let csr = CertificateParams::default().serialize_request(&other).unwrap();
    assert!(authority.sign(&csr.pem().unwrap(), &named("n2")).is_err());
    assert!(authority.sign(&"A".repeat(100_000), &named("n2")).is_err());
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// Serves the two requests for as long as the test runs. Returns the address.
async fn serve(authority: Arc<FleetAuthority>, tls: NodeTls) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = tls.acceptor().accept(stream).await else { continue };
            let peer = NodeTls::peer_of(stream.get_ref().1);
            let authority = authority.clone();
            let service = service_fn(move |request| {
                let (authority, peer) = (authority.clone(), peer.clone());
                async move { Ok::<_, Infallible>(answer(&authority, peer, request).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    address
}

async fn answer(
    authority: &FleetAuthority,
    peer: Option<NodeName>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let servers = vec!["nats://me:key@127.0.0.1:4222".to_owned()];
    let settings = FleetSettings { servers, replicas: 3, lease_ms: 30_000, lost_after_ms: 1 };
    let answered = match (path.as_str(), peer) {
        (JOIN_PATH, None) => authority
            .join(&serde_json::from_slice(&body).unwrap(), now_ms())
            .map(|issued| serde_json::to_vec(&issued.answer(settings)).unwrap()),
        (RENEW_PATH, Some(peer)) => authority
            .renew(&serde_json::from_slice(&body).unwrap(), &peer, now_ms())
            .map(|answer| serde_json::to_vec(&answer).unwrap()),
        other => panic!("unexpected request {other:?}"),
    };
    match answered {
        Ok(body) => Response::new(Full::from(body)),
        Err(error) => {
            let refusal = windlass_protocol::api::ApiError {
                code: error.code(),
                message: error.to_string(),
                remedy: String::new(),
                retryable: false,
            };
            let mut response = Response::new(Full::from(serde_json::to_vec(&refusal).unwrap()));
            *response.status_mut() = hyper::StatusCode::FORBIDDEN;
            response
        }
    }
}

#[tokio::test]
async fn a_machine_joins_by_its_token_and_renews_its_certificate() {
    let dir = TestDir::new();
    let authority = Arc::new(dir.authority("a"));
    let tls = credentials(&authority, &dir.of("a"), "n1");
    let address = serve(authority.clone(), tls).await;
    let token = JoinToken { address: address.clone(), ..invite(&authority, None) };
    let token = JoinToken::parse(&token.to_line()).unwrap();

    let (files, answer) = join(&token, &named("n2")).await.unwrap();
    assert_eq!(answer.settings.replicas, 3);
    files.write(&dir.of("b")).unwrap();
    let site = AuthoritySite::new(named("n1"), address);
    site.write(&dir.of("b")).unwrap();
    assert_eq!(AuthoritySite::read(&dir.of("b")).unwrap(), site);
    let two = NodeTls::load(&dir.of("b")).unwrap();
    assert_eq!(two.node(), named("n2"));

    let again = join(&token, &named("n3")).await.unwrap_err();
    assert!(matches!(again, EnrolError::Refused(_)), "{again}");
    assert!(again.to_string().contains("unknown or was used"), "{again}");

    let before = std::fs::read_to_string(dir.of("b").join("node.pem")).unwrap();
    renew(&two, &site).await.unwrap();
    assert_ne!(std::fs::read_to_string(dir.of("b").join("node.pem")).unwrap(), before);
    authority.remove_node(&named("n2"), now_ms()).unwrap();
    let refused = renew(&two, &site).await.unwrap_err();
    assert!(refused.to_string().contains("was removed"), "{refused}");
}

#[tokio::test]
async fn a_machine_gives_its_secret_to_no_other_fleet_and_to_no_other_member() {
    let dir = TestDir::new();
    let authority = Arc::new(dir.authority("a"));
    let token = invite(&authority, None);
    let other = Arc::new(dir.authority("b"));
    let impostors =
        [credentials(&other, &dir.of("b"), "n1"), credentials(&authority, &dir.of("c"), "n3")];
    for tls in impostors {
        // The handshake fails, so no request with the secret leaves.
        let address = serve(other.clone(), tls).await;
        let token = JoinToken { address, ..token.clone() };
        let error = join(&token, &named("n2")).await.unwrap_err();
        assert!(matches!(error, EnrolError::Handshake { .. }), "{error}");
    }
    let gone = JoinToken { address: "127.0.0.1:1".to_owned(), ..token };
    let error = join(&gone, &named("n2")).await.unwrap_err();
    assert!(matches!(error, EnrolError::Connect { .. }), "{error}");
}
