//! The secrets of this node: their values, and the certificate authority of the egress proxy. Both are files of mode
//! 600 in the state directory, which sessions cannot read. A value leaves the node only in requests of the egress
//! proxy.

mod live_rules;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use windlass_audit::AuditLog;
use windlass_egress::{Authority, AuthorityError, SecretSource, SecretValue, SessionSecrets};
use windlass_protocol::api::{SecretInfo, SecretList};
use windlass_protocol::policy::{Policy, SecretName, SecretRule, SecretRuleSet};
use windlass_protocol::{ErrorCode, SessionId};

use crate::audit::of_use_of_secret;
use crate::failure::Failure;
pub(crate) use live_rules::LiveRules;

/// Maximum number of secrets of a node.
const SECRETS_MAX: usize = 1024;

/// The permissions of files with a value or a key.
const PRIVATE: u32 = 0o600;

/// The permissions of the certificates that sessions read.
const READABLE: u32 = 0o644;

/// The file with the certificates that sessions trust.
const BUNDLE: &str = "certificates.pem";

/// Variables by which programs find the certificates that they trust.
const TRUST_VARIABLES: [&str; 11] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "CODEX_CA_CERTIFICATE",
];

/// The secrets of this node.
#[derive(Debug)]
pub(crate) struct Secrets {
    store: Arc<SecretStore>,
    dir: PathBuf,
    /// Where the certificates are that sessions trust. A session can read this directory.
    trusted_dir: PathBuf,
    authority: Mutex<Option<Arc<Authority>>>,
    families: Mutex<HashMap<SessionId, Weak<SessionSecrets>>>,
    pub live_rules: LiveRules,
    audit: AuditLog,
}

impl Secrets {
    /// Reads the values. `state_dir` is the node's state directory.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let dir = state_dir.join("secrets");
        let store = Arc::new(SecretStore::open(dir.join("values"))?);
        let live_rules = LiveRules::new(dir.join("rules"));
        let trusted_dir = state_dir.join("trusted");
        let (authority, families) = (Mutex::default(), Mutex::default());
        let audit = AuditLog::disabled();
        Ok(Self { store, dir, trusted_dir, authority, families, live_rules, audit })
    }

    /// Records in this log where values go.
    pub fn recorded_in(self, audit: AuditLog) -> Self {
        Self { audit, ..self }
    }

    pub fn list(&self) -> SecretList {
        let values = self.store.lock();
        let info = |(name, known): (&SecretName, &StoredSecret)| SecretInfo {
            name: name.to_string(),
            set_at_ms: known.set_at_ms,
        };
        SecretList { secrets: values.iter().map(info).collect() }
    }

    /// Sets a value. Sessions use it from their next request on. Blocks: it writes to the disk.
    pub fn set(&self, name: &SecretName, value: String) -> Result<SecretInfo, Failure> {
        self.store.set(name, value)
    }

    /// Removes a value. Blocks: it writes to the disk.
    pub fn remove(&self, name: &SecretName) -> Result<(), Failure> {
        self.store.remove(name)
    }

    /// Makes what a session with secrets needs, or finds out why it cannot be made. Blocks.
    pub fn prepare(&self) -> Result<(), Failure> {
        self.authority().map(drop).map_err(|error| {
            let message = format!("cannot send secrets for this session: {error}");
            match &error {
                AuthorityError::Io(cause) => {
                    Failure::while_making(format_args!("{message}"), cause)
                }
                _ => Failure::internal(&message),
            }
        })
    }

    /// What the proxy of a family of sessions needs to send secrets: twins share it, because they share the proxy.
    /// `made_with` are the rules of the session's record. If the authority cannot be opened, the proxy refuses TLS to
    /// the hosts of the rules. Blocks, unless [`Self::prepare`] was called.
    pub fn for_family(
        &self,
        family: &SessionId,
        made_with: Vec<SecretRule>,
    ) -> Arc<SessionSecrets> {
        let mut families = self.families.lock().expect("no holder of this lock can panic");
        families.retain(|_, secrets| secrets.strong_count() > 0);
        if let Some(known) = families.get(family).and_then(Weak::upgrade) {
            return known;
        }
        let made_with = SecretRuleSet { rules: made_with, past: Vec::new() };
        let rules = match self.live_rules.load(family) {
            Ok(changed) => changed.unwrap_or(made_with),
            Err(error) => {
                tracing::error!(session = %family, %error, "cannot read the changed secret rules; none holds");
                made_with.replaced_by(Vec::new())
            }
        };
        let authority = self.authority();
        if let Err(error) = &authority {
            tracing::error!(%error, "cannot open the certificate authority; TLS with secrets is refused");
        }
        let (store, family_id, audit) = (self.store.clone(), family.clone(), self.audit.clone());
        let source = Arc::new(FamilySecrets { store, family: family_id, audit });
        let made = Arc::new(SessionSecrets::new(rules, source, authority.ok()));
        families.insert(family.clone(), Arc::downgrade(&made));
        made
    }

    /// The directory with the certificates that a session of this policy trusts.
    pub fn trusted_dir(&self, policy: &Policy) -> Option<&Path> {
        (!policy.secrets.is_empty()).then_some(&*self.trusted_dir)
    }

    /// The environment of a session with secrets: placeholders, and where the trusted certificates are.
    pub fn environment(&self, policy: &Policy) -> Vec<(String, String)> {
        let Some(dir) = self.trusted_dir(policy) else { return Vec::new() };
        let bundle = dir.join(BUNDLE).display().to_string();
        let trust = TRUST_VARIABLES.iter().map(|name| ((*name).to_owned(), bundle.clone()));
        let placeholders =
            policy.secrets.iter().map(|rule| (rule.variable().to_owned(), rule.name.placeholder()));
        trust.chain(placeholders).collect()
    }

    fn authority(&self) -> Result<Arc<Authority>, AuthorityError> {
        let mut known = self.authority.lock().expect("no holder of this lock can panic");
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let made = Arc::new(self.open_authority()?);
        *known = Some(made.clone());
        Ok(made)
    }

    fn open_authority(&self) -> Result<Authority, AuthorityError> {
        let key_file = self.dir.join("authority.key");
        let certificate_file = self.dir.join("authority.pem");
        make_dir(&self.dir, 0o700)?;
        // A certificate without its key is of no use: both are made anew.
        let (key, stored) = match read(&key_file)? {
            Some(key) => (key, read(&certificate_file)?),
            None => {
                let key = Authority::new_key()?;
                write(&key_file, key.as_bytes(), PRIVATE)?;
                (key, None)
            }
        };
        let mut certificate = stored.clone();
        let authority = Authority::open(&key, &mut certificate)?;
        if let (None, Some(made)) = (stored, certificate) {
            write(&certificate_file, made.as_bytes(), PRIVATE)?;
        }
        make_dir(&self.trusted_dir, 0o755)?;
        let bundle = self.trusted_dir.join(BUNDLE);
        // Unchanged on most starts, which then work on a full disk too.
        if read(&bundle)?.as_deref() != Some(authority.bundle()) {
            write(&bundle, authority.bundle().as_bytes(), READABLE)?;
        }
        Ok(authority)
    }
}

