//! Which hosts a session may reach, and at which addresses. Pure: this module resolves no names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_protocol::policy::{HostRule, normal_host};

/// Why a host may not be reached. The texts are constant because decisions are counted by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RefusalReason {
    #[error("it is not a valid host name or address")]
    NotAHost,
    #[error("no rule names it")]
    NotNamed,
    #[error("an address is reached only by a rule that names it")]
    BareAddress,
    #[error("the name resolves to a private address, and no rule names that address")]
    PrivateAddress,
    #[error("the TLS hello asks for a name that is not allowed")]
    TlsName,
    #[error("the TLS hello is malformed, too long or too slow")]
    TlsHello,
    #[error("the HTTP request asks for a host that is not allowed")]
    HttpHost,
    #[error("HTTP/2 without TLS is allowed only to a host whose rule names its address")]
    PlainHttp2,
    #[error("the HTTP request line is too long or too slow")]
    RequestLine,
    #[error("too many concurrent connections")]
    TooMany,
    #[error("the request has a secret's placeholder where no rule sends the secret")]
    SecretPlaceholder,
    #[error("the session has sent too many different values of secrets; create a new session")]
    SecretValues,
    #[error("a rule sends a secret that the node does not have")]
    SecretMissing,
    #[error(
        "the node's certificate authority cannot be opened, so TLS to a host of a secret rule is refused"
    )]
    NoAuthority,
    #[error("a host of a secret rule is reached by HTTP/1 or TLS only")]
    SecretProtocol,
}

/// A host that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed<'r> {
    /// Normalised, as it is compared and resolved.
    pub host: String,
    pub rule: &'r HostRule,
}

/// Decides whether `host`, as the client spelled it, may be reached at `port`.
pub fn decide<'r>(
    rules: &'r [HostRule],
    host: &str,
    port: u16,
) -> Result<Allowed<'r>, RefusalReason> {
    let host = normal_host(host).ok_or(RefusalReason::NotAHost)?;
    let address = host.parse::<IpAddr>().is_ok();
    if !address && ends_in_a_number(&host) {
        return Err(RefusalReason::BareAddress);
    }
    let matching = || rules.iter().filter(|rule| rule.matches(&host, port));
    // A rule that names an address is more specific than a rule that does not.
    let rule = matching().find(|rule| rule.address.is_some()).or_else(|| matching().next());
    match rule {
        Some(rule) if !address || !rule.any_below => Ok(Allowed { host, rule }),
        _ if address => Err(RefusalReason::BareAddress),
        _ => Err(RefusalReason::NotNamed),
    }
}

/// The addresses that a rule itself names for its host.
pub fn named_addresses(rule: &HostRule) -> Option<Vec<IpAddr>> {
    if let Some(address) = rule.address {
        return Some(vec![address]);
    }
    if rule.any_below {
        return None;
    }
    if rule.host == "localhost" {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    rule.host.parse().ok().map(|address| vec![address])
}

/// Whether a host that `rule` allows may be reached at `address`.
pub fn address_allowed(rule: &HostRule, address: IpAddr) -> Result<(), RefusalReason> {
    let allowed = match named_addresses(rule) {
        Some(named) => named.contains(&address),
        None => is_public(address),
    };
    allowed.then_some(()).ok_or(RefusalReason::PrivateAddress)
}

/// `127.1`, `0x7f000001` and the like are not host names, but many resolvers read them as addresses.
fn ends_in_a_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether an address is public, in whatever form it is written.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|block| within(address, *block)),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Blocks of IPv4 addresses that are not public hosts.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // behind a carrier's NAT; some clouds' metadata
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // this machine
    (Ipv4Addr::new(168, 63, 129, 16), 32), // a cloud's service for its machines
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local; most clouds' metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments; a cloud's metadata
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // examples
    (Ipv4Addr::new(192, 31, 196, 0), 24),  // AS112
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // examples
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // examples
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, and broadcast
];

