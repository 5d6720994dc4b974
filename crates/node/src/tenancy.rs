//! Sessions of tenants: which session a request of a tenant's client can name, and what such a client cannot choose for a
//! session. A tenant is a part of the session's id (`windlass_protocol::SessionId`), so the directory, the journal and
//! the fleet need no other record of it.

use windlass_protocol::api::{CreateSession, ForkSession};
use windlass_protocol::confinement::Isolation;
use windlass_protocol::ids::IdError;
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::policy::{HostRules, Network, PolicyRequest, Preset};
use windlass_protocol::{ErrorCode, Owner, SessionId, TenantName, kinds};

use crate::failure::Failure;
use crate::quotas::{TenantQuota, TenantQuotas};

/// What a session of a tenant's client reads of the machine, besides its workspace and its interpreter. Paths that do not
/// exist are passed over. None of them has what belongs to a user of the machine or to another session.
const READABLE: [&str; 22] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/timezone",
];

/// Why a tenant's client cannot name the workspace of a session.
const NO_WORKSPACE: &str = "the client's token belongs to a tenant, and a directory of the machine reaches beyond the \
     tenant; leave `workspace` (`--workspace`) out: the node makes a directory for the session";

/// Completes the names of a request for a session with its tenant: the id, the parent and the owner. `client` is the
/// tenant of the client. A client without a tenant may name one, for example by the session's parent.
pub(crate) fn assign(
    client: Option<&TenantName>,
    quotas: &TenantQuotas,
    wanted: &mut CreateSession,
) -> Result<(), Failure> {
    let tenant = match client {
        Some(client) => {
            if wanted.tenant.as_ref().is_some_and(|named| named != client) {
                return Err(bad_request("`tenant` is not the tenant of the client's token"));
            }
            if wanted.workspace.is_some() {
                return Err(Failure::new(ErrorCode::Forbidden, NO_WORKSPACE));
            }
            if let Some(what) = beyond(wanted, quotas.of(client)?) {
                return Err(beyond_tenant(what));
            }
            client.clone()
        }
        None => match tenant_named(wanted) {
            Some(named) => named,
            None => return Ok(()),
        },
    };
    if wanted.worker.as_deref().is_some_and(is_agent) {
        // The door that an agent uses for its code names sessions without a tenant.
        return Err(bad_request("the session of an agent cannot belong to a tenant"));
    }
    if let Some(parent) = &mut wanted.parent {
        // Only a client of the tenant may leave the tenant's name out.
        if client.is_none() && !parent.is_of(Some(&tenant)) {
            return Err(bad_request("a child belongs to the tenant of its parent"));
        }
        *parent = within(parent, &tenant)?;
    }
    if let Some(id) = &mut wanted.id {
        *id = within(id, &tenant)?;
    }
    if let Some(owner) = &mut wanted.owner {
        *owner = owner_within(owner, &tenant)?;
    }
    wanted.tenant = Some(tenant);
    Ok(())
}

/// The tenant that a client without a tenant names.
fn tenant_named(wanted: &CreateSession) -> Option<TenantName> {
    let of_parent = || wanted.parent.as_ref().and_then(SessionId::tenant);
    let of_id = || wanted.id.as_ref().and_then(SessionId::tenant);
    wanted.tenant.clone().or_else(of_parent).or_else(of_id)
}

/// Completes the names of a request for a twin: it belongs to the tenant of its original.
pub(crate) fn assign_twin(original: &SessionId, wanted: &mut ForkSession) -> Result<(), Failure> {
    let Some(tenant) = original.tenant() else {
        return match wanted.id.as_ref().and_then(SessionId::tenant) {
            Some(_) => Err(bad_request("a twin belongs to the tenant of its original")),
            None => Ok(()),
        };
    };
    if let Some(id) = &mut wanted.id {
        *id = within(id, &tenant)?;
    }
    if let Some(owner) = &mut wanted.owner {
        *owner = owner_within(owner, &tenant)?;
    }
    Ok(())
}

/// Limits a session that a tenant's client creates: its policy, and its journal to `output_quota_bytes`, because all
/// journals share a disk. Follows [`assign`]. A child has its parent's policy.
pub(crate) fn limit(wanted: &mut CreateSession, output_quota_bytes: u64) {
    if let Some(quota) = &mut wanted.output_quota_bytes {
        *quota = output_quota_bytes.min(*quota);
    }
    if wanted.parent.is_some() {
        return;
    }
    // A policy of the configuration file is for sessions of the node's owner.
    let policy = wanted.policy.get_or_insert_default();
    policy.readable = Some(READABLE.map(str::to_owned).to_vec());
    policy.isolation = Some(Isolation::Full);
}

