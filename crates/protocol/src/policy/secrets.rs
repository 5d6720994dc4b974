//! Secret rules: where the egress proxy may send the value of a secret that the node keeps. The session's code
//! never has the value. It has a placeholder, which the proxy replaces in requests that a rule matches.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod target;
pub use target::{SecretScheme, SecretTarget};

/// Maximum characters of a secret's name.
pub const SECRET_NAME_CHARS_MAX: usize = 64;

/// What stands for the value in a template.
pub const SECRET_IN_TEMPLATE: &str = "{secret}";

/// The start and the end of every placeholder. The name of the secret is between them.
pub const PLACEHOLDER_START: &str = "windlass-secret-";
pub const PLACEHOLDER_END: &str = "-placeholder";

/// The name of a secret: letters, digits and `_`, not starting with a digit, so that it can also be the name of an
/// environment variable.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

/// A text is not the name of a secret. The message does not repeat the text, which may be a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not the name of a secret: use letters, digits and _, start with no digit, and use at most \
     {SECRET_NAME_CHARS_MAX} characters"
)]
pub struct BadSecretName;

impl SecretName {
    pub fn parse(text: impl Into<String>) -> Result<Self, BadSecretName> {
        let text = text.into();
        let is_good = is_variable(&text) && text.len() <= SECRET_NAME_CHARS_MAX;
        if is_good { Ok(Self(text)) } else { Err(BadSecretName) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the session's code has instead of the value.
    pub fn placeholder(&self) -> String {
        format!("{PLACEHOLDER_START}{self}{PLACEHOLDER_END}")
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SecretName {
    type Error = BadSecretName;
    fn try_from(text: String) -> Result<Self, BadSecretName> {
        Self::parse(text)
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

/// Whether a text can be the name of an environment variable.
fn is_variable(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_word) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Where a secret may go, and how. A request gets the value if its URL starts with `to` and `methods` names its
/// method. In such a request the proxy replaces the placeholder in the header or the query parameter; if the request
/// has no such header or parameter, the proxy adds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRule {
    /// The secret, as in `windlass secret set NAME`.
    #[schema(value_type = String)]
    pub name: SecretName,
    /// The start of the URLs: `https://api.example.com/v1/`. With `http://` the value is sent unencrypted.
    #[schema(value_type = String)]
    pub to: SecretTarget,
    /// The methods of the requests, for example `["GET"]`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// The header that carries the value. Default: `authorization`, unless `query` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The query parameter that carries the value, instead of a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The header or the parameter that the proxy adds to a request without one: `{secret}` stands for the value.
    /// Default: `Bearer {secret}` in `authorization`, else `{secret}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The user name of basic authentication, instead of a template: the value is the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_user: Option<String>,
    /// The environment variable that holds the placeholder. Default: the secret's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Whether a placeholder in the body of a request to `to` is refused. `pass` is for model APIs: an agent that
    /// prints its environment sends the placeholder with every later prompt.
    #[serde(default, skip_serializing_if = "BodyPlaceholder::is_default")]
    pub body: BodyPlaceholder,
}

/// What happens to a request whose body has a placeholder.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum BodyPlaceholder {
    #[default]
    Refuse,
    Pass,
}

impl BodyPlaceholder {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The header of a rule that names none.
const DEFAULT_HEADER: &str = "authorization";

/// Maximum characters of a header, a parameter, a method, a template or a user name in a rule.
const PART_CHARS_MAX: usize = 256;

/// Where a request carries a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretPosition<'r> {
    Header(&'r str),
    Query(&'r str),
}

/// Why a secret rule is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSecretRule {
    #[error(
        "{0:?} is not a target of a secret: write https://api.example.com/v1/ or http://api.example.com:8080/"
    )]
    Target(String),
    #[error(transparent)]
    Name(#[from] BadSecretName),
    #[error("the rule of the secret {name} sets both header and query; set one of them")]
    TwoPositions { name: SecretName },
    #[error(
        "the rule of the secret {name} sets basic_user with query or template; basic_user needs a header"
    )]
    BasicUser { name: SecretName },
    #[error("{text:?} is not a valid {part} in the rule of the secret {name}")]
    Part { part: &'static str, text: String, name: SecretName },
    #[error("the template {text:?} of the secret {name} must contain {{secret}} once")]
    Template { text: String, name: SecretName },
    #[error(
        "write NAME=URL, then options: ,header=H ,query=Q ,template=T ,basic_user=U ,env=E ,methods=GET+POST ,body=pass; {0:?} is none of them"
    )]
    Option(String),
}

impl SecretRule {
    /// A rule with defaults for everything but the name and the target.
    pub fn new(name: SecretName, to: SecretTarget) -> Self {
        Self {
            name,
            to,
            methods: Vec::new(),
            header: None,
            query: None,
            template: None,
            basic_user: None,
            env: None,
            body: BodyPlaceholder::default(),
        }
    }

