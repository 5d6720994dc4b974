//! The variables by which programs inside a sandbox find the proxy.

use windlass_protocol::policy::HostRule;
use windlass_protocol::policy::PROXY_PORT;

/// This machine's names, as seen from inside: a server that the code starts itself.
const INSIDE: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// What the worker's environment needs. A name of the machine itself goes to the proxy only where
/// a rule names it; otherwise it means the sandbox. The proxy speaks SOCKS5 at the same port, but
/// `all_proxy` says HTTP: some clients fail at once where they are told of SOCKS without a library
/// for it.
pub fn proxy_environment(rules: &[HostRule]) -> Vec<(&'static str, String)> {
    let proxied =
        ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let named = |host: &str| rules.iter().any(|rule| rule.host == host && !rule.any_below);
    let inside: Vec<_> = INSIDE.into_iter().filter(|host| !named(host)).collect();
    let inside = inside.join(",");
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let mut variables: Vec<_> = proxied.map(|name| (name, proxy.clone())).into();
    variables.push(("no_proxy", inside.clone()));
    variables.push(("NO_PROXY", inside));
    // Node's own fetch looks at the others only when it is told to.
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_goes_to_the_proxy_only_where_a_rule_names_it() {
        let no_proxy = |rules: &[&str]| {
            let rules: Vec<_> = rules.iter().map(|rule| HostRule::parse(rule).unwrap()).collect();
            let variables = proxy_environment(&rules);
            variables.into_iter().find(|(name, _)| *name == "no_proxy").unwrap().1
        };
        assert_eq!(no_proxy(&["a.org"]), "localhost,127.0.0.1,::1");
        assert_eq!(no_proxy(&["localhost:8080"]), "127.0.0.1,::1");
        assert_eq!(no_proxy(&["localhost", "127.0.0.1", "[::1]:80"]), "");
    }
}
