//! Where the machine's users have their homes, and where programs on PATH are: from there shells run
//! what they run next.

use std::path::{Path, PathBuf};

use windlass_protocol::policy::HOME_DIRECTORIES;

/// Accounts with these shells belong to services: nobody logs in to their homes.
const NO_LOGIN: [&str; 3] = ["nologin", "false", "sync"];

/// Home directories: this user's, and those of everybody who can log in. Real paths.
pub fn homes() -> Vec<PathBuf> {
    // As bytes: a user's full name need not be text.
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd);
    let mut homes: Vec<PathBuf> =
        std::env::home_dir().into_iter().chain(listed(&passwd)).map(real_or_same).collect();
    homes.retain(|home| home.parent().is_some());
    homes.sort();
    homes.dedup();
    homes
}

/// Directories of programs on this process's PATH. Real paths.
pub fn programs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let mut programs: Vec<PathBuf> = named.map(real_or_same).collect();
    programs.sort();
    programs.dedup();
    programs
}

/// Whether a session may work at a real path without being able to change what shells run next: it is no
/// home, holds no home, and is no directory of programs or of startup files.
pub fn is_a_place_to_work(here: &Path, homes: &[PathBuf], programs: &[PathBuf]) -> bool {
    let holds_home = homes.iter().any(|home| home.starts_with(here));
    let of_home =
        |home: &PathBuf| HOME_DIRECTORIES.iter().any(|name| here.starts_with(home.join(name)));
    let holds_programs = programs.iter().any(|programs| here.starts_with(programs));
    !holds_home && !holds_programs && !homes.iter().any(of_home)
}

fn listed(passwd: &str) -> Vec<PathBuf> {
    let home = |line: &str| -> Option<PathBuf> {
        let mut fields = line.split(':').skip(5);
        let (home, shell) = (fields.next()?, fields.next()?);
        let logs_in = !NO_LOGIN.iter().any(|name| shell.trim_end().ends_with(name));
        (logs_in && home.starts_with('/')).then(|| home.into())
    };
    passwd.lines().filter_map(home).collect()
}

fn real_or_same(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_of_those_who_can_log_in() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/usr/sbin/nologin\n\
            ada:x:1000:1000::/people/ada:/bin/zsh\nbroken:x\n";
        assert_eq!(listed(passwd), [PathBuf::from("/root"), PathBuf::from("/people/ada")]);
    }

    #[test]
    fn no_session_works_in_a_home_above_one_or_where_programs_are() {
        let homes = [PathBuf::from("/people/ada")];
        let programs = [PathBuf::from("/people/ada/go/bin"), PathBuf::from("/code/.venv/bin")];
        let may = |here: &str| is_a_place_to_work(Path::new(here), &homes, &programs);
        for refused in [
            "/",
            "/people",
            "/people/ada",
            "/people/ada/.config/fish",
            "/people/ada/.cargo/bin",
            "/people/ada/bin",
            "/people/ada/go/bin",
            "/code/.venv/bin",
        ] {
            assert!(!may(refused), "{refused}");
        }
        for allowed in ["/people/ada/project", "/people/bob", "/code", "/people/ada/go"] {
            assert!(may(allowed), "{allowed}");
        }
    }
}