    /// Reads the form of the command line: `NAME=URL[,option=value]...`.
    pub fn parse(text: &str) -> Result<Self, BadSecretRule> {
        let (name, rest) =
            text.split_once('=').ok_or_else(|| BadSecretRule::Option(text.to_owned()))?;
        let mut parts = rest.split(',');
        let target = SecretTarget::parse(parts.next().unwrap_or_default())?;
        let mut rule = Self::new(SecretName::parse(name)?, target);
        for part in parts {
            let bad = || BadSecretRule::Option(part.to_owned());
            let (option, value) = part.split_once('=').ok_or_else(bad)?;
            let value = value.to_owned();
            match option {
                "header" => rule.header = Some(value),
                "query" => rule.query = Some(value),
                "template" => rule.template = Some(value),
                "basic_user" => rule.basic_user = Some(value),
                "env" => rule.env = Some(value),
                "methods" => rule.methods = value.split('+').map(str::to_owned).collect(),
                "body" if value == "pass" => rule.body = BodyPlaceholder::Pass,
                "body" if value == "refuse" => rule.body = BodyPlaceholder::Refuse,
                _ => return Err(bad()),
            }
        }
        rule.check()?;
        Ok(rule)
    }

    /// Checks what the types of the fields do not.
    pub fn check(&self) -> Result<(), BadSecretRule> {
        let name = || self.name.clone();
        if self.header.is_some() && self.query.is_some() {
            return Err(BadSecretRule::TwoPositions { name: name() });
        }
        if self.basic_user.is_some() && (self.query.is_some() || self.template.is_some()) {
            return Err(BadSecretRule::BasicUser { name: name() });
        }
        if let Some(text) = &self.template
            && (text.matches(SECRET_IN_TEMPLATE).count() != 1 || !is_visible(text))
        {
            return Err(BadSecretRule::Template { text: text.clone(), name: name() });
        }
        let token = |text: &str| !text.is_empty() && text.bytes().all(is_token_byte);
        let user = |text: &str| is_visible(text) && !text.contains(':');
        let query = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        };
        type IsGood<'f> = &'f dyn Fn(&str) -> bool;
        let parts: [(&'static str, Option<&String>, IsGood<'_>); 4] = [
            ("header", self.header.as_ref(), &token),
            ("query", self.query.as_ref(), &query),
            ("basic_user", self.basic_user.as_ref(), &user),
            ("env", self.env.as_ref(), &is_variable),
        ];
        let methods =
            self.methods.iter().map(|method| ("method", Some(method), &token as IsGood<'_>));
        for (part, text, is_good) in parts.into_iter().chain(methods) {
            if let Some(text) = text
                && (!is_good(text) || text.len() > PART_CHARS_MAX)
            {
                return Err(BadSecretRule::Part { part, text: text.clone(), name: name() });
            }
        }
        // These headers decide where a request ends and where it goes.
        let is_framing = |header: &String| {
            [
                "host",
                "content-length",
                "transfer-encoding",
                "connection",
                "upgrade",
                "te",
                "trailer",
            ]
            .iter()
            .any(|framing| header.eq_ignore_ascii_case(framing))
        };
        match self.header.as_ref().filter(|header| is_framing(header)) {
            Some(text) => {
                Err(BadSecretRule::Part { part: "header", text: text.clone(), name: name() })
            }
            None => Ok(()),
        }
    }

    pub fn position(&self) -> SecretPosition<'_> {
        match (&self.query, &self.header) {
            (Some(query), _) => SecretPosition::Query(query),
            (None, header) => SecretPosition::Header(header.as_deref().unwrap_or(DEFAULT_HEADER)),
        }
    }

    /// The template of a header or parameter that the proxy adds.
    pub fn template(&self) -> &str {
        match (&self.template, self.position()) {
            (Some(template), _) => template,
            (None, SecretPosition::Header(header))
                if header.eq_ignore_ascii_case(DEFAULT_HEADER) =>
            {
                "Bearer {secret}"
            }
            (None, _) => SECRET_IN_TEMPLATE,
        }
    }

    /// The environment variable that holds the placeholder.
    pub fn variable(&self) -> &str {
        self.env.as_deref().unwrap_or(self.name.as_str())
    }

    /// Whether the rule is for a part of its host's requests.
    pub fn is_narrow(&self) -> bool {
        self.to.path != "/" || !self.methods.is_empty()
    }

