//! The package index that the user has configured for pip or uv: its addresses, its hosts, and the certificates to check
//! it with. Reads the user's environment and pip's configuration files; never those of a session.

use std::io::Read as _;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::policy::{HostRule, HostRules, normal_host};

use crate::trust::Trust;

/// The index of an unconfigured pip, and the host that its files are on.
const DEFAULT_HOST: &str = "pypi.org";
const DEFAULT_FILES_HOST: &str = "files.pythonhosted.org";

/// Variables with the address of the index, the first that is set counts.
const INDEX_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"];

/// Variables with further indexes.
const EXTRA_VARIABLES: [&str; 3] = ["PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"];

/// Variables with the file of trusted certificates.
const CERTIFICATE_VARIABLES: [&str; 3] = ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"];

/// Maximum bytes of a configuration file that are read.
const CONFIG_BYTES_MAX: u64 = 64 * 1024;

/// Maximum number of indexes.
const INDEXES_MAX: usize = 16;

/// The configured package index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PackageIndex {
    /// The address of the index. Absent: the index of an unconfigured pip.
    index: Option<String>,
    extra: Vec<String>,
    certificates: Option<PathBuf>,
}

impl PackageIndex {
    /// Reads the configuration of this user. Blocks: it reads files.
    pub fn configured(trust: &Trust) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = std::env::home_dir();
        let texts = config_files(home.as_deref(), variable);
        Self::of(variable, texts.iter().filter_map(|path| read(path, trust)))
    }

    /// The index that the variables and the configuration files name. A later file counts more, a variable most.
    fn of(variable: impl Fn(&str) -> Option<String>, files: impl Iterator<Item = String>) -> Self {
        let mut index = Self::default();
        for text in files {
            index.read_config(&text);
        }
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        index.index = first(&INDEX_VARIABLES).or(index.index);
        if let Some(extra) = first(&EXTRA_VARIABLES) {
            index.extra = extra.split_whitespace().map(str::to_owned).collect();
        }
        index.certificates =
            first(&CERTIFICATE_VARIABLES).map(PathBuf::from).or(index.certificates);
        index.extra.truncate(INDEXES_MAX);
        index
    }

    /// Takes what a configuration file of pip says in the sections `global` and `install`.
    fn read_config(&mut self, text: &str) {
        let (mut counts, mut in_extra) = (false, false);
        for line in text.lines() {
            let is_continued = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if is_continued {
                if counts && in_extra {
                    self.extra.extend(line.split_whitespace().map(str::to_owned));
                }
                continue;
            }
            in_extra = false;
            if let Some(section) = line.strip_prefix('[') {
                counts = matches!(section.trim_end_matches(']'), "global" | "install");
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']).filter(|_| counts) else {
                continue;
            };
            let value = value.trim().to_owned();
            match key.trim().replace('_', "-").as_str() {
                "index-url" => self.index = Some(value),
                "cert" => self.certificates = Some(PathBuf::from(value)),
                "extra-index-url" => {
                    self.extra = value.split_whitespace().map(str::to_owned).collect();
                    in_extra = true;
                }
                _ => {}
            }
        }
    }

    /// The same index without users and passwords: for sessions, whose code reads its variables.
    pub fn without_logins(self) -> Self {
        Self {
            index: self.index.map(|url| without_login(&url)),
            extra: self.extra.iter().map(|url| without_login(url)).collect(),
            certificates: self.certificates,
        }
    }

    /// The variables with which pip and uv use this index, and no configuration file.
    pub fn environment(&self) -> Vec<(String, String)> {
        let index = self.index.clone().unwrap_or_else(default_index);
        let mut variables = vec![
            ("PIP_CONFIG_FILE", "/dev/null".to_owned()),
            ("UV_NO_CONFIG", "1".to_owned()),
            ("PIP_INDEX_URL", index.clone()),
            ("UV_DEFAULT_INDEX", index),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned()),
            ("PIP_NO_INPUT", "1".to_owned()),
        ];
        if !self.extra.is_empty() {
            let extra = self.extra.join(" ");
            variables.extend([("PIP_EXTRA_INDEX_URL", extra.clone()), ("UV_INDEX", extra)]);
        }
        if let Some(file) = &self.certificates {
            let file = file.display().to_string();
            variables.extend(CERTIFICATE_VARIABLES.map(|name| (name, file.clone())));
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The host rules of the index, and nothing else. A host in a private network gets the address that its name has now,
    /// because a rule without an address allows public ones only. Blocks: it looks up names.
    pub fn rules(&self) -> HostRules {
        let look_up = |host: &str, port: u16| {
            let found = (host, port).to_socket_addrs().ok();
            found.and_then(|mut addresses| addresses.next()).map(|address| address.ip())
        };
        HostRules(self.rules_by(look_up))
    }

    fn rules_by(&self, look_up: impl Fn(&str, u16) -> Option<IpAddr>) -> Vec<HostRule> {
        let mut hosts: Vec<(String, u16)> = Vec::new();
        let index = self.index.clone().unwrap_or_else(default_index);
        for url in std::iter::once(&index).chain(&self.extra) {
            let host = host_of(url);
            if host.as_ref().is_some_and(|(host, _)| host == DEFAULT_HOST) {
                hosts.push((DEFAULT_FILES_HOST.to_owned(), 443));
            }
            hosts.extend(host);
        }
        hosts.sort();
        hosts.dedup();
        let rule = |(host, port): (String, u16)| {
            let address = look_up(&host, port).filter(|at| !windlass_egress::is_public(*at));
            HostRule { host, any_below: false, port: Some(port), address }
        };
        hosts.into_iter().map(rule).collect()
    }
}