/// What of the request reaches beyond the tenant: something of the machine, of the node or of its owner.
fn beyond(wanted: &CreateSession, quota: &TenantQuota) -> Option<&'static str> {
    let kind = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
    // Kinds of the configuration file, kernels and agents run programs and accounts of the node's owner.
    let is_own_kind = kinds::find(kind).is_none_or(|kind| kind.has_variants);
    let all = [
        (wanted.copy_workspace.is_some(), "`copy_workspace`"),
        (wanted.interpreter.is_some(), "`interpreter`"),
        // The node looks for the interpreter there, runs a script of that name, and makes its installation readable.
        (wanted.env.contains_key("PATH"), "`env.PATH`"),
        (wanted.environment.is_some(), "`environment`"),
        (wanted.allow_packages, "`allow_packages`"),
        (wanted.agent.is_some(), "`agent`"),
        (wanted.placement.is_some(), "`placement`"),
        (is_own_kind, "this `worker`"),
    ];
    let named = all.into_iter().find_map(|(is_named, what)| is_named.then_some(what));
    named.or_else(|| beyond_in_policy(wanted.policy.as_ref()?, quota))
}

fn beyond_in_policy(policy: &PolicyRequest, quota: &TenantQuota) -> Option<&'static str> {
    let is_weak = |isolation| matches!(isolation, Some(Isolation::Landlock | Isolation::None));
    let is_network_beyond = match &policy.network {
        None | Some(Network::None) => false,
        Some(Network::Hosts(HostRules(rules))) => !rules.iter().all(|rule| quota.allows(rule)),
        Some(Network::Open) => true,
    };
    let all = [
        (policy.preset == Some(Preset::Open), "the preset `open`"),
        (is_weak(policy.isolation), "an isolation other than `full`"),
        (policy.readable.is_some(), "`policy.readable`"),
        (!policy.writable.is_empty(), "`policy.writable`"),
        (!policy.shown.is_empty(), "`policy.shown`"),
        (is_network_beyond, "`policy.network`"),
        (!policy.environment.is_empty(), "`policy.environment`"),
        (!policy.tools.is_empty(), "`policy.tools`"),
        (!policy.secrets.is_empty(), "`policy.secrets`"),
        (policy.required.is_some(), "`policy.required`"),
    ];
    all.into_iter().find_map(|(is_named, what)| is_named.then_some(what))
}

fn within(id: &SessionId, tenant: &TenantName) -> Result<SessionId, Failure> {
    SessionId::within(id.as_str(), tenant).map_err(|error| bad_id(&error))
}

fn owner_within(owner: &Owner, tenant: &TenantName) -> Result<Owner, Failure> {
    Owner::within(owner.as_str(), tenant).map_err(|error| bad_id(&error))
}

fn bad_id(error: &IdError) -> Failure {
    bad_request(&error.to_string())
}

fn bad_request(message: &str) -> Failure {
    Failure::new(ErrorCode::BadRequest, message)
}