fn within(address: Ipv4Addr, (block, bits): (Ipv4Addr, u32)) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (32 - bits) == 0
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    let embedded = || IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() as u32));
    match (first, second, third) {
        // IPv4-mapped.
        (0, 0, 0) if address.to_ipv4_mapped().is_some() => is_public(embedded()),
        // NAT64: networks without IPv4 reach every IPv4 host this way.
        (0x64, 0xff9b, 0) if address.segments()[3..6] == [0, 0, 0] => is_public(embedded()),
        // Teredo and other protocol assignments, examples, 6to4.
        (0x2001, 0..0x200 | 0xdb8, _) | (0x2002 | 0x3fff, ..) => false,
        // Global unicast: all other public hosts.
        (0x2000..=0x3fff, ..) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<HostRule> {
        texts.iter().map(|text| HostRule::parse(text).unwrap()).collect()
    }

    #[test]
    fn only_hosts_that_a_rule_names_are_allowed() {
        let rules = rules(&["a.org", "b.org:443", "*.c.org", "10.0.0.5:80", "[::1]:80", "127.1"]);
        let cases: &[(&str, u16, Option<RefusalReason>)] = &[
            ("a.org", 1, None),
            ("A.ORG.", 1, None),
            ("b.org", 443, None),
            ("b.org", 80, Some(RefusalReason::NotNamed)),
            ("x.c.org", 80, None),
            ("c.org", 80, Some(RefusalReason::NotNamed)),
            ("a.org.evil.org", 80, Some(RefusalReason::NotNamed)),
            ("10.0.0.5", 80, None),
            ("10.0.0.5", 81, Some(RefusalReason::BareAddress)),
            ("10.0.0.6", 80, Some(RefusalReason::BareAddress)),
            ("::ffff:10.0.0.5", 80, Some(RefusalReason::BareAddress)),
            ("[::1]", 80, None),
            ("0:0:0:0:0:0:0:1", 80, None),
            // Other spellings of an address, one of them even in a rule.
            ("127.1", 80, Some(RefusalReason::BareAddress)),
            ("2130706433", 80, Some(RefusalReason::BareAddress)),
            ("0x7f000001", 80, Some(RefusalReason::BareAddress)),
            ("0x7f.1", 80, Some(RefusalReason::BareAddress)),
            ("0177.0.0.1", 80, Some(RefusalReason::BareAddress)),
            ("127.0.0.0x1", 80, Some(RefusalReason::BareAddress)),
            ("127.0.0.1.", 80, Some(RefusalReason::BareAddress)),
            ("a.org\0.evil.org", 80, Some(RefusalReason::NotAHost)),
            ("a.org/", 80, Some(RefusalReason::NotAHost)),
            ("user@a.org", 80, Some(RefusalReason::NotAHost)),
            ("fe80::1%eth0", 80, Some(RefusalReason::NotAHost)),
            ("", 80, Some(RefusalReason::NotAHost)),
        ];
        for (host, port, refused) in cases {
            assert_eq!(decide(&rules, host, *port).err(), *refused, "{host}:{port}");
        }
    }

    #[test]
    fn a_rule_that_names_an_address_comes_before_one_that_does_not() {
        let rules = rules(&["*.corp", "index.corp=10.0.0.5"]);
        assert_eq!(decide(&rules, "index.corp", 80).unwrap().rule, &rules[1]);
        assert_eq!(decide(&rules, "other.corp", 80).unwrap().rule, &rules[0]);
    }

    #[test]
    fn a_name_leads_only_to_public_addresses() {
        let rule = &rules(&["a.org"])[0];
        for public in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"]
        {
            assert_eq!(address_allowed(rule, public.parse().unwrap()), Ok(()), "{public}");
        }
        assert_eq!(address_allowed(rule, "64:ff9b::101:101".parse().unwrap()), Ok(()));
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:101:101::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            let refused = Err(RefusalReason::PrivateAddress);
            assert_eq!(address_allowed(rule, private.parse().unwrap()), refused, "{private}");
        }
    }

    #[test]
    fn a_rule_that_names_an_address_leads_there_and_nowhere_else() {
        for (rule, there, elsewhere) in [
            ("a.corp=10.0.0.5", "10.0.0.5", "10.0.0.6"),
            ("a.corp=10.0.0.5", "10.0.0.5", "1.1.1.1"),
            ("*.corp=10.0.0.5", "10.0.0.5", "127.0.0.1"),
            ("169.254.169.254", "169.254.169.254", "127.0.0.1"),
            ("localhost:80", "127.0.0.1", "127.0.0.2"),
            ("localhost:80", "::1", "10.0.0.1"),
            ("*.localhost", "1.1.1.1", "127.0.0.1"),
        ] {
            let rule = &rules(&[rule])[0];
            assert_eq!(address_allowed(rule, there.parse().unwrap()), Ok(()), "{rule}");
            let refused = Err(RefusalReason::PrivateAddress);
            assert_eq!(address_allowed(rule, elsewhere.parse().unwrap()), refused, "{rule}");
        }
    }
}