fn default_index() -> String {
    format!("https://{DEFAULT_HOST}/simple")
}

/// The configuration files of pip, the one that counts most last.
fn config_files(home: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/pip.conf")];
    files.extend(home.map(|home| home.join(".pip/pip.conf")));
    let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| home.map(|home| home.join(".config")));
    files.extend(config.map(|config| config.join("pip/pip.conf")));
    files.extend(variable("PIP_CONFIG_FILE").map(PathBuf::from));
    files
}

/// The text of a configuration file. None counts that a session could have written: it would choose where packages come
/// from.
fn read(path: &Path, trust: &Trust) -> Option<String> {
    let real = trust.way(path).ok()?.real;
    let file = Directory::recorded(real.parent()?).ok()?.file(real.file_name()?).ok()?;
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The address without the user and the password in front of its host.
fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The host and the port of an address. The user and the password in front of the host are left out.
fn host_of(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default_port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, host_port)| host_port);
    let (host, port) = match host_port.rsplit_once(':') {
        Some((host, port)) if !host_port.ends_with(']') => (host, port.parse().ok()?),
        _ => (host_port, default_port),
    };
    Some((normal_host(host)?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(variables: &[(&str, &str)], files: &[&str]) -> PackageIndex {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        PackageIndex::of(variable, files.iter().map(|text| (*text).to_owned()))
    }

    fn rules(index: &PackageIndex) -> Vec<String> {
        let look_up = |host: &str, _| match host {
            "index.test" => Some(IpAddr::from([10, 0, 0, 5])),
            "gone.example" => None,
            _ => Some(IpAddr::from([151, 101, 0, 223])),
        };
        index.rules_by(look_up).into_iter().map(String::from).collect()
    }

    #[test]
    fn without_a_configuration_it_is_the_public_index() {
        let public = index(&[], &[]);
        assert_eq!(rules(&public), ["files.pythonhosted.org:443", "pypi.org:443"]);
        let address = public.environment().into_iter().find(|(name, _)| name == "PIP_INDEX_URL");
        assert_eq!(address.unwrap().1, default_index());
    }

    #[test]
    fn only_the_configured_hosts_are_allowed() {
        let file = "[global]\nindex-url = https://index.test:8443/simple\n\
                    extra-index-url =\n    http://gone.example/a\n    https://b.example/b\n\
                    # comment\n[list]\nindex-url = https://other.example\n";
        let private = index(&[], &[file]);
        assert_eq!(
            rules(&private),
            ["b.example:443", "gone.example:80", "index.test:8443=10.0.0.5"]
        );
        // A variable counts more than a file.
        let chosen = index(&[("PIP_INDEX_URL", "https://a.example/s"), ("UV_INDEX", "")], &[file]);
        assert!(rules(&chosen).contains(&"a.example:443".to_owned()));
        assert!(!rules(&chosen).iter().any(|rule| rule.starts_with("index.test")));
    }

    #[test]
    fn certificates_are_those_of_the_user() {
        let certificates = |variables: &[(&str, &str)]| {
            let index = index(variables, &["[global]\ncert = /etc/own.pem\n"]);
            index.environment().into_iter().find(|(name, _)| name == "PIP_CERT").unwrap().1
        };
        assert_eq!(certificates(&[]), "/etc/own.pem");
        assert_eq!(certificates(&[("SSL_CERT_FILE", "/b.pem")]), "/b.pem");
    }

    #[test]
    fn a_session_gets_no_password_of_an_index() {
        for (rest, shown) in [
            ("me:key@a.example/simple", "a.example/simple"),
            ("token@a.example:8443", "a.example:8443"),
            ("a.example/x@y/simple", "a.example/x@y/simple"),
            ("u@b:key@a.example?x=@", "a.example?x=@"),
        ] {
            let url = |rest: &str| ["https", rest].join("://");
            assert_eq!(without_login(&url(rest)), url(shown));
        }
        assert_eq!(without_login("nothing"), "nothing");
        let url = ["https", "me:key@a.example/simple"].join("://");
        let shown = index(&[("PIP_INDEX_URL", &url), ("UV_INDEX", &url)], &[]).without_logins();
        assert!(shown.environment().iter().all(|(_, value)| !value.contains("key")), "{shown:?}");
        assert_eq!(rules(&shown), ["a.example:443"]);
    }

    #[test]
    fn an_address_without_a_host_allows_nothing() {
        for bad in
            ["", "ftp://a.example", "https://", "a.example/simple", "https://.example", "file:///x"]
        {
            assert_eq!(host_of(bad), None, "{bad:?}");
        }
        let with_password = ["https", "me:key@a.example/simple"].join("://");
        assert_eq!(host_of(&with_password), Some(("a.example".to_owned(), 443)));
    }
}