/// The values, in memory and on disk.
#[derive(Debug)]
struct SecretStore {
    dir: PathBuf,
    values: Mutex<BTreeMap<SecretName, StoredSecret>>,
    /// Locked while a file changes. The values are locked only for a moment: the proxy needs them for each request.
    changing: Mutex<()>,
}

#[derive(Debug, Clone)]
struct StoredSecret {
    value: Arc<SecretValue>,
    set_at_ms: u64,
}

impl SecretSource for SecretStore {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        self.lock().get(name).map(|known| known.value.clone())
    }
}

/// The values for a family of sessions, and the record of where they go.
#[derive(Debug)]
struct FamilySecrets {
    store: Arc<SecretStore>,
    family: SessionId,
    audit: AuditLog,
}

impl SecretSource for FamilySecrets {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        self.store.value(name)
    }

    fn sent(&self, name: &SecretName, host: &str, port: u16) {
        self.audit.record(of_use_of_secret(&self.family, name, host, port));
    }
}

impl SecretStore {
    fn open(dir: PathBuf) -> io::Result<Self> {
        let mut values = BTreeMap::new();
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for entry in entries {
            // A file with another name is what an interrupted write left.
            let name = entry.file_name().into_string().ok().map(SecretName::parse);
            let Some(Ok(name)) = name else { continue };
            let text = String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned();
            match SecretValue::new(text) {
                Ok(value) => {
                    let set_at_ms = entry.metadata()?.modified().map_or(0, unix_ms);
                    values.insert(name, StoredSecret { value: Arc::new(value), set_at_ms });
                }
                Err(error) => {
                    tracing::error!(%name, %error, "a stored secret cannot be used; set it again");
                }
            }
        }
        Ok(Self { dir, values: Mutex::new(values), changing: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SecretName, StoredSecret>> {
        self.values.lock().expect("no holder of this lock can panic")
    }

    fn set(&self, name: &SecretName, text: String) -> Result<SecretInfo, Failure> {
        let value = SecretValue::new(text.clone()).map_err(|error| {
            Failure::new(ErrorCode::BadRequest, format!("secret {name}: {error}"))
        })?;
        let _changing = self.changing.lock().expect("no holder of this lock can panic");
        let is_full = {
            let values = self.lock();
            values.len() >= SECRETS_MAX && !values.contains_key(name)
        };
        if is_full {
            let message = format!("the node has {SECRETS_MAX} secrets; remove one first");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        make_dir(&self.dir, 0o700)
            .and_then(|()| write(&self.dir.join(name.as_str()), text.as_bytes(), PRIVATE))
            .map_err(|error| {
                Failure::while_making(format_args!("cannot store the secret {name}"), &error)
            })?;
        let set_at_ms = unix_ms(SystemTime::now());
        self.lock().insert(name.clone(), StoredSecret { value: Arc::new(value), set_at_ms });
        Ok(SecretInfo { name: name.to_string(), set_at_ms })
    }

    fn remove(&self, name: &SecretName) -> Result<(), Failure> {
        let _changing = self.changing.lock().expect("no holder of this lock can panic");
        if !self.lock().contains_key(name) {
            let message = format!("there is no secret {name}; `windlass secret list` shows all");
            return Err(Failure::new(ErrorCode::NotFound, message));
        }
        remove(&self.dir.join(name.as_str())).map_err(|error| {
            Failure::while_making(format_args!("cannot remove the secret {name}"), &error)
        })?;
        self.lock().remove(name);
        Ok(())
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The text of a file, if the file exists.
fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Replaces a file in one step. The bytes are on the disk when it returns.
fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let fresh = path
        .with_file_name(format!("{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    sync_parent(path)
}

/// Removes a file, also from the disk's point of view.
fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests;
