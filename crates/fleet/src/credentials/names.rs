//! The name of a node in its certificate: `NODE.node.windlass`. DNS names know no upper case and no `_`, so the letters
//! of other node names are written as hexadecimal digits: `4e_31` would be `34655f3331.hex.node.windlass`. Two nodes
//! never have the same name, and no two names stand for one node.

use rustls::pki_types::ServerName;
use windlass_protocol::NodeName;

use super::random::hex;

const DOMAIN: &str = ".node.windlass";
const ENCODED: &str = ".hex";

/// Maximum number of characters between two dots.
const LABEL_CHARS_MAX: usize = 63;

/// Number of hexadecimal digits between two dots.
const LABEL_DIGITS: usize = 62;

pub(super) fn dns_name(node: &NodeName) -> String {
    let text = node.as_str();
    if is_label(text) {
        return format!("{text}{DOMAIN}");
    }
    let mut name = String::new();
    for (at, digit) in hex(text.as_bytes()).chars().enumerate() {
        if at > 0 && at.is_multiple_of(LABEL_DIGITS) {
            name.push('.');
        }
        name.push(digit);
    }
    format!("{name}{ENCODED}{DOMAIN}")
}

/// The node that a name stands for. Any name that [`dns_name`] does not write stands for no node.
pub(super) fn node_of(dns: &str) -> Option<NodeName> {
    let text = dns.strip_suffix(DOMAIN)?;
    let node = if text.contains('.') {
        let digits: String = text.strip_suffix(ENCODED)?.split('.').collect();
        String::from_utf8(from_hex(&digits)?).ok()?
    } else {
        text.to_owned()
    };
    NodeName::parse(node).ok().filter(|node| dns_name(node) == dns)
}

pub(super) fn server_name(node: &NodeName) -> ServerName<'static> {
    ServerName::try_from(dns_name(node)).expect("letters, digits, hyphens and dots are a DNS name")
}

fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= LABEL_CHARS_MAX && !text.ends_with('-') && text.bytes().all(allowed)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let values: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(16)).collect();
    let bytes = values?;
    bytes.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_one_name_and_each_name_one_node() {
        let long = "x".repeat(64);
        let upper = "X".repeat(64);
        let nodes = ["n1", "N1", "n_1", "n1-", "hex", "1", "a--b", &long, &upper];
        let mut seen = std::collections::BTreeSet::new();
        for node in nodes.map(|name| NodeName::parse(name).unwrap()) {
            let name = dns_name(&node);
            assert_eq!(node_of(&name), Some(node.clone()), "{name}");
            let _ = server_name(&node);
            assert!(seen.insert(name.to_ascii_lowercase()), "{name} stands for two nodes");
        }
        assert_eq!(dns_name(&NodeName::parse("n1").unwrap()), "n1.node.windlass");
    }

    #[test]
    fn other_names_stand_for_no_node() {
        for name in [
            "",
            "n1",
            "node.windlass",
            ".node.windlass",
            "N1.node.windlass",
            "*.node.windlass",
            "a.b.node.windlass",
            "n1.node.windlass.",
            "n1.node.windlass.example",
            // `n1` needs no digits.
            "6e31.hex.node.windlass",
            "4E31.hex.node.windlass",
            "4.e31.hex.node.windlass",
            "4e3.hex.node.windlass",
            "é.node.windlass",
        ] {
            assert_eq!(node_of(name), None, "{name}");
        }
    }
}
