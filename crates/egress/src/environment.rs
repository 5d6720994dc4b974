//! The variables by which programs inside a sandbox find the proxy.

use windlass_protocol::policy::HostRule;
use windlass_protocol::policy::PROXY_PORT;

/// Names of the sandbox itself, for example of a server that the session's code starts.
const SANDBOX_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The proxy variables of a worker's environment. `localhost` and loopback addresses go to the proxy
/// only if a rule names them; otherwise they mean the sandbox itself. The proxy also speaks SOCKS5 at
/// the same port, but `all_proxy` says HTTP: some clients fail when they read a SOCKS URL and have no
/// library for it.
pub fn proxy_environment(rules: &[HostRule]) -> Vec<(&'static str, String)> {
    let proxied =
        ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let named = |host: &str| rules.iter().any(|rule| rule.host == host && !rule.any_below);
    let unproxied: Vec<_> = SANDBOX_HOSTS.into_iter().filter(|host| !named(host)).collect();
    let unproxied = unproxied.join(",");
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let mut variables: Vec<_> = proxied.map(|name| (name, proxy.clone())).into();
    variables.push(("no_proxy", unproxied.clone()));
    variables.push(("NO_PROXY", unproxied));
    // The fetch of Node.js reads the other variables only if this one is set.
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_go_to_the_proxy_only_if_a_rule_names_them() {
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
