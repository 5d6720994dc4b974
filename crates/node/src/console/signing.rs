//! Cookies and keys of the console's logins. Both are signatures of the login's id, so the node stores neither of them.

use std::fmt::Write as _;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

use super::logins::LoginId;

/// Random bytes of the signing secret, and of a login's code.
pub(super) const SECRET_BYTES: usize = 32;

/// Random bytes in the id of a login.
pub(super) const ID_BYTES: usize = 16;

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 32;

/// Stands between the login's id and the signature in a cookie.
const SEPARATOR: char = '.';

/// What a signature is for. A cookie's signature is not a key, and a key is not a cookie's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignedFor {
    Cookie,
    Key,
}

impl SignedFor {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cookie => "windlass console cookie",
            Self::Key => "windlass console key",
        }
    }
}

/// Signs the ids of logins.
pub(super) struct LoginSigner {
    secret: String,
    key: hmac::Key,
}

impl LoginSigner {
    /// A signer with a new secret. What another signer has signed is not valid for it.
    pub fn random() -> Self {
        Self::new(random_hex::<SECRET_BYTES>())
    }

    pub fn new(secret: String) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Self { secret, key }
    }

    /// For the file of the logins.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The value of the login's cookie.
    pub fn cookie(&self, login: &LoginId) -> String {
        format!("{}{SEPARATOR}{}", login.as_str(), self.cookie_signature(login).0)
    }

    /// The signature in the login's cookie.
    pub fn cookie_signature(&self, login: &LoginId) -> CookieSignature {
        CookieSignature(self.signature(SignedFor::Cookie, login.as_str()))
    }

    /// What the page sends with each request besides the cookie.
    pub fn key(&self, login: &LoginId) -> String {
        self.signature(SignedFor::Key, login.as_str())
    }

    pub fn is_key(&self, login: &LoginId, key: &str) -> bool {
        self.key(login).as_bytes().ct_eq(key.as_bytes()).into()
    }

    fn signature(&self, signed_for: SignedFor, login: &str) -> String {
        let text = format!("{} {login}", signed_for.as_str());
        hex(hmac::sign(&self.key, text.as_bytes()).as_ref())
    }
}

/// The signature that the cookie of a login must have.
pub(super) struct CookieSignature(String);

impl CookieSignature {
    pub fn is(&self, signature: &str) -> bool {
        self.0.as_bytes().ct_eq(signature.as_bytes()).into()
    }
}

/// The id and the signature in the value of a cookie; `None` if it cannot be a cookie of a login. Costs little, because
/// anyone can send thousands of cookies.
pub(super) fn cookie_parts(cookie: &str) -> Option<(&str, &str)> {
    let (login, signature) = cookie.split_once(SEPARATOR)?;
    let is_hex = |text: &str, bytes: usize| {
        text.len() == 2 * bytes && text.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let may_be = is_hex(login, ID_BYTES) && is_hex(signature, SIGNATURE_BYTES);
    may_be.then_some((login, signature))
}

/// `BYTES` random bytes as hexadecimal digits.
pub(super) fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.expect("the kernel gives random bytes once it has booted");
    hex(&bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // A string takes all that is written to it.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a cookie is that of the login.
    fn is_cookie(signer: &LoginSigner, login: &LoginId, cookie: &str) -> bool {
        cookie_parts(cookie).is_some_and(|(id, signature)| {
            id == login.as_str() && signer.cookie_signature(login).is(signature)
        })
    }

    #[test]
    fn only_a_cookie_of_this_signer_names_a_login() {
        let (signer, other) = (LoginSigner::random(), LoginSigner::random());
        let login = LoginId::new("0a1b".repeat(8));
        let cookie = signer.cookie(&login);
        assert!(is_cookie(&signer, &login, &cookie));
        assert!(is_cookie(&LoginSigner::new(signer.secret().to_owned()), &login, &cookie));
        let (id, signature) = cookie.split_once(SEPARATOR).unwrap();
        for forged in [
            String::new(),
            id.to_owned(),
            format!("{id}."),
            format!("{}.{signature}", "0a1c".repeat(8)),
            format!("{id}.{}", &signature[1..]),
            format!("{id}.{signature}0"),
            format!("{id}.{}", signature.to_uppercase()),
            other.cookie(&login),
            format!("{id}.{}", signer.key(&login)),
        ] {
            assert!(!is_cookie(&signer, &login, &forged), "{forged}");
        }
    }

    #[test]
    fn what_cannot_be_a_cookie_is_not_checked_further() {
        let (id, signature) = ("0f".repeat(ID_BYTES), "a9".repeat(SIGNATURE_BYTES));
        let whole = format!("{id}.{signature}");
        assert_eq!(cookie_parts(&whole), Some((&*id, &*signature)));
        for other in [
            "",
            ".",
            "a.b",
            &whole[1..],
            &whole[..whole.len() - 1],
            &whole.replace('.', "-"),
            &whole.replace('a', "g"),
            &format!("{whole}."),
        ] {
            assert_eq!(cookie_parts(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_key_of_a_login_is_its_key() {
        let signer = LoginSigner::random();
        let [one, two] = ["1", "2"].map(|id| LoginId::new(id.to_owned()));
        assert!(signer.is_key(&one, &signer.key(&one)));
        let cookie = signer.cookie(&one);
        let (_, signature) = cookie.split_once(SEPARATOR).unwrap();
        for key in ["", signature, &signer.key(&two), &signer.key(&one)[1..]] {
            assert!(!signer.is_key(&one, key), "{key}");
        }
    }
}