    /// Whether a request gets the value.
    pub fn matches(
        &self,
        scheme: SecretScheme,
        host: &str,
        port: u16,
        method: &str,
        path: &str,
    ) -> bool {
        self.to.is_at(scheme, host, port)
            && self.to.has_path(path)
            && (self.methods.is_empty() || self.methods.iter().any(|one| one == method))
    }
}

/// Bytes of a token of HTTP: a method or the name of a header.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a text can be a part of a header's value.
fn is_visible(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= PART_CHARS_MAX
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// The secret rules of a session: those that hold, and earlier ones. A host of an earlier rule may still know the value,
/// so its responses are searched too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRuleSet {
    pub rules: Vec<SecretRule>,
    pub past: Vec<SecretRule>,
}

impl SecretRuleSet {
    /// The set after a change. The rules so far become earlier ones.
    pub fn replaced_by(&self, rules: Vec<SecretRule>) -> Self {
        let mut past: Vec<SecretRule> = Vec::new();
        for rule in self.past.iter().chain(&self.rules) {
            let is_same = |other: &SecretRule| {
                let (one, other_to) = (&rule.to, &other.to);
                other.name == rule.name && (&one.host, one.port) == (&other_to.host, other_to.port)
            };
            if !past.iter().any(is_same) {
                past.push(rule.clone());
            }
        }
        Self { rules, past }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> SecretRule {
        SecretRule::parse(text).unwrap()
    }

    #[test]
    fn a_target_is_read_and_written() {
        for text in [
            "https://api.example.com/",
            "https://api.example.com/v1/",
            "https://api.example.com:8443/v1",
            "http://127.0.0.1:8080/",
            "https://[::1]/a/b",
        ] {
            assert_eq!(SecretTarget::parse(text).map(String::from), Ok(text.to_owned()));
        }
        assert_eq!(SecretTarget::parse("https://A.test").unwrap().to_string(), "https://a.test/");
        for bad in [
            "api.example.com",
            "ftp://a.test/",
            "https://*.a.test/",
            "https://a.test=10.0.0.1/",
            "https://u@a.test/",
            "https://a.test/../b",
            "https://a.test//b",
            "https://a.test/?q",
            "https://a.test/a%2fb",
            "https://",
        ] {
            assert!(SecretTarget::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_matches_scheme_host_port_method_and_path() {
        use SecretScheme::{Http, Https};
        let rule = rule("K=https://a.test/v1,methods=GET+POST");
        for (scheme, host, port, method, path, matches) in [
            (Https, "a.test", 443, "GET", "/v1", true),
            (Https, "A.test.", 443, "POST", "/v1/models", true),
            (Https, "a.test", 443, "GET", "/v1/a%20b", true),
            (Https, "a.test", 443, "GET", "/v1x", false),
            (Https, "a.test", 443, "GET", "/v2", false),
            (Https, "a.test", 443, "GET", "/v1/../v2", false),
            (Https, "a.test", 443, "GET", "/v1/%2e%2e/v2", false),
            (Https, "a.test", 443, "GET", "/v1/..%2fv2", false),
            (Https, "a.test", 443, "GET", "/v1//x", false),
            (Https, "a.test", 443, "GET", "/v1/", true),
            (Https, "a.test", 443, "GET", "/v1/..;/v2", false),
            (Https, "a.test", 443, "GET", "/v1/..%3b/v2", false),
            (Https, "a.test", 443, "GET", "/v1/..%09/v2", false),
            (Https, "a.test", 443, "GET", "/v1/..%20/v2", false),
            (Https, "a.test", 443, "GET", "/v1/%c0%ae%c0%ae/v2", false),
            (Https, "a.test", 443, "GET", "/v1/%+e", false),
            (Https, "a.test", 443, "GET", "/v1/\u{ff0e}\u{ff0e}/v2", false),
            (Https, "a.test", 443, "GET", "/v1/%zz", false),
            (Https, "a.test", 443, "DELETE", "/v1", false),
            (Https, "a.test", 8443, "GET", "/v1", false),
            (Http, "a.test", 443, "GET", "/v1", false),
            (Https, "b.a.test", 443, "GET", "/v1", false),
        ] {
            let found = rule.matches(scheme, host, port, method, path);
            assert_eq!(found, matches, "{scheme:?} {host} {port} {method} {path}");
        }
    }

    #[test]
    fn a_rule_says_what_is_wrong_with_it() {
        for (text, says) in [
            ("K", "NAME=URL"),
            ("9K=https://a.test", "not the name"),
            ("K=a.test", "target"),
            ("K=https://a.test,header=x,query=y", "both"),
            ("K=https://a.test,basic_user=u,query=y", "basic_user"),
            ("K=https://a.test,basic_user=a:b", "basic_user"),
            ("K=https://a.test,template=Bearer", "{secret}"),
            ("K=https://a.test,header=a b", "header"),
            ("K=https://a.test,header=Host", "header"),
            ("K=https://a.test,header=content-length", "header"),
            ("K=https://a.test,env=A-B", "env"),
            ("K=https://a.test,methods=G T", "method"),
            ("K=https://a.test,what=1", "what=1"),
        ] {
            let error = SecretRule::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn the_defaults_of_a_rule_are_bearer_tokens() {
        let plain = rule("OPENAI_API_KEY=https://api.openai.com/v1/");
        assert_eq!(plain.position(), SecretPosition::Header("authorization"));
        assert_eq!(plain.template(), "Bearer {secret}");
        assert_eq!(plain.variable(), "OPENAI_API_KEY");
        assert_eq!(plain.name.placeholder(), "windlass-secret-OPENAI_API_KEY-placeholder");
        let own = rule("K=https://a.test/,header=X-Api-Key,env=TOKEN");
        assert_eq!(own.position(), SecretPosition::Header("X-Api-Key"));
        assert_eq!((own.template(), own.variable()), ("{secret}", "TOKEN"));
        let query = rule("K=https://a.test/,query=key");
        assert_eq!(
            (query.position(), query.template()),
            (SecretPosition::Query("key"), "{secret}")
        );
    }
}