fn beyond_tenant(what: &str) -> Failure {
    let message = format!(
        "the client's token belongs to a tenant, and {what} reaches beyond the tenant; \
         it needs a token without a tenant, such as one of the scope run"
    );
    Failure::new(ErrorCode::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(request: Value) -> CreateSession {
        serde_json::from_value(request).unwrap()
    }

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).unwrap()
    }

    /// The id, the parent, the owner and the tenant after the request is assigned.
    fn assigned(client: Option<&str>, request: Value) -> Result<Value, ErrorCode> {
        let mut wanted = wanted(request);
        let assigned = assign(client.map(tenant).as_ref(), &TenantQuotas::default(), &mut wanted);
        assigned.map_err(|failure| failure.code)?;
        Ok(json!([wanted.id, wanted.parent, wanted.owner, wanted.tenant]))
    }

    #[test]
    fn the_names_of_a_request_belong_to_the_tenant() {
        let acme = Some("acme");
        let bad = Err(ErrorCode::BadRequest);
        for (client, request, expected) in [
            (None, json!({"id": "a"}), Ok(json!(["a", null, null, null]))),
            (None, json!({"id": "a@b"}), Ok(json!(["a@b", null, null, "b"]))),
            (None, json!({"id": "a", "tenant": "b"}), Ok(json!(["a@b", null, null, "b"]))),
            (None, json!({"tenant": "b"}), Ok(json!([null, null, null, "b"]))),
            (None, json!({"id": "a@c", "tenant": "b"}), bad.clone()),
            (None, json!({"parent": "p@b", "id": "a"}), Ok(json!(["a@b", "p@b", null, "b"]))),
            (None, json!({"parent": "p", "id": "a@b"}), bad.clone()),
            (None, json!({"parent": "p@b", "id": "a@c"}), bad.clone()),
            (None, json!({"id": "a@b", "worker": "agent:codex"}), bad.clone()),
            (acme, json!({"id": "a"}), Ok(json!(["a@acme", null, null, "acme"]))),
            (acme, json!({"id": "a@acme"}), Ok(json!(["a@acme", null, null, "acme"]))),
            (acme, json!({"id": "a@other"}), bad.clone()),
            (acme, json!({"tenant": "other"}), bad.clone()),
            (acme, json!({"parent": "p"}), Ok(json!([null, "p@acme", null, "acme"]))),
            (acme, json!({"parent": "p@other"}), bad.clone()),
            (acme, json!({"owner": "me"}), Ok(json!([null, null, "me@acme", "acme"]))),
            (acme, json!({"owner": "me@other"}), bad.clone()),
        ] {
            assert_eq!(assigned(client, request.clone()), expected, "{client:?} {request}");
        }
    }

    #[test]
    fn a_tenant_chooses_nothing_beyond_its_own() {
        for request in [
            json!({"workspace": "/"}),
            json!({"copy_workspace": "all"}),
            json!({"interpreter": "/bin/sh"}),
            json!({"env": {"PATH": "/srv/other/bin:/usr/bin"}}),
            json!({"environment": "data"}),
            json!({"allow_packages": true}),
            json!({"placement": {"node": "n1"}}),
            json!({"worker": "jupyter:ir"}),
            json!({"worker": "agent:codex"}),
            json!({"worker": "of-the-file"}),
            json!({"policy": {"preset": "open"}}),
            json!({"policy": {"isolation": "none"}}),
            json!({"policy": {"isolation": "landlock"}}),
            json!({"policy": {"readable": []}}),
            json!({"policy": {"writable": ["/srv"]}}),
            json!({"policy": {"shown": ["~/.ssh"]}}),
            json!({"policy": {"network": "open"}}),
            json!({"policy": {"network": {"hosts": ["localhost:8080"]}}}),
            json!({"policy": {"environment": ["HOME"]}}),
            json!({"policy": {"tools": ["*"]}}),
            json!({"policy": {"required": []}}),
        ] {
            // A value that is not valid would be refused before.
            if let Ok(mut parsed) = serde_json::from_value::<CreateSession>(request.clone()) {
                let none = TenantQuotas::default();
                let refused = assign(Some(&tenant("acme")), &none, &mut parsed).unwrap_err();
                assert_eq!(refused.code, ErrorCode::Forbidden, "{request}");
            }
        }
        for request in [
            json!({}),
            json!({"worker": "shell", "env": {"A": "1"}, "output_quota_bytes": 2000}),
            json!({"output_quota_bytes": 10}),
            json!({"policy": {"preset": "read-only", "network": "none", "hidden": ["/usr/src"]}}),
        ] {
            let mut wanted = wanted(request.clone());
            assign(Some(&tenant("acme")), &TenantQuotas::default(), &mut wanted).unwrap();
            limit(&mut wanted, 1000);
            assert!(wanted.output_quota_bytes.is_none_or(|quota| quota <= 1000), "{request}");
            let policy = wanted.policy.unwrap();
            assert_eq!(policy.isolation, Some(Isolation::Full), "{request}");
            assert!(!policy.readable.unwrap().contains(&"/".to_owned()), "{request}");
        }
    }

    #[test]
    fn a_twin_belongs_to_the_tenant_of_its_original() {
        for (original, id, expected) in [
            ("a", "b", Some("b")),
            ("a", "b@acme", None),
            ("a@acme", "b", Some("b@acme")),
            ("a@acme", "b@acme", Some("b@acme")),
            ("a@acme", "b@other", None),
        ] {
            let original = SessionId::parse(original).unwrap();
            let mut twin: ForkSession = serde_json::from_value(json!({"id": id})).unwrap();
            let given = assign_twin(&original, &mut twin).ok().and(twin.id);
            assert_eq!(given.as_ref().map(SessionId::as_str), expected, "{original} {id}");
        }
    }
}
