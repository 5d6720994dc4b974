//! The codes of failures that no node reports: a client, an SDK or a command finds them. For
//! `docs/reference/error-codes.md`.

/// Each code with its meaning and a remedy, in the order of the alphabet.
pub const CLIENT_CODES: [(&str, &str, &str); 24] = [
    (
        "awaiting_input",
        "The Python SDK waited for a turn that asks for input.",
        "answer with `turn.input(text)`, or wait with `on_input`",
    ),
    (
        "bad_answer",
        "The answer of the node cannot be understood.",
        "check that a windlass node, and not another program, listens there",
    ),
    (
        "bad_ca",
        "The file of WINDLASS_CA cannot be used, or the machine has no certificates of authorities.",
        "set WINDLASS_CA to a PEM file with the certificate of the node's authority",
    ),
    (
        "bad_certificate",
        "The certificate of the node is not trusted, expired or for another name.",
        "set WINDLASS_CA to a PEM file with the certificate of the node's authority, or renew the node's certificate",
    ),
    (
        "bad_directory",
        "The runtime or state directory cannot be used.",
        "do what the message says, or set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR",
    ),
    (
        "bad_token",
        "The node's token is missing, malformed or cannot be read.",
        "set WINDLASS_TOKEN to what `windlass token` prints on the node's machine",
    ),
    (
        "bad_token_file",
        "The file of named tokens cannot be used.",
        "remove the file, and make the tokens again with `windlass token create`",
    ),
    (
        "bad_url",
        "The address of the node is not a plain URL.",
        "set WINDLASS_URL to the URL that `windlass status` prints on the node's machine",
    ),
    ("client_closed", "The client of the TypeScript SDK is closed.", "make a new `Windlass()`"),
    (
        "config_changed",
        "`windlass install`: another program changed the file at the same time.",
        "run the command again",
    ),
    (
        "config_invalid",
        "`windlass install`: the file of an agent is not valid.",
        "correct the file, then run the command again",
    ),
    (
        "config_unexpected",
        "`windlass install`: the file of an agent has another form than expected.",
        "add or remove the entry by hand, as docs/mcp.md shows",
    ),
    (
        "config_unreadable",
        "`windlass install`: the file of an agent cannot be read.",
        "make the file readable for your user, or run the command as its owner",
    ),
    (
        "config_unwritable",
        "`windlass install`: the file of an agent cannot be written.",
        "make the file writable for your user",
    ),
    (
        "connection_lost",
        "The connection ended before the answer came. The node may have carried out the request.",
        "check the session before you repeat the request",
    ),
    (
        "local_only",
        "The command works on files of this machine's node, and WINDLASS_URL is set.",
        "run it on the node's machine without WINDLASS_URL",
    ),
    (
        "start_failed",
        "The client could not start a node.",
        "look at the node's log, which the message names",
    ),
    (
        "timeout",
        "The node did not answer in time.",
        "see whether the node is healthy with `windlass status`",
    ),
    (
        "tls_failed",
        "The TLS handshake with the node failed.",
        "check that a node with a certificate listens there",
    ),
    (
        "token_exists",
        "There is a named token of that name.",
        "choose another name, or remove the token with `windlass token rm NAME`",
    ),
    (
        "token_not_found",
        "There is no named token of that name.",
        "list the tokens with `windlass token list`",
    ),
    (
        "too_many_tokens",
        "The maximum number of named tokens is reached.",
        "remove one with `windlass token rm NAME`",
    ),
    (
        "unreachable",
        "No node answers at its socket or URL.",
        "start a node with `windlass up`, or check WINDLASS_URL",
    ),
    (
        "wrong_scheme",
        "The node speaks HTTPS and the URL begins with http://, or the other way round.",
        "use the other scheme in WINDLASS_URL",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ClientError;
    use crate::named_tokens::NamedTokenError;
    use crate::tls::TlsError;

    #[test]
    fn the_codes_are_sorted_and_none_is_missing() {
        let codes = CLIENT_CODES.map(|(code, _, _)| code);
        assert!(codes.is_sorted(), "{codes:?}");
        let cause = || std::io::Error::other("test");
        for error in [
            ClientError::Unreachable { address: String::new(), cause: cause() },
            ClientError::BadUrl,
            TlsError::NoRoots { cause: String::new() }.into(),
            TlsError::Expired { node: String::new() }.into(),
            TlsError::PlainNode { node: String::new() }.into(),
            TlsError::Handshake { node: String::new(), cause: String::new() }.into(),
            ClientError::BadToken,
            ClientError::LocalOnly { command: String::new() },
            ClientError::NamedToken(NamedTokenError::TooMany),
            ClientError::Cut { cause: String::new() },
            ClientError::BadAnswer { request: String::new(), cause: String::new() },
        ] {
            assert!(codes.contains(&error.code()), "{error}");
        }
        for (code, meaning, _) in CLIENT_CODES {
            assert!(meaning.ends_with('.'), "{code}");
        }
    }
}
